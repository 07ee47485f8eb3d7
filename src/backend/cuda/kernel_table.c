/* The tables of kernels/, one a file. */
#include "kernel_table.h"
#include "kernels/entries.h"

#include <string.h>

#define TWK_LIST(file) twk_##file##_entries,
static const twk_entry *const tables[] = {TWK_TABLES(TWK_LIST)};

const twk_entry *twi_cuda_find_entry(const char *kernel) {
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const twk_entry *entry = tables[t]; entry->kernel; entry++)
            if (strcmp(entry->kernel, kernel) == 0) return entry;
    return NULL;
}

/* What processor and system tell of themselves, for reports. What is made use of is in isa.c. */
#include "cpu.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* The maker's text lies in three leaves of 16 bytes, padded with blanks on either side. */
static void read_name(char *out, size_t size) {
    enum { LEAVES = 3 };
    const unsigned first_leaf = 0x80000002;
    unsigned word[4 * LEAVES + 1] = {0};
    for (unsigned i = 0; i < LEAVES; i++) {
        unsigned *w = word + 4 * i;
        if (!__get_cpuid(first_leaf + i, w, w + 1, w + 2, w + 3)) return;
    }
    const char *text = (const char *)word;
    text += strspn(text, " ");
    size_t length = strlen(text);
    while (length && text[length - 1] == ' ') length--;
    snprintf(out, size, "%.*s", (int)length, text);
}
#else
static void read_name(char *out, size_t size) { snprintf(out, size, "%s", ""); }
#endif

/* A line of /proc/meminfo, "MemTotal:  24684084 kB": true if it is the one asked for. */
static bool read_line(const char *line, const char *name, size_t *bytes) {
    size_t kilobytes, length = strlen(name);
    if (strncmp(line, name, length) != 0 || sscanf(line + length, ": %zu", &kilobytes) != 1) return false;
    *bytes = kilobytes * 1024;
    return true;
}

void twi_cpu_describe_machine(tw_device_info *out) {
    read_name(out->name, sizeof out->name);
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return;
    char line[256];
    while (!out->free_bytes && fgets(line, sizeof line, file)) {
        if (!read_line(line, "MemTotal", &out->memory_bytes)) read_line(line, "MemAvailable", &out->free_bytes);
    }
    fclose(file);
}

/* Choices that are remembered from one process to the next, in one small text file for all that they hold for:
 *
 *   <header: program, machine, libraries>
 *   <key><tab><choice>
 *   ...
 *   sum <64-bit FNV-1a of all before it, in hex>
 *
 * Keys and choices are lines without tabs; what they mean is left to those who ask. There are so many at most: then the
 * oldest goes for a new one, so that a program which meets ever new shapes does not grow. */
#ifndef TWI_BASE_CHOICES_H
#define TWI_BASE_CHOICES_H

#include "log.h"
#include "memory.h"

enum { TWI_CHOICES_MOST = 2048 };

typedef struct twi_choices_entry {
    char *key, *choice;
} twi_choices_entry;

typedef struct twi_choices {
    twi_memory *memory;
    const twi_log *log;
    char *path;   /* NULL: in memory only */
    char *header; /* first line of the file */
    twi_choices_entry *entry;
    int count, capacity;
    int oldest;    /* where all places are taken */
    bool changed; /* has what the file has not */
} twi_choices;

/* Opens choices that hold for `header`, kept as <folder>/<name>-<hash of the header>.txt; folder NULL: TALWEG_CACHE_DIR
 * of the environment, or nowhere, as for "". A file that cannot be read, is damaged or not ours counts as an empty one,
 * and the log says so. `log` is borrowed. Errors: OUT_OF_MEMORY; close is due even then. */
tw_status twi_choices_open(twi_choices *choices, twi_memory *memory, const twi_log *log, const char *folder, const char *name,
                           const char *header);
/* NULL: nothing is remembered under the key. Borrowed until the next put. */
const char *twi_choices_find(const twi_choices *choices, const char *key);
/* Replaces what was remembered under the key. */
tw_status twi_choices_put(twi_choices *choices, const char *key, const char *choice);
/* Writes what is new; of choices never opened (zeroed) there is nothing. That this failed is only logged, since the
 * next run merely chooses again. */
void twi_choices_close(twi_choices *choices);

#endif

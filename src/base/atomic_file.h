/* Writing a file so that a cut, a full disk or a failed write never costs the file that was there: a temporary file beside it,
 * flushed to the disk, then renamed over it. */
#ifndef TWI_BASE_ATOMIC_FILE_H
#define TWI_BASE_ATOMIC_FILE_H

#include "memory.h"

typedef struct twi_atomic_file {
    twi_memory *memory;
    char *path, *temporary;
    void *stream; /* FILE */
    tw_status status; /* first failure: later writes do nothing, commit reports it */
} twi_atomic_file;

/* Opens the temporary file. Errors: FILE naming path and cause. */
tw_status twi_atomic_file_open(twi_atomic_file *file, twi_memory *memory, const char *path);
void twi_atomic_file_write(twi_atomic_file *file, const void *data, size_t bytes);
void twi_atomic_file_print(twi_atomic_file *file, const char *format, ...) TW_PRINTF(2, 3);
/* Flushes, renames and closes; on failure removes the temporary file and leaves what was there. */
tw_status twi_atomic_file_commit(twi_atomic_file *file);
/* Gives up: removes the temporary file. Does nothing after commit. */
void twi_atomic_file_drop(twi_atomic_file *file);

#endif

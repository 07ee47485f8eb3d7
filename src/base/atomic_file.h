/* Writing a file so that a cut, a full disk or a failed write never costs the file that was there: a temporary file in
 * its folder, without a name if that can be, flushed to the disk, then renamed over it. Links are followed, the
 * mode of a file that was there is kept. Pipes and devices are written to, never replaced. */
#ifndef TWI_BASE_ATOMIC_FILE_H
#define TWI_BASE_ATOMIC_FILE_H

#include "memory.h"

enum { TWI_GUARDED_SIGNALS = 2, TWI_TEMPORARY_NAME = 48 };

typedef struct twi_atomic_file {
    twi_memory *memory;
    char *path;              /* as it was given, for messages */
    char *target;            /* what is replaced, links resolved; cut where its folder ends */
    const char *name;        /* in `target`: what follows the folder */
    int folder;              /* descriptor of the folder; -1 for pipes and devices */
    char temporary[TWI_TEMPORARY_NAME]; /* name in the folder; empty: it has none */
    void *stream;            /* FILE */
    tw_status status;        /* first failure: later writes do nothing, commit reports it */
    struct {
        bool blocked, pending; /* by us; before us */
    } signal[TWI_GUARDED_SIGNALS];
} twi_atomic_file;

/* Opens the temporary file. From here to commit or drop, on the same thread, a write into a broken pipe or beyond the
 * limit on file sizes is a failure to report: its signal is held back. Errors: FILE naming path and cause. */
tw_status twi_atomic_file_open(twi_atomic_file *file, twi_memory *memory, const char *path);
void twi_atomic_file_write(twi_atomic_file *file, const void *data, size_t bytes);
void twi_atomic_file_print(twi_atomic_file *file, const char *format, ...) TW_PRINTF(2, 3);
/* Flushes, renames and closes; on failure removes the temporary file and leaves what was there. */
tw_status twi_atomic_file_commit(twi_atomic_file *file);
/* Gives up: removes the temporary file. Does nothing after commit. */
void twi_atomic_file_drop(twi_atomic_file *file);

#endif

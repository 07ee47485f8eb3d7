/* Temporary file, fsync, rename. */
#define _GNU_SOURCE
#include "atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tw_status fail(const char *path, const char *what, int error) {
    return TWI_FAIL(TW_ERROR_FILE, "%s: cannot %s: %s; what was there before is unchanged", *path ? path : "''", what,
                    strerror(error));
}

/* A new file beside `path`; names left over by a killed run are passed over. */
static int open_beside(twi_atomic_file *file, size_t length) {
    enum { TRIES = 100 };
    int descriptor = -1;
    for (int i = 0; i < TRIES && descriptor < 0; i++) {
        snprintf(file->temporary, length, "%s.%ld-%d.tmp", file->path, (long)getpid(), i);
        descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor < 0 && errno != EEXIST) break;
    }
    return descriptor;
}

static tw_status open_stream(twi_atomic_file *file) {
    enum { SUFFIX = 48 };
    size_t length = strlen(file->path) + SUFFIX;
    struct stat info;
    int descriptor;
    if (stat(file->path, &info) == 0 && !S_ISREG(info.st_mode)) { /* a pipe or device is written to, never replaced */
        descriptor = open(file->path, O_WRONLY | O_CLOEXEC);
    } else {
        TWI_TRY(twi_get(file->memory, &file->temporary, length, 1, "file name"));
        descriptor = open_beside(file, length);
    }
    if (descriptor >= 0) file->stream = fdopen(descriptor, "wb");
    if (file->stream) return TW_OK;
    int error = errno; /* what follows may change it */
    if (descriptor >= 0) {
        close(descriptor);
    } else { /* there is nothing to remove */
        twi_put(file->memory, file->temporary);
        file->temporary = NULL;
    }
    return fail(file->path, "open it for writing", error);
}

tw_status twi_atomic_file_open(twi_atomic_file *file, twi_memory *memory, const char *path) {
    memset(file, 0, sizeof *file);
    file->memory = memory;
    TWI_TRY(twi_get_text(memory, &file->path, path));
    tw_status status = open_stream(file);
    if (status) twi_atomic_file_drop(file);
    return status;
}

void twi_atomic_file_write(twi_atomic_file *file, const void *data, size_t bytes) {
    if (file->status == TW_OK && bytes && fwrite(data, 1, bytes, file->stream) != bytes) file->status = fail(file->path, "write", errno);
}

void twi_atomic_file_print(twi_atomic_file *file, const char *format, ...) {
    if (file->status) return;
    va_list arguments;
    va_start(arguments, format);
    if (vfprintf(file->stream, format, arguments) < 0) file->status = fail(file->path, "write", errno);
    va_end(arguments);
}

/* The rename is on the disk only once the folder is. Best effort: some file systems refuse. */
static void sync_folder(char *path) {
    int descriptor = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    (void)fsync(descriptor);
    close(descriptor);
}

static void close_all(twi_atomic_file *file, bool remove) {
    if (file->stream) fclose(file->stream);
    if (remove && file->temporary) unlink(file->temporary);
    twi_put(file->memory, file->path);
    twi_put(file->memory, file->temporary);
    file->stream = NULL;
    file->path = file->temporary = NULL;
}

tw_status twi_atomic_file_commit(twi_atomic_file *file) {
    tw_status status = file->status;
    FILE *stream = file->stream;
    if (status == TW_OK && (fflush(stream) || (file->temporary && fsync(fileno(stream))))) status = fail(file->path, "flush to disk", errno);
    file->stream = NULL;
    if (fclose(stream) && status == TW_OK) status = fail(file->path, "close", errno);
    if (status == TW_OK && file->temporary && rename(file->temporary, file->path)) status = fail(file->path, "replace it", errno);
    if (status == TW_OK) sync_folder(file->path);
    close_all(file, status != TW_OK);
    file->memory = NULL;
    return status;
}

void twi_atomic_file_drop(twi_atomic_file *file) {
    if (file->memory) close_all(file, true);
    file->memory = NULL;
}

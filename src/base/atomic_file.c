/* Temporary file, fsync, rename; and the signals that writing could raise. */
#define _GNU_SOURCE
#include "atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- messages ---- */

/* Of a long path only the end, so that it does not push the cause out of the message. */
static tw_status fail_with(const twi_atomic_file *file, const char *what, const char *cause, const char *rest) {
    enum { SHOWN = 200 };
    const char *path = *file->path ? file->path : "''";
    const size_t length = strlen(path), cut = length > SHOWN ? length - SHOWN : 0;
    return TWI_FAIL(TW_ERROR_FILE, "%s%s: cannot %s: %s%s", cut ? "..." : "", path + cut, what, cause, rest);
}

static tw_status fail_because(const twi_atomic_file *file, const char *what, const char *cause) {
    return fail_with(file, what, cause, "; what was there before is unchanged");
}

static tw_status fail(const twi_atomic_file *file, const char *what) {
    return fail_because(file, what, strerror(errno));
}

/* ---- signals ---- */

static const int guarded[TWI_GUARDED_SIGNALS] = {SIGPIPE, SIGXFSZ};

/* Holds back, in this thread alone, what would end the process where a write can fail instead. */
static void guard_signals(twi_atomic_file *file) {
    sigset_t mask, before, pending;
    sigemptyset(&mask);
    for (int i = 0; i < TWI_GUARDED_SIGNALS; i++) sigaddset(&mask, guarded[i]);
    sigpending(&pending);
    const bool changed = pthread_sigmask(SIG_BLOCK, &mask, &before) == 0;
    for (int i = 0; i < TWI_GUARDED_SIGNALS; i++) {
        file->signal[i].pending = sigismember(&pending, guarded[i]) == 1;
        file->signal[i].blocked = changed && sigismember(&before, guarded[i]) == 0;
    }
}

/* Takes back the signals our own writes raised, and leaves those that waited before. */
static void release_signals(twi_atomic_file *file) {
    const struct timespec at_once = {0, 0};
    for (int i = 0; i < TWI_GUARDED_SIGNALS; i++) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, guarded[i]);
        if (!file->signal[i].pending)
            while (sigtimedwait(&one, NULL, &at_once) < 0 && errno == EINTR) continue;
        if (file->signal[i].blocked) pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    }
}

/* ---- opening ---- */

/* A pipe or device. Without waiting: a pipe that nobody reads is a failure, where a plain open would hang. */
static tw_status open_special(twi_atomic_file *file, const struct stat *info, int *descriptor) {
    *descriptor = open(file->path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (*descriptor < 0 && errno == ENXIO && S_ISFIFO(info->st_mode))
        return fail_because(file, "open it for writing", "nobody reads from this pipe; start its reader first");
    if (*descriptor < 0) return fail(file, "open it for writing");
    const int flags = fcntl(*descriptor, F_GETFL);
    if (flags < 0 || fcntl(*descriptor, F_SETFL, flags & ~O_NONBLOCK)) return fail(file, "open it for writing");
    return TW_OK;
}

/* The folder is held by a descriptor: neither long paths nor a change of the working folder come between. */
static tw_status open_folder(twi_atomic_file *file) {
    char *slash = strrchr(file->target, '/');
    const char *folder = !slash ? "." : slash == file->target ? "/" : file->target;
    file->name = slash ? slash + 1 : file->target;
    if (slash) *slash = 0;
    file->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (file->folder < 0 && errno == ENOENT) /* nothing was there before */
        return fail_with(file, "open it for writing", strerror(errno), ": make its folder first, or write elsewhere");
    return file->folder < 0 ? fail(file, "open it for writing") : TW_OK;
}

/* Through the thread: /proc/self is the main one, which may be gone. */
enum { DESCRIPTOR_PATH = 48 };
static void descriptor_path(char path[DESCRIPTOR_PATH], int descriptor) {
    snprintf(path, DESCRIPTOR_PATH, "/proc/thread-self/fd/%d", descriptor);
}

/* Takes a name in the folder for a new file, or for one that has none yet; names left over by killed runs are passed
 * over. Left empty where that fails: there is nothing to remove. */
static bool take_name(twi_atomic_file *file, mode_t mode, int *descriptor) {
    enum { TRIES = 10000 };
    char nameless[DESCRIPTOR_PATH];
    const bool is_new = *descriptor < 0;
    bool taken = false;
    descriptor_path(nameless, *descriptor);
    errno = EEXIST;
    for (int i = 0; i < TRIES && !taken && errno == EEXIST; i++) {
        snprintf(file->temporary, sizeof file->temporary, ".talweg-%ld-%d.tmp", (long)getpid(), i);
        if (is_new)
            taken = (*descriptor =
                         openat(file->folder, file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)) >= 0;
        else
            taken = linkat(AT_FDCWD, nameless, file->folder, file->temporary, AT_SYMLINK_FOLLOW) == 0;
    }
    if (!taken) file->temporary[0] = 0;
    return taken;
}

/* A new file in the folder. Without a name where the file system can do that, so that of a run that is killed while it
 * writes nothing is left; it gets one through /proc when it is complete. */
static tw_status open_temporary(twi_atomic_file *file, mode_t mode, int *descriptor) {
    char path[DESCRIPTOR_PATH];
    *descriptor = openat(file->folder, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
    descriptor_path(path, *descriptor);
    if (*descriptor >= 0 && access(path, F_OK) == 0) return TW_OK;
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
    return take_name(file, mode, descriptor) ? TW_OK : fail(file, "open it for writing");
}

/* In place of a file that is there: behind its links, and no more open to others than that one. */
static tw_status open_replacement(twi_atomic_file *file, const struct stat *info, int *descriptor) {
    const mode_t mode = info->st_mode & 07777;
    TWI_TRY(twi_get(file->memory, &file->target, PATH_MAX, 1, "file name"));
    if (!realpath(file->path, file->target)) return fail(file, "find the file behind it");
    TWI_TRY(open_folder(file));
    TWI_TRY(open_temporary(file, mode & 0600, descriptor));
    return fchmod(*descriptor, mode) ? fail(file, "give the new file the mode of the old one") : TW_OK;
}

static tw_status open_new(twi_atomic_file *file, int *descriptor) {
    struct stat info;
    if (lstat(file->path, &info) == 0)
        return fail_because(file, "open it for writing",
                            "it is a link to a file that is not there; make that file, or remove the link");
    TWI_TRY(twi_get_text(file->memory, &file->target, file->path));
    TWI_TRY(open_folder(file));
    return open_temporary(file, 0666, descriptor);
}

static tw_status open_descriptor(twi_atomic_file *file, int *descriptor) {
    struct stat info;
    if (stat(file->path, &info) == 0)
        return S_ISREG(info.st_mode) ? open_replacement(file, &info, descriptor)
                                     : open_special(file, &info, descriptor);
    return errno == ENOENT && *file->path ? open_new(file, descriptor) : fail(file, "open it for writing");
}

static tw_status open_stream(twi_atomic_file *file) {
    int descriptor = -1;
    tw_status status = open_descriptor(file, &descriptor);
    if (status == TW_OK) {
        file->stream = fdopen(descriptor, "wb");
        if (!file->stream) status = fail(file, "open it for writing");
    }
    if (status && descriptor >= 0) close(descriptor);
    return status;
}

tw_status twi_atomic_file_open(twi_atomic_file *file, twi_memory *memory, const char *path) {
    memset(file, 0, sizeof *file);
    file->folder = -1;
    TWI_TRY(twi_get_text(memory, &file->path, path));
    file->memory = memory;
    guard_signals(file);
    tw_status status = open_stream(file);
    if (status) twi_atomic_file_drop(file);
    return status;
}

/* ---- writing ---- */

void twi_atomic_file_write(twi_atomic_file *file, const void *data, size_t bytes) {
    if (file->status == TW_OK && bytes && fwrite(data, 1, bytes, file->stream) != bytes)
        file->status = fail(file, "write");
}

void twi_atomic_file_print(twi_atomic_file *file, const char *format, ...) {
    if (file->status) return;
    va_list arguments;
    va_start(arguments, format);
    if (vfprintf(file->stream, format, arguments) < 0) file->status = fail(file, "write");
    va_end(arguments);
}

/* ---- the end ---- */

/* The rename is on the disk only once the folder is. Best effort: some file systems refuse. */
static void sync_folder(int folder) {
    int descriptor = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    (void)fsync(descriptor);
    close(descriptor);
}

void twi_atomic_file_drop(twi_atomic_file *file) {
    if (!file->memory) return;
    if (file->stream) fclose(file->stream);
    if (file->temporary[0]) unlinkat(file->folder, file->temporary, 0);
    if (file->folder >= 0) close(file->folder);
    release_signals(file); /* after the last write, which fclose may have made */
    twi_put(file->memory, file->path);
    twi_put(file->memory, file->target);
    memset(file, 0, sizeof *file);
}

static tw_status flush_and_close(twi_atomic_file *file) {
    FILE *stream = file->stream;
    TWI_TRY(file->status);
    if (fflush(stream) || (file->folder >= 0 && fsync(fileno(stream)))) return fail(file, "flush to disk");
    int descriptor = fileno(stream);
    if (file->folder >= 0 && !file->temporary[0] && !take_name(file, 0, &descriptor)) return fail(file, "replace it");
    file->stream = NULL;
    return fclose(stream) ? fail(file, "close") : TW_OK;
}

static tw_status put_in_place(twi_atomic_file *file) {
    if (file->folder < 0) return TW_OK;
    if (renameat(file->folder, file->temporary, file->folder, file->name)) return fail(file, "replace it");
    file->temporary[0] = 0;
    sync_folder(file->folder);
    return TW_OK;
}

tw_status twi_atomic_file_commit(twi_atomic_file *file) {
    tw_status status = flush_and_close(file);
    if (status == TW_OK) status = put_in_place(file);
    twi_atomic_file_drop(file);
    return status;
}

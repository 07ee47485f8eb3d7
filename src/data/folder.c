/* Lists the files of one folder. Folders inside it are left to the caller. */
#define _POSIX_C_SOURCE 200809L /* fstatat */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_file(DIR *directory, const struct dirent *entry) {
    struct stat info;
    return !fstatat(dirfd(directory), entry->d_name, &info, 0) && S_ISREG(info.st_mode);
}

static tw_status add_name(twi_folder *folder, const char *name) {
    if (folder->count == folder->capacity) {
        size_t capacity = folder->capacity ? folder->capacity * 2 : 16;
        TWI_TRY(twi_grow(folder->memory, &folder->names, capacity, sizeof *folder->names, "list of files"));
        folder->capacity = capacity;
    }
    TWI_TRY(twi_get_text(folder->memory, &folder->names[folder->count], name));
    folder->count++;
    return TW_OK;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static tw_status read_names(twi_folder *folder, DIR *directory) {
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (!entry && errno)
            return TWI_FAIL(TW_ERROR_FILE, "%s: the folder cannot be read: %s", folder->path, strerror(errno));
        if (!entry) break;
        if (entry->d_name[0] != '.' && is_file(directory, entry)) TWI_TRY(add_name(folder, entry->d_name));
    }
    if (folder->count) qsort(folder->names, folder->count, sizeof *folder->names, compare_names);
    return TW_OK;
}

static tw_status list(twi_folder *folder, const char *path) {
    TWI_TRY(twi_get_text(folder->memory, &folder->path, path));
    DIR *directory = opendir(path);
    if (!directory && errno == ENOTDIR)
        return TWI_FAIL(
            TW_ERROR_FILE,
            "%s: is a file; give the folder that holds it, or open a pair of IDX files with tw_dataset_open_idx", path);
    if (!directory)
        return TWI_FAIL(TW_ERROR_FILE, "%s: the folder cannot be opened: %s", *path ? path : "''", strerror(errno));
    tw_status status = read_names(folder, directory);
    closedir(directory);
    return status;
}

tw_status twi_folder_open(twi_folder **out, twi_memory *memory, const char *path) {
    twi_folder *folder;
    *out = NULL;
    TWI_TRY(twi_get(memory, &folder, 1, sizeof *folder, "list of files"));
    folder->memory = memory;
    tw_status status = list(folder, path);
    if (status)
        twi_folder_close(folder);
    else
        *out = folder;
    return status;
}

void twi_folder_close(twi_folder *folder) {
    if (!folder) return;
    twi_memory *memory = folder->memory;
    for (size_t i = 0; i < folder->count; i++) twi_put(memory, folder->names[i]);
    twi_put(memory, folder->names);
    twi_put(memory, folder->path);
    twi_put(memory, folder);
}

bool twi_folder_has(const twi_folder *folder, const char *name) {
    return folder->count && bsearch(&name, folder->names, folder->count, sizeof *folder->names, compare_names);
}

tw_status twi_path_join(twi_memory *memory, char **out, const char *path, const char *name) {
    size_t size = strlen(path) + strlen(name) + 2;
    TWI_TRY(twi_get(memory, out, size, 1, "file name"));
    snprintf(*out, size, "%s/%s", path, name);
    return TW_OK;
}

/* Opens the data set in a folder: asks each known format, in the folder itself and in the folders that the archives of
 * known data sets unpack to. */
#include "base/text.h"
#include "formats.h"

#include <string.h>
#include <sys/stat.h>

static const struct {
    twi_format_open_fn open;
    const char *looks_for;
} formats[] = {
    {twi_idx_open, "IDX (train-images*, train-labels*, t10k-* or test-*)"},
    {twi_cifar_open, "CIFAR-10 (data_batch_*.bin, test_batch.bin) and CIFAR-100 (train.bin, test.bin)"},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static const char *const subfolders[] = {"cifar-10-batches-bin", "cifar-100-binary"};
enum { SUBFOLDERS = sizeof subfolders / sizeof *subfolders };

static bool is_folder(const char *path) {
    struct stat info;
    return !stat(path, &info) && S_ISDIR(info.st_mode);
}

static tw_status ask_formats(tw_dataset **out, tw_context *context, const twi_folder *folder, tw_split split,
                             const tw_dataset_options *options) {
    for (int i = 0; i < FORMATS && !*out; i++) TWI_TRY(formats[i].open(out, context, folder, split, options));
    return TW_OK;
}

static tw_status open_subfolder(tw_dataset **out, tw_context *context, const char *path, tw_split split,
                                const tw_dataset_options *options) {
    if (!is_folder(path)) return TW_OK;
    twi_folder *folder;
    TWI_TRY(twi_folder_open(&folder, context->memory, path));
    tw_status status = ask_formats(out, context, folder, split, options);
    twi_folder_close(folder);
    return status;
}

/* Archives and compressed files are the usual reason that a folder of the right data is not understood. */
static const char *first_packed(const twi_folder *folder) {
    static const char *const suffixes[] = {".gz", ".tgz", ".xz", ".bz2", ".zst", ".tar", ".zip"};
    for (size_t i = 0; i < folder->count; i++) {
        const char *suffix = strrchr(folder->names[i], '.');
        for (size_t s = 0; suffix && s < sizeof suffixes / sizeof *suffixes; s++)
            if (!strcmp(suffix, suffixes[s])) return folder->names[i];
    }
    return NULL;
}

/* What was looked for, and what is there instead. */
static tw_status fail_unknown(const twi_folder *folder, tw_split split) {
    enum { SHOWN = 10 };
    twi_text text;
    char *message;
    twi_text_init(&text, folder->memory);
    const char *packed = first_packed(folder);
    twi_text_add(&text, "looked for");
    for (int i = 0; i < FORMATS; i++) twi_text_add(&text, "%s %s", i ? ";" : "", formats[i].looks_for);
    twi_text_add(&text, "; the folder holds %s", folder->count ? "" : "no files");
    for (size_t i = 0; i < folder->count && i < SHOWN; i++)
        twi_text_add(&text, "%s%s", i ? ", " : "", folder->names[i]);
    if (folder->count > SHOWN) twi_text_add(&text, " and %zu more", folder->count - SHOWN);
    if (packed) twi_text_add(&text, "; unpack %s first", packed);
    TWI_TRY(twi_text_take(&text, &message));
    tw_status status = TWI_FAIL(TW_ERROR_FILE, "%s: no %s data of a known format: %s", folder->path,
                                split == TW_TRAIN ? "training" : "test", message);
    twi_put(folder->memory, message);
    return status;
}

static tw_status open_here_or_below(tw_dataset **out, tw_context *context, const twi_folder *folder, tw_split split,
                                    const tw_dataset_options *options) {
    TWI_TRY(ask_formats(out, context, folder, split, options));
    for (int i = 0; i < SUBFOLDERS && !*out; i++) {
        char *path;
        TWI_TRY(twi_path_join(context->memory, &path, folder->path, subfolders[i]));
        tw_status status = open_subfolder(out, context, path, split, options);
        twi_put(context->memory, path);
        if (status) return status;
    }
    return *out ? TW_OK : fail_unknown(folder, split);
}

tw_status tw_dataset_open(tw_dataset **out, tw_context *context, const char *path, tw_split split,
                          const tw_dataset_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_open: out is NULL");
    *out = NULL;
    if (!context || !path)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_open: %s is NULL", context ? "path" : "context");
    if (split != TW_TRAIN && split != TW_TEST)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_open: split %d is neither TW_TRAIN nor TW_TEST", (int)split);
    tw_dataset_options given;
    TWI_TRY(twi_dataset_read_options(&given, options, "tw_dataset_open"));
    twi_folder *folder;
    TWI_TRY(twi_folder_open(&folder, context->memory, path));
    tw_status status = open_here_or_below(out, context, folder, split, &given);
    twi_folder_close(folder);
    return status;
}

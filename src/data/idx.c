/* IDX files, plain or gzip, as MNIST comes in: two zero bytes, the element type, the number of axes, their sizes (32
 * bits each, big-endian), the elements. Images are three axes of bytes (count, height, width), labels one. The header
 * is not believed: what it claims is held against the bytes that are there. */
#include "byte_stream.h"
#include "formats.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAGIC_BYTES = 4, MAX_AXES = 3, TYPE_BYTE = 0x08 };

/* What a file is expected to hold. */
typedef struct idx_kind {
    const char *name;
    int axes;
} idx_kind;

static const idx_kind images_kind = {"images", 3}, labels_kind = {"labels", 1};

typedef struct idx_file {
    twi_stream *stream;
    const idx_kind *kind;
    size_t dims[MAX_AXES];
    size_t bytes; /* of the elements: the product of dims */
} idx_file;

static const struct {
    unsigned code;
    const char *name;
} element_types[] = {
    {0x08, "unsigned byte"},  {0x09, "signed byte"}, {0x0B, "16-bit integer"},
    {0x0C, "32-bit integer"}, {0x0D, "float"},       {0x0E, "double"},
};

static const char *type_name(unsigned code) {
    for (size_t i = 0; i < sizeof element_types / sizeof *element_types; i++)
        if (element_types[i].code == code) return element_types[i].name;
    return NULL;
}

/* Says as precisely as can be told why these are not the first four bytes of the expected kind. */
static tw_status check_magic(const idx_file *file, const unsigned char *magic, size_t got) {
    const char *path = twi_stream_path(file->stream), *name = file->kind->name;
    int axes = file->kind->axes;
    char shown[TWI_SHOWN_BYTES];
    if (got == MAGIC_BYTES && !magic[2] && !magic[3] && type_name(magic[1]) && magic[0] && magic[0] <= MAX_AXES)
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "%s: wrong byte order: starts with %s, which is the magic number 00 00 %02X %02X backwards: "
                        "write the header big-endian",
                        path, twi_show_bytes(shown, magic, got), magic[1], magic[0]);
    if (got < MAGIC_BYTES || magic[0] || magic[1] || !type_name(magic[2]) || !magic[3])
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "%s: not IDX: starts with %s, expected 00 00 08 %02X (%s): get the file again, or give the "
                        "right one",
                        path, twi_show_bytes(shown, magic, got), axes, name);
    if (magic[2] != TYPE_BYTE)
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "%s: IDX element type 0x%02X (%s), expected 0x08 (unsigned byte) for %s: convert them to "
                        "bytes",
                        path, magic[2], type_name(magic[2]), name);
    const idx_kind *other = file->kind == &images_kind ? &labels_kind : &images_kind;
    if (magic[3] == other->axes)
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "%s: holds %s (magic number 00 00 08 %02X) where %s (00 00 08 %02X) are expected: are the two "
                        "files swapped?",
                        path, other->name, other->axes, name, axes);
    if (magic[3] != axes)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: IDX data of %d axes, expected %d for %s (magic number 00 00 08 %02X)",
                        path, magic[3], axes, name, axes);
    return TW_OK;
}

static const char *dims_text(const idx_file *file, char text[64]) {
    if (file->kind->axes == 1)
        snprintf(text, 64, "%zu", file->dims[0]);
    else
        snprintf(text, 64, "%zu x %zu x %zu", file->dims[0], file->dims[1], file->dims[2]);
    return text;
}

static tw_status check_dims(idx_file *file) {
    char text[64];
    const char *path = twi_stream_path(file->stream), *name = file->kind->name;
    bool too_many = false;
    file->bytes = 1;
    for (int i = 0; i < file->kind->axes; i++) {
        if (!file->dims[i])
            return TWI_FAIL(TW_ERROR_FORMAT, "%s: the header announces no %s (%s)", path, name, dims_text(file, text));
        too_many = too_many || file->dims[i] > INT_MAX || file->bytes > SIZE_MAX / 2 / file->dims[i];
        file->bytes *= file->dims[i];
    }
    if (too_many)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: the header announces %s %s, more than any file holds", path,
                        dims_text(file, text), name);
    return TW_OK;
}

/* A plain file's size says at once whether the header lies; of a gzip file that only shows while it is read. */
static tw_status check_size(const idx_file *file, size_t header) {
    char text[64];
    uint64_t size = twi_stream_file_size(file->stream), expected = header + (uint64_t)file->bytes;
    if (twi_stream_is_gzip(file->stream) || size == expected) return TW_OK;
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: the header announces %s %s, a file of %llu bytes; it has %llu: %s",
                    twi_stream_path(file->stream), dims_text(file, text), file->kind->name,
                    (unsigned long long)expected, (unsigned long long)size,
                    size < expected ? "it is truncated or the header is wrong" : "bytes follow the last element");
}

static tw_status open_header(idx_file *file, twi_memory *memory, const char *path) {
    unsigned char magic[MAGIC_BYTES], dims[4 * MAX_AXES];
    size_t got, dims_bytes = 4 * (size_t)file->kind->axes;
    TWI_TRY(twi_stream_open(&file->stream, memory, path));
    TWI_TRY(twi_stream_read(file->stream, magic, MAGIC_BYTES, &got));
    TWI_TRY(check_magic(file, magic, got));
    TWI_TRY(twi_stream_read(file->stream, dims, dims_bytes, &got));
    if (got < dims_bytes)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: truncated: %zu bytes, an IDX header of %s has %zu: get the file again",
                        path, MAGIC_BYTES + got, file->kind->name, MAGIC_BYTES + dims_bytes);
    for (int i = 0; i < file->kind->axes; i++)
        file->dims[i] =
            (size_t)dims[4 * i] << 24 | (size_t)dims[4 * i + 1] << 16 | (size_t)dims[4 * i + 2] << 8 | dims[4 * i + 3];
    TWI_TRY(check_dims(file));
    return check_size(file, MAGIC_BYTES + dims_bytes);
}

static tw_status read_elements(idx_file *file, void *out) {
    char text[64];
    unsigned char extra;
    size_t got, more;
    TWI_TRY(twi_stream_read_block(file->stream, out, file->bytes, &got, file->kind->name));
    if (got < file->bytes)
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "%s: the header announces %s %s, %zu bytes; %zu are there: it is truncated or the header is "
                        "wrong",
                        twi_stream_path(file->stream), dims_text(file, text), file->kind->name, file->bytes, got);
    /* One byte more, which also makes a gzip file show its checksum. */
    TWI_TRY(twi_stream_read(file->stream, &extra, 1, &more));
    if (more)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: bytes follow the %s %s that the header announces",
                        twi_stream_path(file->stream), dims_text(file, text), file->kind->name);
    return TW_OK;
}

static tw_status read_labels(tw_dataset *dataset, idx_file *file) {
    unsigned char *bytes = NULL;
    tw_status status = read_elements(file, &bytes);
    if (!status)
        status = twi_get(dataset->context->memory, &dataset->labels, file->bytes, sizeof *dataset->labels,
                         "labels of a data set");
    for (size_t i = 0; !status && i < file->bytes; i++) dataset->labels[i] = bytes[i];
    twi_put(dataset->context->memory, bytes);
    return status;
}

static tw_status read_pair(tw_dataset *dataset, idx_file *images, idx_file *labels, const tw_dataset_options *options) {
    if (images->dims[0] != labels->dims[0])
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "images and labels disagree: %zu images in %s, %zu labels in %s: give the pair that belongs "
                        "together",
                        images->dims[0], twi_stream_path(images->stream), labels->dims[0],
                        twi_stream_path(labels->stream));
    dataset->dtype = TW_U8;
    dataset->count = (int64_t)images->dims[0];
    dataset->channels = 1;
    dataset->height = (int)images->dims[1];
    dataset->width = (int)images->dims[2];
    TWI_TRY(read_elements(images, &dataset->images));
    TWI_TRY(read_labels(dataset, labels));
    TWI_TRY(twi_dataset_set_classes(dataset, options, 0, NULL));
    return twi_dataset_check_labels(dataset, 0, dataset->count, twi_stream_path(labels->stream));
}

static tw_status open_pair(tw_dataset **out, tw_context *context, const char *images_path, const char *labels_path,
                           const tw_dataset_options *options) {
    idx_file images = {.kind = &images_kind}, labels = {.kind = &labels_kind};
    tw_dataset *dataset = NULL;
    tw_status status;
    TWI_TRY_GOTO(open_header(&images, context->memory, images_path), done);
    TWI_TRY_GOTO(open_header(&labels, context->memory, labels_path), done);
    TWI_TRY_GOTO(twi_dataset_new(&dataset, context), done);
    TWI_TRY_GOTO(read_pair(dataset, &images, &labels, options), done);
    *out = dataset;
    dataset = NULL;
done:
    tw_dataset_destroy(dataset);
    twi_stream_close(images.stream);
    twi_stream_close(labels.stream);
    return status;
}

tw_status tw_dataset_open_idx(tw_dataset **out, tw_context *context, const char *images_path, const char *labels_path,
                              const tw_dataset_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_open_idx: out is NULL");
    *out = NULL;
    if (!context || !images_path || !labels_path)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_open_idx: %s is NULL",
                        !context       ? "context"
                        : !images_path ? "images_path"
                                       : "labels_path");
    tw_dataset_options given;
    TWI_TRY(twi_dataset_read_options(&given, options, "tw_dataset_open_idx"));
    return open_pair(out, context, images_path, labels_path, &given);
}

/* Is this the name of a file of the split and kind, such as train-images-idx3-ubyte.gz? */
static bool name_fits(const char *name, tw_split split, const idx_kind *kind) {
    bool of_split = split == TW_TRAIN ? strstr(name, "train") != NULL : strstr(name, "t10k") || strstr(name, "test");
    return of_split && strstr(name, kind->name);
}

/* Is `name` the name `plain` with .gz behind it? */
static bool is_twin(const char *plain, const char *name) {
    size_t length = strlen(plain);
    return !strncmp(plain, name, length) && !strcmp(name + length, ".gz");
}

/* The one file of a split and kind: of a plain file and its gzip twin the plain one. *out stays NULL where there is
 * none. */
static tw_status find_file(const char **out, const twi_folder *folder, tw_split split, const idx_kind *kind) {
    *out = NULL;
    for (size_t i = 0; i < folder->count; i++) {
        const char *name = folder->names[i];
        if (!name_fits(name, split, kind) || (*out && is_twin(*out, name))) continue;
        if (*out)
            return TWI_FAIL(TW_ERROR_FILE,
                            "%s: both %s and %s could hold the %s: remove one, or open a pair with tw_dataset_open_idx",
                            folder->path, *out, name, kind->name);
        *out = name;
    }
    return TW_OK;
}

tw_status twi_idx_open(tw_dataset **out, tw_context *context, const twi_folder *folder, tw_split split,
                       const tw_dataset_options *options) {
    const char *images, *labels;
    TWI_TRY(find_file(&images, folder, split, &images_kind));
    TWI_TRY(find_file(&labels, folder, split, &labels_kind));
    if (!images && !labels) return TW_OK;
    if (!images || !labels)
        return TWI_FAIL(TW_ERROR_FILE, "%s: %s is there, but no file of %s to go with it", folder->path,
                        images ? images : labels, images ? "labels" : "images");
    char *images_path = NULL, *labels_path = NULL;
    tw_status status = twi_path_join(context->memory, &images_path, folder->path, images);
    if (!status) status = twi_path_join(context->memory, &labels_path, folder->path, labels);
    if (!status) status = open_pair(out, context, images_path, labels_path, options);
    twi_put(context->memory, images_path);
    twi_put(context->memory, labels_path);
    return status;
}

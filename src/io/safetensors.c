/* Reading safetensors headers: nothing in them is believed before it is checked against the file. */
#define _GNU_SOURCE
#include "safetensors.h"
#include "json_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, HEADER_MAX = 100 * 1000 * 1000 };

static const struct {
    const char *name;
    tw_dtype dtype;
} types[] = {
    {"F32", TW_F32}, {"F16", TW_F16}, {"BF16", TW_BF16}, {"I32", TW_I32}, {"I64", TW_I64}, {"U8", TW_U8},
};
enum { TYPES = sizeof types / sizeof *types };

const char *twi_tensor_type_name(tw_dtype dtype) {
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == dtype) return types[i].name;
    return "?";
}

typedef struct parser {
    twi_json json;
    twi_tensor_file *file;
    uint64_t data_bytes;
    char *name; /* scratch for one string, as long as the header */
    size_t name_capacity;
} parser;

static tw_status bad(const parser *p, const char *what) {
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: tensor '%.200s': %s", p->json.where, p->name, what);
}

/* One tensor's part of the header. */
typedef struct entry_parser {
    const parser *p;
    twi_tensor_entry entry;
} entry_parser;

static tw_status parse_dtype(twi_json *json, void *self) {
    const parser *p = ((entry_parser *)self)->p;
    twi_tensor_entry *entry = &((entry_parser *)self)->entry;
    char text[16];
    TWI_TRY(twi_json_string(json, text, sizeof text));
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, text) == 0) return entry->dtype = types[i].dtype, TW_OK;
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: tensor '%.200s': type %s is not known; F32, F16, BF16, I32, I64 and U8 are",
                    p->json.where, p->name, text);
}

static tw_status parse_dim(twi_json *json, void *self) {
    twi_shape *shape = &((entry_parser *)self)->entry.shape;
    uint64_t dim;
    TWI_TRY(twi_json_whole(json, &dim));
    if (shape->rank == TW_MAX_RANK) return bad(((entry_parser *)self)->p, "more than 6 axes");
    shape->dim[shape->rank++] = (int64_t)dim;
    return TW_OK;
}

static tw_status parse_shape(twi_json *json, void *self) { return twi_json_array(json, parse_dim, self); }

static tw_status parse_range(twi_json *json, void *self) {
    twi_tensor_entry *entry = &((entry_parser *)self)->entry;
    TWI_TRY(twi_json_expect(json, '['));
    TWI_TRY(twi_json_whole(json, &entry->begin));
    TWI_TRY(twi_json_expect(json, ','));
    TWI_TRY(twi_json_whole(json, &entry->end));
    return twi_json_expect(json, ']');
}

static const twi_json_member members[] = {
    {"dtype", parse_dtype, false},
    {"shape", parse_shape, false},
    {"data_offsets", parse_range, false},
};

static tw_status check_entry(const parser *p, const twi_tensor_entry *entry) {
    if (entry->begin > entry->end) return bad(p, "its range ends before it begins");
    if (entry->end > p->data_bytes)
        return bad(p, "its range ends beyond the end of the file, which may have been cut off: get the file again");
    uint64_t bytes = tw_dtype_size(entry->dtype);
    for (int i = 0; i < entry->shape.rank; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)entry->shape.dim[i], &bytes)) return bad(p, "its shape overflows");
    if (twi_shape_check(&entry->shape, p->name)) return bad(p, "its shape has more elements than can be addressed");
    if (bytes != entry->end - entry->begin)
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "%s: tensor '%.200s': its range holds %llu bytes, its shape and type need %llu", p->json.where,
                        p->name, (unsigned long long)(entry->end - entry->begin), (unsigned long long)bytes);
    return TW_OK;
}

static tw_status parse_entry(parser *p) {
    twi_tensor_file *file = p->file;
    entry_parser e;
    memset(&e, 0, sizeof e);
    e.p = p;
    TWI_TRY(twi_json_object(&p->json, members, sizeof members / sizeof *members, &e));
    TWI_TRY(check_entry(p, &e.entry));
    if (file->count == file->capacity) {
        int grown = file->capacity ? 2 * file->capacity : 64;
        TWI_TRY(twi_grow(file->memory, &file->entry, (size_t)grown, sizeof *file->entry, "tensor list"));
        file->capacity = grown;
    }
    TWI_TRY(twi_get_text(file->memory, &e.entry.name, p->name));
    file->entry[file->count++] = e.entry;
    return TW_OK;
}

/* Decoding never lengthens a text: what is left of the header holds what comes out of it. */
static tw_status keep_text(parser *p, size_t room) {
    twi_tensor_file *file = p->file;
    char *text = file->metadata + file->metadata_bytes;
    TWI_TRY(twi_json_string(&p->json, text, room - file->metadata_bytes));
    file->metadata_bytes += strlen(text) + 1;
    return TW_OK;
}

/* {"key": "text", ...} */
static tw_status parse_metadata(parser *p) {
    const size_t room = (size_t)(p->json.end - p->json.at) + 1;
    TWI_TRY(twi_json_expect(&p->json, '{'));
    if (twi_json_accept(&p->json, '}')) return TW_OK;
    TWI_TRY(twi_get(p->file->memory, &p->file->metadata, room, 1, "safetensors metadata"));
    do {
        TWI_TRY(keep_text(p, room));
        TWI_TRY(twi_json_expect(&p->json, ':'));
        TWI_TRY(keep_text(p, room));
    } while (twi_json_accept(&p->json, ','));
    return twi_json_expect(&p->json, '}');
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(twi_tensor_entry *const *)a)->name, (*(twi_tensor_entry *const *)b)->name);
}

static int by_begin(const void *a, const void *b) {
    const twi_tensor_entry *x = *(twi_tensor_entry *const *)a, *y = *(twi_tensor_entry *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Names are unique, ranges follow each other without gap to the end of the data. */
static tw_status check_all(const parser *p, twi_tensor_entry **sorted) {
    twi_tensor_file *file = p->file;
    for (int i = 0; i < file->count; i++) sorted[i] = &file->entry[i];
    qsort(sorted, (size_t)file->count, sizeof *sorted, by_name);
    for (int i = 1; i < file->count; i++)
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0)
            return TWI_FAIL(TW_ERROR_FORMAT, "%s: duplicate tensor '%.200s'", p->json.where, sorted[i]->name);
    qsort(sorted, (size_t)file->count, sizeof *sorted, by_begin);
    uint64_t at = 0;
    for (int i = 0; i < file->count; i++) {
        if (sorted[i]->begin != at)
            return TWI_FAIL(TW_ERROR_FORMAT, "%s: tensor '%.200s': begins at %llu where %llu is due: tensors %s",
                            p->json.where, sorted[i]->name, (unsigned long long)sorted[i]->begin,
                            (unsigned long long)at, sorted[i]->begin < at ? "overlap" : "leave a hole");
        at = sorted[i]->end;
    }
    if (at != p->data_bytes)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: %llu %s behind the last tensor", p->json.where,
                        (unsigned long long)(p->data_bytes - at), p->data_bytes - at == 1 ? "byte lies" : "bytes lie");
    return TW_OK;
}

static tw_status parse_header(parser *p) {
    TWI_TRY(twi_json_expect(&p->json, '{'));
    bool metadata = false;
    if (!twi_json_accept(&p->json, '}')) {
        do {
            TWI_TRY(twi_json_string(&p->json, p->name, p->name_capacity));
            TWI_TRY(twi_json_expect(&p->json, ':'));
            bool is_metadata = strcmp(p->name, "__metadata__") == 0;
            if (is_metadata && metadata)
                return TWI_FAIL(TW_ERROR_FORMAT, "%s: __metadata__ is repeated", p->json.where);
            metadata |= is_metadata;
            p->json.item = is_metadata ? "__metadata__" : p->name;
            TWI_TRY(is_metadata ? parse_metadata(p) : parse_entry(p));
            p->json.item = NULL;
        } while (twi_json_accept(&p->json, ','));
        TWI_TRY(twi_json_expect(&p->json, '}'));
    }
    if (!twi_json_at_end(&p->json)) return twi_json_fail(&p->json, "the end of the header");
    twi_tensor_entry **sorted;
    TWI_TRY(twi_get(p->file->memory, &sorted, (size_t)p->file->count, sizeof(twi_tensor_entry *), "tensor order"));
    tw_status status = check_all(p, sorted);
    twi_put(p->file->memory, sorted);
    return status;
}

tw_status twi_tensor_header_parse(twi_tensor_file *file, const char *json, size_t length, uint64_t data_bytes) {
    parser p = {.json = {json, json + length, file->path, "header", NULL},
                .file = file,
                .data_bytes = data_bytes,
                .name_capacity = length + 1};
    TWI_TRY(twi_get(file->memory, &p.name, p.name_capacity, 1, "tensor name"));
    tw_status status = parse_header(&p);
    twi_put(file->memory, p.name);
    return status;
}

/* ---- files ---- */

tw_status twi_tensor_file_read_at(const twi_tensor_file *file, uint64_t offset, void *data, uint64_t bytes) {
    while (bytes) {
        ssize_t got = pread(file->descriptor, data, bytes > 1 << 30 ? 1 << 30 : (size_t)bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return TWI_FAIL(TW_ERROR_FILE, "%s: cannot read: %s", file->path, got ? strerror(errno) : "it ended early");
        data = (char *)data + got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return TW_OK;
}

/* A header longer than the file: one that was cut off begins as its header does. Others are something else. */
static tw_status refuse_length(const twi_tensor_file *file, uint64_t length, uint64_t size) {
    char first = '{';
    if (size > LENGTH_BYTES) TWI_TRY(twi_tensor_file_read_at(file, LENGTH_BYTES, &first, 1));
    if (length <= HEADER_MAX && first == '{')
        return TWI_FAIL(
            TW_ERROR_FORMAT,
            "%s: ends inside its header: it has %llu bytes, of at least %llu, so it may have been cut off: get "
            "the file again",
            file->path, (unsigned long long)size, (unsigned long long)(LENGTH_BYTES + length));
    return TWI_FAIL(TW_ERROR_FORMAT,
                    "%s: is no safetensors file: its first 8 bytes give a header of %llu bytes in a file of %llu: give "
                    "the right one",
                    file->path, (unsigned long long)length, (unsigned long long)size);
}

static tw_status open_checked(twi_tensor_file *file) {
    struct stat info;
    unsigned char length_bytes[LENGTH_BYTES];
    uint64_t length = 0;
    file->descriptor =
        open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused below, not waited for */
    if (file->descriptor < 0 || fstat(file->descriptor, &info))
        return TWI_FAIL(TW_ERROR_FILE, "%s: cannot open: %s", file->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return TWI_FAIL(TW_ERROR_FILE, "%s: is not a regular file", file->path);
    uint64_t size = (uint64_t)info.st_size;
    if (!size)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: is empty, so it may have been cut off: get the file again", file->path);
    if (size < LENGTH_BYTES)
        return TWI_FAIL(
            TW_ERROR_FORMAT,
            "%s: ends after %llu byte%s, too few for a safetensors file, so it may have been cut off: get the file "
            "again",
            file->path, (unsigned long long)size, size == 1 ? "" : "s");
    TWI_TRY(twi_tensor_file_read_at(file, 0, length_bytes, LENGTH_BYTES));
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | length_bytes[i];
    if (length > HEADER_MAX || length > size - LENGTH_BYTES) return refuse_length(file, length, size);
    file->data_offset = LENGTH_BYTES + length;
    char *json;
    TWI_TRY(twi_get(file->memory, &json, (size_t)length, 1, "safetensors header"));
    tw_status status = twi_tensor_file_read_at(file, LENGTH_BYTES, json, length);
    if (status == TW_OK) status = twi_tensor_header_parse(file, json, (size_t)length, size - file->data_offset);
    twi_put(file->memory, json);
    return status;
}

tw_status twi_tensor_file_open(twi_tensor_file *file, twi_memory *memory, const char *path) {
    memset(file, 0, sizeof *file);
    file->memory = memory;
    file->descriptor = -1;
    TWI_TRY(twi_get_text(memory, &file->path, path));
    tw_status status = open_checked(file);
    if (status) twi_tensor_file_close(file);
    return status;
}

void twi_tensor_file_close(twi_tensor_file *file) {
    for (int i = 0; i < file->count; i++) twi_put(file->memory, file->entry[i].name);
    twi_put(file->memory, file->entry);
    twi_put(file->memory, file->metadata);
    twi_put(file->memory, file->path);
    if (file->descriptor >= 0) close(file->descriptor);
    memset(file, 0, sizeof *file);
    file->descriptor = -1;
}

const char *twi_tensor_file_find(const twi_tensor_file *file, const char *key) {
    const char *at = file->metadata, *end = at ? at + file->metadata_bytes : NULL;
    while (at && at < end) {
        const char *text = at + strlen(at) + 1;
        if (strcmp(at, key) == 0) return text;
        at = text + strlen(text) + 1;
    }
    return NULL;
}

tw_status twi_tensor_file_read(const twi_tensor_file *file, const twi_tensor_entry *entry, void *data) {
    return twi_tensor_file_read_at(file, file->data_offset + entry->begin, data, entry->end - entry->begin);
}

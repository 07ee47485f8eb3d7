/* The list of a model's tensors, and its way to files and back. */
#include "model_tensors.h"
#include "base/atomic_file.h"
#include "base/half.h"
#include "checksum.h"
#include "json_writer.h"

#include <stdio.h>
#include <string.h>

enum { NONE = -1, MISFIT = -2 };

/* ---- the list ---- */

tw_status twi_model_tensors_list(twi_model_tensors *list, const tw_model *model, const char *const *prefix,
                                 twi_moments moments) {
    const twi_store *store = &model->store;
    *list = (twi_model_tensors){.model = model};
    TWI_TRY(twi_get(model->context->memory, &list->tensor, (size_t)store->count * (size_t)(1 + moments.count),
                    sizeof *list->tensor, "tensor list"));
    for (int i = 0; i < store->count; i++) {
        void *const *array = store->parameter[i].learned ? &store->weights : &store->buffers;
        list->tensor[list->count++] = (twi_model_tensor){"", i, array};
    }
    for (int m = moments.first; m < moments.first + moments.count; m++)
        for (int i = 0; i < store->count; i++)
            if (store->parameter[i].learned)
                list->tensor[list->count++] = (twi_model_tensor){prefix[m], i, &store->moment[m]};
    return TW_OK;
}

tw_status twi_model_tensors_add_snapshot(twi_model_tensors *list, const char *const *prefix, twi_moments moments) {
    const twi_store *store = &list->model->store;
    const twi_snapshot *snapshot = &store->snapshot;
    const size_t count = (size_t)list->count + (size_t)store->count * (size_t)(1 + moments.count);
    TWI_TRY(twi_grow(list->model->context->memory, &list->tensor, count, sizeof *list->tensor, "tensor list"));
    for (int i = 0; i < store->count; i++) {
        void *const *array = store->parameter[i].learned ? &snapshot->weights : &snapshot->buffers;
        list->tensor[list->count++] = (twi_model_tensor){prefix[TWI_MOMENTS], i, array};
    }
    for (int m = moments.first; m < moments.first + moments.count; m++)
        for (int i = 0; i < store->count; i++)
            if (store->parameter[i].learned)
                list->tensor[list->count++] = (twi_model_tensor){prefix[m], i, &snapshot->moment[m]};
    return TW_OK;
}

void twi_model_tensors_free(twi_model_tensors *list) {
    twi_put(list->model->context->memory, list->tensor);
    *list = (twi_model_tensors){0};
}

static const twi_parameter *parameter_of(const twi_model_tensors *list, int t) {
    return &list->model->store.parameter[list->tensor[t].parameter];
}

static int64_t count_of(const twi_model_tensors *list, int t) { return twi_shape_count(&parameter_of(list, t)->shape); }

static bool is_named(const twi_model_tensors *list, int t, const char *own, const char *name) {
    const char *prefix = list->tensor[t].prefix;
    const size_t length = strlen(prefix);
    return strncmp(prefix, name, length) == 0 && strcmp(own, name + length) == 0;
}

/* The tensor that a file calls `name`, which may be an alias; NONE: there is no such one. */
static int find_tensor(const twi_model_tensors *list, const char *name) {
    const twi_store *store = &list->model->store;
    for (int t = 0; t < list->count; t++)
        if (is_named(list, t, parameter_of(list, t)->name, name)) return t;
    for (int i = 0; i < store->alias_count; i++)
        for (int t = 0; t < list->count; t++)
            if (list->tensor[t].parameter == store->alias[i].parameter && is_named(list, t, store->alias[i].name, name))
                return t;
    return NONE;
}

/* A counter is an I64 scalar in the file and one real in the store. */
static tw_dtype file_type(const twi_parameter *parameter) { return parameter->counter ? TW_I64 : TW_F32; }
static twi_shape file_shape(const twi_parameter *parameter) {
    return parameter->counter ? (twi_shape){0, {0}} : parameter->shape;
}

/* ---- saving ---- */

void twi_metadata_add(twi_text *metadata, const char *key, const char *value) {
    twi_text_add(metadata, ",");
    twi_json_add_string(metadata, "", key);
    twi_text_add(metadata, ":");
    twi_json_add_string(metadata, "", value);
}

/* The further names of what is saved, as safetensors' own save_model notes them: "alias": "name". */
static void add_aliases(twi_text *text, const twi_model_tensors *list) {
    const twi_store *store = &list->model->store;
    for (int i = 0; i < store->alias_count; i++) {
        const char *name = store->parameter[store->alias[i].parameter].name;
        if (find_tensor(list, name) != NONE) twi_metadata_add(text, store->alias[i].name, name);
    }
}

static void add_entry(twi_text *text, const twi_model_tensors *list, int t, uint64_t *at) {
    const twi_parameter *parameter = parameter_of(list, t);
    const twi_shape shape = file_shape(parameter);
    const uint64_t end = *at + (uint64_t)twi_shape_count(&shape) * tw_dtype_size(file_type(parameter));
    twi_text_add(text, ",");
    twi_json_add_string(text, list->tensor[t].prefix, parameter->name);
    twi_text_add(text, ":{\"dtype\":\"%s\",\"shape\":[", twi_tensor_type_name(file_type(parameter)));
    for (int k = 0; k < shape.rank; k++) twi_text_add(text, k ? ",%lld" : "%lld", (long long)shape.dim[k]);
    twi_text_add(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at, (unsigned long long)end);
    *at = end;
}

/* The header, padded with blanks so that the data begins on a multiple of 8. */
static tw_status make_header(const twi_model_tensors *list, const char *metadata, char **out) {
    twi_text text;
    uint64_t at = 0;
    twi_text_init(&text, list->model->context->memory);
    twi_text_add(&text, "{\"__metadata__\":{\"format\":\"pt\"%s", metadata);
    add_aliases(&text, list);
    twi_text_add(&text, "}");
    for (int t = 0; t < list->count; t++) add_entry(&text, list, t, &at);
    twi_text_add(&text, "}");
    while (text.status == TW_OK && text.length % 8) twi_text_add(&text, " ");
    return twi_text_take(&text, out);
}

/* Where what is saved goes: to a file, or, NULL, into a checksum. */
typedef struct output {
    twi_atomic_file *file;
    uint32_t sum;
} output;

static void put(output *out, const void *data, size_t bytes) {
    if (out->file)
        twi_atomic_file_write(out->file, data, bytes);
    else
        out->sum = twi_checksum_add(out->sum, data, bytes);
}

static void put_header(output *out, const char *header) {
    uint64_t length = strlen(header);
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
    put(out, bytes, sizeof bytes);
    put(out, header, (size_t)length);
}

static tw_status put_tensor(output *out, const twi_model_tensors *list, int t) {
    const twi_parameter *parameter = parameter_of(list, t);
    twi_memory *memory = list->model->context->memory;
    const size_t count = (size_t)count_of(list, t);
    float *values;
    TWI_TRY(twi_get(memory, &values, count, sizeof *values, parameter->name));
    tw_status status = twi_store_read(&list->model->store, *list->tensor[t].array, list->tensor[t].parameter, values);
    if (status == TW_OK && parameter->counter) {
        int64_t whole;
        twi_convert(&whole, TW_I64, values, TW_F32, 1);
        put(out, &whole, sizeof whole);
    } else if (status == TW_OK) {
        put(out, values, count * sizeof *values);
    }
    twi_put(memory, values);
    return status;
}

static tw_status put_all(output *out, const twi_model_tensors *list, const char *header) {
    put_header(out, header);
    for (int t = 0; t < list->count; t++) TWI_TRY(put_tensor(out, list, t));
    return TW_OK;
}

/* Before the file is begun, since pipes cannot be gone back in. */
static tw_status fill_checksum(const twi_model_tensors *list, char *header) {
    char *digits = twi_checksum_find(header, strlen(header)), text[TWI_CHECKSUM_DIGITS + 1];
    output out = {0};
    if (!digits) return TW_OK;
    TWI_TRY(put_all(&out, list, header));
    snprintf(text, sizeof text, "%08x", (unsigned)out.sum);
    memcpy(digits, text, TWI_CHECKSUM_DIGITS);
    return TW_OK;
}

static tw_status write_file(const twi_model_tensors *list, const char *header, const char *path) {
    twi_atomic_file file;
    TWI_TRY(twi_atomic_file_open(&file, list->model->context->memory, path));
    tw_status status = put_all(&(output){.file = &file}, list, header);
    if (status == TW_OK) return twi_atomic_file_commit(&file);
    twi_atomic_file_drop(&file);
    return status;
}

tw_status twi_model_tensors_save(const twi_model_tensors *list, const char *metadata, const char *path) {
    char *header;
    TWI_TRY(make_header(list, metadata, &header));
    tw_status status = fill_checksum(list, header);
    if (status == TW_OK) status = write_file(list, header, path);
    twi_put(list->model->context->memory, header);
    return status;
}

/* ---- what fits ---- */

typedef struct fitting {
    const twi_model_tensors *list;
    const twi_tensor_file *file;
    int *entry;  /* per tensor: the first entry of the file that goes there, NONE or MISFIT */
    int *tensor; /* per entry of the file: where it goes, or NONE */
    int missing, unexpected, mismatched, fitted;
} fitting;

static bool type_fits(const twi_parameter *parameter, tw_dtype dtype) {
    if (parameter->counter) return dtype == TW_I64 || dtype == TW_I32 || dtype == TW_F32;
    return dtype == TW_F32 || dtype == TW_F16 || dtype == TW_BF16;
}

static bool shape_fits(const twi_parameter *parameter, const twi_shape *shape) {
    return parameter->counter ? twi_shape_count(shape) == 1 : twi_shape_equal(&parameter->shape, shape);
}

/* Each kind of misfit is listed by name, the first few of them. */
enum { LISTED = 5 };

static void list_misfit(twi_text *text, int *count, const char *kind, const char *prefix, const char *name) {
    if (*count < LISTED) twi_text_add(text, "%s %s '%s%.100s'", text->length ? "," : "", kind, prefix, name);
    if (*count == LISTED) twi_text_add(text, ", and more %s", kind);
    (*count)++;
}

static void match_entry(fitting *f, int e, twi_text *text) {
    const twi_tensor_entry *entry = &f->file->entry[e];
    const int t = find_tensor(f->list, entry->name);
    f->tensor[e] = NONE;
    if (t == NONE) {
        list_misfit(text, &f->unexpected, "unexpected", "", entry->name);
        return;
    }
    const twi_parameter *parameter = parameter_of(f->list, t);
    if (shape_fits(parameter, &entry->shape) && type_fits(parameter, entry->dtype)) {
        f->tensor[e] = t;
        if (f->entry[t] >= 0) return; /* under a second name */
        f->entry[t] = e;
        f->fitted++;
        return;
    }
    char shapes[2][TWI_SHAPE_TEXT];
    list_misfit(text, &f->mismatched, "mismatched", "", entry->name);
    if (f->mismatched <= LISTED)
        twi_text_add(text, " (file %s %s, model %s)", twi_tensor_type_name(entry->dtype),
                     twi_shape_text(&entry->shape, shapes[0]), twi_shape_text(&parameter->shape, shapes[1]));
    if (f->entry[t] == NONE) f->entry[t] = MISFIT;
}

/* A tensor may be in the file under any of its names, or under several. */
static void match_all(fitting *f, twi_text *text) {
    for (int t = 0; t < f->list->count; t++) f->entry[t] = NONE;
    for (int e = 0; e < f->file->count; e++) match_entry(f, e, text);
    for (int t = 0; t < f->list->count; t++)
        if (f->entry[t] == NONE)
            list_misfit(text, &f->missing, "missing", f->list->tensor[t].prefix, parameter_of(f->list, t)->name);
}

static tw_status judge(const fitting *f, const char *misfits, bool partial, const char *remedy) {
    bool fits = f->missing + f->unexpected + f->mismatched == 0;
    if (fits) return TW_OK;
    if (!partial || f->fitted == 0)
        return TWI_FAIL(TW_ERROR_MISMATCH,
                        "%s does not fit the model: %d fit, %d missing, %d unexpected, %d mismatched:%s. The model is "
                        "unchanged; %s",
                        f->file->path, f->fitted, f->missing, f->unexpected, f->mismatched, misfits,
                        f->fitted ? remedy : "is it another network's file?");
    twi_log_line(&f->list->model->context->log, TW_LOG_WARNING, "%s: loaded %d of %d parameters:%s", f->file->path,
                 f->fitted, f->list->count, misfits);
    return TW_OK;
}

static tw_status match(fitting *f, bool partial, const char *remedy) {
    twi_memory *memory = f->list->model->context->memory;
    twi_text text;
    char *misfits;
    twi_text_init(&text, memory);
    match_all(f, &text);
    TWI_TRY(twi_text_take(&text, &misfits));
    tw_status status = judge(f, misfits, partial, remedy);
    twi_put(memory, misfits);
    return status;
}

/* ---- loading ---- */

static tw_status read_entry(const twi_tensor_file *file, const twi_tensor_entry *entry, float *values) {
    void *raw;
    TWI_TRY(twi_get(file->memory, &raw, 1, (size_t)(entry->end - entry->begin), entry->name));
    tw_status status = twi_tensor_file_read(file, entry, raw);
    if (status == TW_OK) twi_convert(values, TW_F32, raw, entry->dtype, twi_shape_count(&entry->shape));
    twi_put(file->memory, raw);
    return status;
}

/* A second name must have the first one's values, to the bit: not-a-number too. */
static tw_status compare_entry(const twi_tensor_file *file, const twi_tensor_entry *entry,
                               const twi_tensor_entry *first, const float *values) {
    const size_t count = (size_t)twi_shape_count(&entry->shape);
    float *other;
    TWI_TRY(twi_get(file->memory, &other, count, sizeof *other, entry->name));
    tw_status status = read_entry(file, entry, other);
    if (status == TW_OK && memcmp(other, values, count * sizeof *other) != 0)
        status = TWI_FAIL(TW_ERROR_MISMATCH,
                          "%s: '%.200s' and '%.200s' differ, but are one tied parameter of the model. The model is "
                          "unchanged; leave one of them out, or do not tie the layers",
                          file->path, first->name, entry->name);
    twi_put(file->memory, other);
    return status;
}

/* All entries that go to one tensor. */
static tw_status read_tensor(const fitting *f, int t, float *values) {
    if (f->entry[t] < 0) return TW_OK;
    const twi_tensor_entry *first = &f->file->entry[f->entry[t]];
    TWI_TRY(read_entry(f->file, first, values));
    for (int e = f->entry[t] + 1; e < f->file->count; e++)
        if (f->tensor[e] == t) TWI_TRY(compare_entry(f->file, &f->file->entry[e], first, values));
    return TW_OK;
}

static tw_status get_room(twi_model_values *out, const twi_model_tensors *list) {
    twi_memory *memory = list->model->context->memory;
    size_t total = 0, largest = 0;
    for (int t = 0; t < list->count; t++) {
        const size_t count = (size_t)count_of(list, t);
        total += count;
        if (count > largest) largest = count;
    }
    TWI_TRY(twi_get(memory, &out->values, total, sizeof *out->values, "weights"));
    return twi_get(memory, &out->scratch, largest, list->model->store.real_size, "weights");
}

tw_status twi_model_values_read(twi_model_values *out, const twi_model_tensors *list, const twi_tensor_file *file,
                                bool partial, const char *remedy) {
    *out = (twi_model_values){0};
    TWI_TRY(twi_get(list->model->context->memory, &out->entry, (size_t)(list->count + file->count), sizeof *out->entry,
                    "tensor match"));
    fitting f = {.list = list, .file = file, .entry = out->entry, .tensor = out->entry + list->count};
    TWI_TRY(match(&f, partial, remedy));
    TWI_TRY(get_room(out, list));
    float *values = out->values;
    for (int t = 0; t < list->count; values += count_of(list, t++)) TWI_TRY(read_tensor(&f, t, values));
    return TW_OK;
}

tw_status twi_model_values_write(const twi_model_values *values, const twi_model_tensors *list, tw_model *model) {
    const float *at = values->values;
    for (int t = 0; t < list->count; at += count_of(list, t++))
        if (values->entry[t] >= 0)
            TWI_TRY(twi_store_write_through(&model->store, *list->tensor[t].array, list->tensor[t].parameter, at,
                                            values->scratch));
    return TW_OK;
}

void twi_model_values_free(twi_model_values *values, const twi_model_tensors *list) {
    twi_memory *memory = list->model->context->memory;
    twi_put(memory, values->entry);
    twi_put(memory, values->values);
    twi_put(memory, values->scratch);
    *values = (twi_model_values){0};
}

/* Models to and from safetensors: PyTorch's names and layouts. The format itself is in safetensors.c. */
#include "base/atomic_file.h"
#include "base/half.h"
#include "base/options.h"
#include "base/text.h"
#include "program/model.h"
#include "safetensors.h"
#include <talweg/io.h>

#include <string.h>

/* A counter is an I64 scalar in the file and one real in the store. */
static tw_dtype file_type(const twi_parameter *parameter) { return parameter->counter ? TW_I64 : TW_F32; }
static twi_shape file_shape(const twi_parameter *parameter) { return parameter->counter ? (twi_shape){0, {0}} : parameter->shape; }

/* ---- saving ---- */

static void add_name(twi_text *text, const char *name) {
    twi_text_add(text, "\"");
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        twi_text_add(text, *c == '"' || *c == '\\' ? "\\%c" : *c < ' ' ? "\\u%04x" : "%c", *c);
    twi_text_add(text, "\"");
}

/* The header, padded with blanks so that the data begins on a multiple of 8. */
static tw_status make_header(const tw_model *model, char **out) {
    twi_text text;
    uint64_t at = 0;
    twi_text_init(&text, model->context->memory);
    twi_text_add(&text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < model->store.count; i++) {
        const twi_parameter *parameter = &model->store.parameter[i];
        twi_shape shape = file_shape(parameter);
        uint64_t bytes = (uint64_t)twi_shape_count(&shape) * tw_dtype_size(file_type(parameter));
        twi_text_add(&text, ",");
        add_name(&text, parameter->name);
        twi_text_add(&text, ":{\"dtype\":\"%s\",\"shape\":[", twi_tensor_type_name(file_type(parameter)));
        for (int k = 0; k < shape.rank; k++) twi_text_add(&text, k ? ",%lld" : "%lld", (long long)shape.dim[k]);
        twi_text_add(&text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + bytes));
        at += bytes;
    }
    twi_text_add(&text, "}");
    while (text.status == TW_OK && text.length % 8) twi_text_add(&text, " ");
    return twi_text_take(&text, out);
}

static void write_header(twi_atomic_file *file, const char *header) {
    uint64_t length = strlen(header);
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
    twi_atomic_file_write(file, bytes, sizeof bytes);
    twi_atomic_file_write(file, header, (size_t)length);
}

static tw_status write_values(twi_atomic_file *file, const tw_model *model, int index) {
    const twi_parameter *parameter = &model->store.parameter[index];
    int64_t count = twi_shape_count(&parameter->shape);
    float *values;
    TWI_TRY(twi_get(model->context->memory, &values, (size_t)count, sizeof *values, parameter->name));
    tw_status status = twi_store_read(&model->store, twi_store_values(&model->store, index), index, values);
    if (status == TW_OK && parameter->counter) {
        int64_t whole;
        twi_convert(&whole, TW_I64, values, TW_F32, 1);
        twi_atomic_file_write(file, &whole, sizeof whole);
    } else if (status == TW_OK) {
        twi_atomic_file_write(file, values, (size_t)count * sizeof *values);
    }
    twi_put(model->context->memory, values);
    return status;
}

tw_status tw_model_save(const tw_model *model, const char *path) {
    if (!model || !path) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_save: model or path is NULL");
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_model_save: %s: the model is not built yet", path);
    char *header;
    twi_atomic_file file;
    TWI_TRY(make_header(model, &header));
    tw_status status = twi_atomic_file_open(&file, model->context->memory, path);
    if (status == TW_OK) {
        write_header(&file, header);
        for (int i = 0; i < model->store.count && status == TW_OK; i++) status = write_values(&file, model, i);
        if (status == TW_OK)
            status = twi_atomic_file_commit(&file);
        else
            twi_atomic_file_drop(&file);
    }
    twi_put(model->context->memory, header);
    return status;
}

/* ---- loading ---- */

typedef struct fitting {
    const twi_tensor_file *file;
    tw_model *model;
    int *entry; /* per parameter: its entry in the file, or -1 */
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
static void list_misfit(twi_text *text, int *count, const char *kind, const char *name) {
    enum { LISTED = 5 };
    if (*count < LISTED) twi_text_add(text, "%s %s '%.100s'", text->length ? "," : "", kind, name);
    if (*count == LISTED) twi_text_add(text, ", and more %s", kind);
    (*count)++;
}

static void match_entries(fitting *f, twi_text *text) {
    char shapes[2][TWI_SHAPE_TEXT];
    for (int i = 0; i < f->model->store.count; i++) {
        const twi_parameter *parameter = &f->model->store.parameter[i];
        f->entry[i] = -1;
        for (int e = 0; e < f->file->count && f->entry[i] < 0; e++)
            if (strcmp(f->file->entry[e].name, parameter->name) == 0) f->entry[i] = e;
        if (f->entry[i] < 0) {
            list_misfit(text, &f->missing, "missing", parameter->name);
            continue;
        }
        const twi_tensor_entry *entry = &f->file->entry[f->entry[i]];
        if (shape_fits(parameter, &entry->shape) && type_fits(parameter, entry->dtype)) {
            f->fitted++;
            continue;
        }
        list_misfit(text, &f->mismatched, "mismatched", parameter->name);
        if (f->mismatched <= 5)
            twi_text_add(text, " (file %s %s, model %s)", twi_tensor_type_name(entry->dtype), twi_shape_text(&entry->shape, shapes[0]), twi_shape_text(&parameter->shape, shapes[1]));
        f->entry[i] = -1;
    }
    for (int e = 0; e < f->file->count; e++)
        if (twi_store_find(&f->model->store, f->file->entry[e].name) < 0) list_misfit(text, &f->unexpected, "unexpected", f->file->entry[e].name);
}

/* Reads every fitting entry into `values` (all parameters one after the other) before anything in the model changes. */
static tw_status read_entries(const fitting *f, float *values) {
    twi_memory *memory = f->model->context->memory;
    for (int i = 0; i < f->model->store.count; i++) {
        int64_t count = twi_shape_count(&f->model->store.parameter[i].shape);
        if (f->entry[i] >= 0) {
            const twi_tensor_entry *entry = &f->file->entry[f->entry[i]];
            void *raw;
            TWI_TRY(twi_get(memory, &raw, 1, (size_t)(entry->end - entry->begin), entry->name));
            tw_status status = twi_tensor_file_read(f->file, entry, raw);
            if (status == TW_OK) twi_convert(values, TW_F32, raw, entry->dtype, count);
            twi_put(memory, raw);
            TWI_TRY(status);
        }
        values += count;
    }
    return TW_OK;
}

/* All memory is there before the first write, so that nothing can stop it half-way. */
static tw_status write_entries(const fitting *f, const float *values, void *scratch) {
    twi_store *store = &f->model->store;
    for (int i = 0; i < store->count; i++) {
        if (f->entry[i] >= 0) TWI_TRY(twi_store_write_through(store, twi_store_values(store, i), i, values, scratch));
        values += twi_shape_count(&store->parameter[i].shape);
    }
    return TW_OK;
}

static tw_status judge(const fitting *f, const char *misfits, bool partial) {
    bool fits = f->missing + f->unexpected + f->mismatched == 0;
    if (fits) return TW_OK;
    if (!partial || f->fitted == 0)
        return TWI_FAIL(TW_ERROR_MISMATCH, "%s does not fit the model: %d fit, %d missing, %d unexpected, %d mismatched:%s. The model is unchanged; %s",
                        f->file->path, f->fitted, f->missing, f->unexpected, f->mismatched, misfits,
                        f->fitted ? "load with partial to take what fits" : "is it another network's file?");
    twi_log_line(&f->model->context->log, TW_LOG_WARNING, "%s: loaded %d of %d parameters:%s", f->file->path, f->fitted, f->model->store.count, misfits);
    return TW_OK;
}

static tw_status load(fitting *f, bool partial) {
    twi_memory *memory = f->model->context->memory;
    const twi_store *store = &f->model->store;
    twi_text text;
    char *misfits = NULL;
    float *values = NULL;
    void *scratch = NULL;
    size_t total = 0, largest = 0;
    TWI_TRY(twi_get(memory, &f->entry, (size_t)store->count, sizeof *f->entry, "tensor match"));
    twi_text_init(&text, memory);
    match_entries(f, &text);
    tw_status status = twi_text_take(&text, &misfits);
    if (status == TW_OK) status = judge(f, misfits, partial);
    for (int i = 0; i < store->count; i++) {
        size_t count = (size_t)twi_shape_count(&store->parameter[i].shape);
        total += count;
        if (count > largest) largest = count;
    }
    if (status == TW_OK) status = twi_get(memory, &values, total, sizeof *values, "weights");
    if (status == TW_OK) status = twi_get(memory, &scratch, largest, store->real_size, "weights");
    if (status == TW_OK) status = read_entries(f, values);
    if (status == TW_OK) status = write_entries(f, values, scratch);
    twi_put(memory, scratch);
    twi_put(memory, values);
    twi_put(memory, misfits);
    twi_put(memory, f->entry);
    return status;
}

tw_status tw_model_load(tw_model *model, const char *path, const tw_load_options *options) {
    if (!model || !path) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_load: model or path is NULL");
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_model_load: %s: build the model first (tw_model_build)", path);
    tw_load_options chosen;
    TWI_TRY(twi_options_read(&chosen, sizeof chosen, options, "tw_model_load"));
    twi_tensor_file file;
    TWI_TRY(twi_tensor_file_open(&file, model->context->memory, path));
    fitting f = {.file = &file, .model = model};
    tw_status status = load(&f, chosen.partial);
    twi_tensor_file_close(&file);
    return status;
}

/* Whole models: a safetensors file of the weights whose metadata also say what network they belong to and what using it
 * takes. The graph's text is in graph_write.c and graph_read.c, the tensors are in model_tensors.c. */
#include "base/options.h"
#include "graph_text.h"
#include "json_writer.h"
#include "model_tensors.h"
#include <talweg/io.h>

#include <string.h>

enum { VERSION = 1 };

static const char version_key[] = "talweg.version", graph_key[] = "talweg.graph",
                  normalization_key[] = "talweg.normalization", classes_key[] = "talweg.class_names";

/* How bytes become numbers before they are normalised: there is one way so far. */
static const char scale[] = "u8/255";

/* ---- saving ---- */

static void write_floats(twi_text *text, const char *key, const float *values, int count) {
    twi_text_add(text, ",\"%s\":[", key);
    for (int i = 0; i < count; i++) twi_text_add(text, i ? ",%.9g" : "%.9g", (double)values[i]);
    twi_text_add(text, "]");
}

static tw_status write_normalization(twi_text *text, const tw_model *model, const bool *needed) {
    const tw_normalization *n = &model->normalization;
    (void)needed;
    if (!n->channels) return TW_OK;
    twi_text_add(text, "{\"scale\":\"%s\"", scale);
    write_floats(text, "mean", n->mean, n->channels);
    write_floats(text, "deviation", n->deviation, n->channels);
    twi_text_add(text, "}");
    return TW_OK;
}

static tw_status write_classes(twi_text *text, const tw_model *model, const bool *needed) {
    (void)needed;
    for (int i = 0; i < model->class_count; i++) {
        twi_text_add(text, i ? "," : "[");
        twi_json_add_string(text, model->class_name[i], "");
    }
    if (model->class_count) twi_text_add(text, "]");
    return TW_OK;
}

static tw_status write_version(twi_text *text, const tw_model *model, const bool *needed) {
    (void)model;
    (void)needed;
    twi_text_add(text, "%d", VERSION);
    return TW_OK;
}

/* What the metadata hold; what writes nothing is left out. */
static const struct part {
    const char *key;
    tw_status (*write)(twi_text *text, const tw_model *model, const bool *needed);
} parts[] = {
    {version_key, write_version},
    {graph_key, twi_graph_write},
    {normalization_key, write_normalization},
    {classes_key, write_classes},
};

static tw_status add_part(twi_text *metadata, const struct part *part, const tw_model *model, const bool *needed) {
    twi_text text;
    char *taken;
    twi_text_init(&text, metadata->memory);
    tw_status status = part->write(&text, model, needed);
    if (status) {
        twi_text_free(&text);
        return status;
    }
    TWI_TRY(twi_text_take(&text, &taken));
    if (*taken) twi_metadata_add(metadata, part->key, taken);
    twi_put(metadata->memory, taken);
    return TW_OK;
}

static tw_status make_metadata(const tw_model *model, const bool *needed, char **out) {
    twi_text metadata;
    *out = NULL;
    twi_text_init(&metadata, model->context->memory);
    void *before = twi_plain_numbers_enter();
    tw_status status = TW_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && status == TW_OK; i++)
        status = add_part(&metadata, &parts[i], model, needed);
    twi_plain_numbers_leave(before);
    if (status == TW_OK) return twi_text_take(&metadata, out);
    twi_text_free(&metadata);
    return status;
}

/* Leaves only what the output is made from. */
static void keep_needed(twi_model_tensors *list, const bool *needed) {
    const twi_graph *graph = &list->model->graph;
    int kept = 0;
    for (int t = 0; t < list->count; t++) {
        const char *name = list->model->store.parameter[list->tensor[t].parameter].name;
        if (needed[twi_graph_find(graph, name)->id]) list->tensor[kept++] = list->tensor[t];
    }
    list->count = kept;
}

static tw_status save(const tw_model *model, const char *path, bool *needed) {
    twi_model_tensors list;
    char *metadata = NULL;
    twi_graph_mark_needed(&model->graph, model->output, needed);
    TWI_TRY(twi_model_tensors_list(&list, model, NULL, (twi_moments){0}));
    keep_needed(&list, needed);
    tw_status status = make_metadata(model, needed, &metadata);
    if (status) status = twi_fail_within(status, "%s", path);
    if (status == TW_OK) status = twi_model_tensors_save(&list, metadata, path);
    twi_put(model->context->memory, metadata);
    twi_model_tensors_free(&list);
    return status;
}

tw_status tw_model_save_whole(const tw_model *model, const char *path) {
    if (!model || !path) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_save_whole: model or path is NULL");
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_model_save_whole: %s: the model is not built yet", path);
    twi_memory *memory = model->context->memory;
    bool *needed;
    TWI_TRY(twi_get(memory, &needed, (size_t)model->graph.value_count, sizeof *needed, "values of the output"));
    tw_status status = save(model, path, needed);
    twi_put(memory, needed);
    return status;
}

/* ---- opening ---- */

/* A reader over a part of the metadata; false: the file does not have it. */
static bool begin(twi_json *json, const twi_tensor_file *file, const char *key) {
    const char *text = twi_tensor_file_find(file, key);
    if (text) *json = (twi_json){text, text + strlen(text), file->path, key, NULL};
    return text != NULL;
}

static tw_status check_version(const twi_tensor_file *file) {
    twi_json json;
    uint64_t version;
    if (!begin(&json, file, version_key))
        return TWI_FAIL(
            TW_ERROR_FORMAT,
            "%s: holds weights, but no graph they belong to: build the model and use tw_model_load (of a checkpoint: "
            "tw_trainer_load), or save with tw_model_save_whole",
            file->path);
    TWI_TRY(twi_json_whole(&json, &version));
    if (!twi_json_at_end(&json)) return twi_json_fail(&json, "the end");
    if (version < 1 || version > VERSION)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED,
                        "%s: is a model file of version %llu; this library reads version %d: use a newer one",
                        file->path, (unsigned long long)version, VERSION);
    return TW_OK;
}

static tw_status read_graph(tw_model *model, const twi_tensor_file *file, tw_value **output) {
    twi_json json;
    if (!begin(&json, file, graph_key))
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: '%s' is missing from its metadata", file->path, graph_key);
    return twi_graph_read(&json, model, output);
}

typedef struct float_list {
    float *values;
    int count;
} float_list;

static tw_status read_number(twi_json *json, void *self) {
    float_list *list = self;
    if (list->count == TW_MAX_CHANNELS) return twi_json_fail(json, "at most 16 channels before this");
    return twi_json_float(json, &list->values[list->count++]);
}

typedef struct recipe_reader {
    tw_normalization normalization;
    int deviations;
} recipe_reader;

static tw_status read_scale(twi_json *json, void *self) {
    char text[16];
    (void)self;
    TWI_TRY(twi_json_string(json, text, sizeof text));
    return strcmp(text, scale) == 0 ? TW_OK : twi_json_fail(json, "the scale 'u8/255' before this");
}

static tw_status read_mean(twi_json *json, void *self) {
    recipe_reader *r = self;
    float_list list = {r->normalization.mean, 0};
    TWI_TRY(twi_json_array(json, read_number, &list));
    r->normalization.channels = list.count;
    return TW_OK;
}

static tw_status read_deviation(twi_json *json, void *self) {
    recipe_reader *r = self;
    float_list list = {r->normalization.deviation, 0};
    TWI_TRY(twi_json_array(json, read_number, &list));
    r->deviations = list.count;
    return TW_OK;
}

static tw_status read_normalization(tw_model *model, const twi_tensor_file *file) {
    static const twi_json_member members[] = {
        {"scale", read_scale, false}, {"mean", read_mean, false}, {"deviation", read_deviation, false}};
    twi_json json;
    recipe_reader r = {0};
    if (!begin(&json, file, normalization_key)) return TW_OK;
    TWI_TRY(twi_json_object(&json, members, 3, &r));
    if (!twi_json_at_end(&json)) return twi_json_fail(&json, "the end");
    if (r.normalization.channels != r.deviations || !r.deviations)
        return twi_json_fail(&json, "as many deviations as means, and at least one, before this");
    tw_status status = tw_model_set_normalization(model, &r.normalization);
    return status ? twi_fail_within(status, "%s: %s", file->path, normalization_key) : TW_OK;
}

/* Names as they are read: their text one after the other, each ended by 0. */
typedef struct class_reader {
    char *text, *end;
    int count;
} class_reader;

static tw_status read_class(twi_json *json, void *self) {
    class_reader *r = self;
    TWI_TRY(twi_json_string(json, r->text, (size_t)(r->end - r->text)));
    r->text += strlen(r->text) + 1;
    r->count++;
    return TW_OK;
}

static tw_status set_classes(tw_model *model, const char *text, int count) {
    const char **names;
    TWI_TRY(twi_get(model->context->memory, &names, (size_t)count, sizeof *names, "class names"));
    for (int i = 0; i < count; i++, text += strlen(text) + 1) names[i] = text;
    tw_status status = tw_model_set_class_names(model, names, count);
    twi_put(model->context->memory, names);
    return status;
}

static tw_status read_classes(tw_model *model, const twi_tensor_file *file) {
    twi_json json;
    char *text;
    if (!begin(&json, file, classes_key)) return TW_OK;
    const size_t room = strlen(json.at) + 1;
    TWI_TRY(twi_get(model->context->memory, &text, room, 1, "class names"));
    class_reader r = {text, text + room, 0};
    tw_status status = twi_json_array(&json, read_class, &r);
    if (status == TW_OK && !twi_json_at_end(&json)) status = twi_json_fail(&json, "the end");
    if (status == TW_OK) {
        status = set_classes(model, text, r.count);
        if (status) status = twi_fail_within(status, "%s: %s", file->path, classes_key);
    }
    twi_put(model->context->memory, text);
    return status;
}

/* The tensors are held against the graph, and read, before memory is taken on the graph's word. */
static tw_status read_tensors(tw_model *model, const twi_tensor_file *file, tw_value *output,
                              const tw_model_options *options) {
    twi_model_tensors list;
    twi_model_values values;
    TWI_TRY(twi_model_tensors_list(&list, model, NULL, (twi_moments){0}));
    tw_status status = twi_model_values_read(&values, &list, file, false, "its graph and its tensors disagree");
    if (status == TW_OK) status = twi_model_build_to_fill(model, output, options);
    if (status == TW_OK) status = twi_model_values_write(&values, &list, model);
    twi_model_values_free(&values, &list);
    twi_model_tensors_free(&list);
    return status;
}

static tw_status fill(tw_model *model, const twi_tensor_file *file, const tw_model_options *options) {
    tw_value *output;
    TWI_TRY(check_version(file));
    TWI_TRY(read_graph(model, file, &output));
    TWI_TRY(read_tensors(model, file, output, options));
    TWI_TRY(read_normalization(model, file));
    return read_classes(model, file);
}

tw_status tw_model_open(tw_model **out, tw_context *context, const char *path, const tw_model_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_open: out is NULL");
    *out = NULL;
    if (!context || !path) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_open: context or path is NULL");
    twi_tensor_file file;
    tw_model *model;
    TWI_TRY(twi_tensor_file_open(&file, context->memory, path));
    tw_status status = tw_model_create(&model, context);
    if (status == TW_OK) {
        void *before = twi_plain_numbers_enter();
        status = fill(model, &file, options);
        twi_plain_numbers_leave(before);
        if (status)
            tw_model_destroy(model);
        else
            *out = model;
    }
    twi_tensor_file_close(&file);
    return status;
}

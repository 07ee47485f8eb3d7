/* Models as objects: creating, building, parameters by name. Layers that fill a model are in src/layers. */
#include "program.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

tw_status tw_model_create(tw_model **out, tw_context *context) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_create: out is NULL");
    *out = NULL;
    if (!context) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_create: context is NULL");
    tw_model *model;
    TWI_TRY(twi_get(context->memory, &model, 1, sizeof *model, "model"));
    model->context = context;
    twi_graph_init(&model->graph, context->memory, context->registry);
    twi_store_init(&model->store, context, context->registry->real_size);
    *out = model;
    return TW_OK;
}

void tw_model_destroy(tw_model *model) {
    if (!model) return;
    tw_context *context = model->context;
    context->backend->put(context, model->arena);
    context->backend->put(context, model->scratch);
    twi_flights_free(&model->flights, context);
    twi_store_free(&model->store);
    twi_graph_free(&model->graph);
    twi_put(context->memory, model->dump);
    twi_put(context->memory, model->class_name);
    twi_put(context->memory, model);
}

/* initialize: or else all parameters are to be written next. */
static tw_status build(tw_model *model, tw_value *output, const tw_model_options *options, bool initialize) {
    if (!model) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_build: model is NULL");
    tw_model_options chosen;
    TWI_TRY(twi_options_read(&chosen, sizeof chosen, options, "tw_model_build"));
    TWI_TRY(twi_graph_status(&model->graph));
    if (model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_model_build: the model is built already");
    if (!output)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_build: output is NULL; pass the value the model computes");
    if (!twi_graph_owns(&model->graph, output))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_build: output '%s' belongs to another model", output->name);
    if (model->graph.scope_depth)
        return TWI_FAIL(TW_ERROR_STATE, "tw_model_build: scope '%s' is still open; end it with tw_scope_end",
                        model->graph.scope);
    tw_status status = twi_store_build(&model->store);
    if (status == TW_OK && initialize) status = twi_store_initialize(&model->store, chosen.seed);
    if (status) { /* leave no half-built store: the next try starts afresh */
        twi_store_drop(&model->store);
        return status;
    }
    model->output = output;
    model->seed = chosen.seed;
    model->built = true;
    return TW_OK;
}

tw_status tw_model_build(tw_model *model, tw_value *output, const tw_model_options *options) {
    return build(model, output, options, true);
}

tw_status twi_model_build_to_fill(tw_model *model, tw_value *output, const tw_model_options *options) {
    return build(model, output, options, false);
}

tw_status twi_model_forget_programs(tw_model *model) {
    if (model->programs) return TW_OK;
    twi_model_trim(model);
    twi_store_drop(&model->store);
    return twi_store_build(&model->store);
}

tw_value *tw_model_get_output(const tw_model *model) { return model ? model->output : NULL; }
uint64_t tw_model_get_seed(const tw_model *model) { return model ? model->seed : 0; }
tw_context *tw_model_get_context(const tw_model *model) { return model ? model->context : NULL; }
tw_value *tw_model_find(const tw_model *model, const char *name) {
    if (!model || !name) return NULL;
    tw_value *value = twi_graph_find(&model->graph, name);
    if (value) return value;
    int shared = twi_store_find(&model->store, name);
    return shared < 0 ? NULL : twi_graph_find(&model->graph, model->store.parameter[shared].name);
}
uint64_t tw_model_get_updates(const tw_model *model) { return model ? model->store.updates : 0; }
uint64_t tw_model_get_attempts(const tw_model *model) { return model ? model->store.attempts : 0; }
double tw_model_get_learning_rate(const tw_model *model) { return model ? model->store.learning_rate : 0; }

tw_value *tw_model_get_input(const tw_model *model) {
    for (int i = 0; model && i < model->graph.value_count; i++)
        if (model->graph.value[i]->kind == TWI_VALUE_INPUT) return model->graph.value[i];
    return NULL;
}

const char *tw_value_get_name(const tw_value *value) { return value ? value->name : ""; }
int tw_value_get_rank(const tw_value *value) { return value ? value->shape.rank : 0; }

int64_t tw_value_get_dim(const tw_value *value, int axis) {
    if (!value || axis < 0 || axis >= value->shape.rank || (axis == 0 && value->batched)) return 0;
    return value->shape.dim[axis];
}

void tw_scope_begin(tw_model *model, const char *name) {
    if (model) twi_graph_scope_begin(&model->graph, name);
}

void tw_scope_end(tw_model *model) {
    if (model) twi_graph_scope_end(&model->graph);
}

tw_value *twi_model_parameter(tw_model *model, const char *layer, const char *suffix, const twi_parameter *record) {
    twi_graph *graph = &model->graph;
    if (graph->status) return NULL;
    char name[sizeof graph->name + 24];
    snprintf(name, sizeof name, "%s%s%s", layer, suffix ? "." : "", suffix ? suffix : "");
    if (record->init.kind < TW_INIT_DEFAULT || record->init.kind > TW_INIT_XAVIER_NORMAL)
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT, "parameter '%s': init kind %d is none of tw_init_kind",
                                              name, (int)record->init.kind));
    if (tw_model_find(model, name))
        return twi_graph_fail(
            graph, TWI_FAIL(TW_ERROR_ARGUMENT, "parameter '%s' exists already; give the layer another name", name));
    tw_value *value = twi_graph_value(graph, name, record->learned ? TWI_VALUE_PARAMETER : TWI_VALUE_BUFFER, TWI_ACC,
                                      false, &record->shape);
    if (!value) return NULL;
    twi_parameter named = *record;
    named.name = value->name;
    tw_status status = twi_store_add(&model->store, &named, &value->parameter);
    return status ? twi_graph_fail(graph, status) : value;
}

tw_value *twi_model_tie(tw_model *model, const char *layer, const char *owner, const char *suffix,
                        const twi_parameter *record) {
    if (!owner) return twi_model_parameter(model, layer, suffix, record);
    twi_graph *graph = &model->graph;
    if (graph->status) return NULL;
    char name[sizeof graph->name + 24], shapes[2][TWI_SHAPE_TEXT];
    snprintf(name, sizeof name, "%s.%s", owner, suffix);
    tw_value *value = tw_model_find(model, name);
    if (!value || value->kind != TWI_VALUE_PARAMETER)
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT,
                                              "'%s': tied to '%.200s', but the model has no parameter '%.200s' yet; "
                                              "name an earlier layer with its scopes, and set no_bias if it has none",
                                              layer, owner, name));
    if (!twi_shape_equal(&value->shape, &record->shape))
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_SHAPE,
                                              "'%s': tied to '%s', but its %s would be %s and '%s' is %s; "
                                              "tied layers need the same sizes",
                                              layer, owner, suffix, twi_shape_text(&record->shape, shapes[0]),
                                              value->name, twi_shape_text(&value->shape, shapes[1])));
    if (record->init.kind != TW_INIT_DEFAULT)
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT,
                                              "'%s': tied to '%s', so its %s has no initial values of its own; "
                                              "give them to '%s'",
                                              layer, owner, suffix, owner));
    snprintf(name, sizeof name, "%s.%s", layer, suffix);
    tw_status status = twi_store_add_alias(&model->store, name, value->parameter);
    return status ? twi_graph_fail(graph, status) : value;
}

int tw_model_count_parameters(const tw_model *model) { return model ? model->store.count : 0; }

int64_t tw_model_count_weights(const tw_model *model) {
    int64_t total = 0;
    for (int i = 0; model && i < model->store.count; i++)
        if (model->store.parameter[i].learned) total += twi_shape_count(&model->store.parameter[i].shape);
    return total;
}

tw_status tw_model_get_parameter(const tw_model *model, int index, tw_parameter *out) {
    if (!model || !out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_get_parameter: model or out is NULL");
    if (index < 0 || index >= model->store.count)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_get_parameter: index %d is outside 0 .. %d", index,
                        model->store.count - 1);
    const twi_parameter *parameter = &model->store.parameter[index];
    memset(out, 0, sizeof *out);
    out->name = parameter->name;
    out->rank = parameter->shape.rank;
    memcpy(out->dims, parameter->shape.dim, sizeof out->dims);
    out->learned = parameter->learned;
    out->trainable = parameter->trainable;
    out->decayed = parameter->decayed;
    return TW_OK;
}

tw_status twi_model_refuse_name(const tw_model *model, const char *name, const char *function) {
    enum { MOST = 4 };
    const twi_store *store = &model->store;
    char others[MOST * (sizeof model->graph.name + 2) + 1] = "";
    int found = 0;
    size_t length = 0;
    for (int i = 0; i < store->count && *name; i++) {
        const char *other = store->parameter[i].name;
        if (strncmp(other, name, strlen(name)) != 0) continue;
        if (found++ < MOST)
            length += (size_t)snprintf(others + length, sizeof others - length, "%s%.*s", length ? ", " : "",
                                       (int)sizeof model->graph.name, other);
    }
    return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: the model has no parameter '%s'%s%s%s", function, name,
                    !found       ? ""
                    : found == 1 ? "; there is "
                                 : "; there are ",
                    others, found > MOST ? ", ..." : "");
}

/* The index of a named parameter whose size must be `count`. */
static tw_status locate(const tw_model *model, const char *name, const float *values, int64_t count,
                        const char *function, int *index) {
    if (!model || !name || !values) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: model, name or values is NULL", function);
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "%s: the model is not built yet", function);
    *index = twi_store_find(&model->store, name);
    if (*index < 0) return twi_model_refuse_name(model, name, function);
    int64_t own = twi_shape_count(&model->store.parameter[*index].shape);
    if (own != count)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: '%s' has %lld elements, got %lld", function, name, (long long)own,
                        (long long)count);
    return TW_OK;
}

tw_status tw_parameter_read(const tw_model *model, const char *name, float *values, int64_t count) {
    int index;
    TWI_TRY(locate(model, name, values, count, "tw_parameter_read", &index));
    return twi_store_read(&model->store, twi_store_values(&model->store, index), index, values);
}

tw_status tw_parameter_write(tw_model *model, const char *name, const float *values, int64_t count) {
    int index;
    TWI_TRY(locate(model, name, values, count, "tw_parameter_write", &index));
    return twi_store_write(&model->store, twi_store_values(&model->store, index), index, values);
}

tw_status tw_model_set_trainable(tw_model *model, const char *prefix, bool trainable) {
    if (!model || !prefix) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_set_trainable: model or prefix is NULL");
    int hits = 0;
    for (int i = 0; i < model->store.count; i++) {
        twi_parameter *parameter = &model->store.parameter[i];
        if (!parameter->learned || strncmp(parameter->name, prefix, strlen(prefix)) != 0) continue;
        parameter->trainable = trainable;
        hits++;
    }
    for (int i = 0; i < model->store.alias_count; i++) {
        const twi_alias *alias = &model->store.alias[i];
        if (strncmp(alias->name, prefix, strlen(prefix)) != 0) continue;
        model->store.parameter[alias->parameter].trainable = trainable;
        hits++;
    }
    return hits ? TW_OK
                : TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_set_trainable: no parameter's name begins with '%s'", prefix);
}

/* Does a node of an op that can do without statistics over the batch do so? NULL: it is none of those. */
static bool *frozen_of(const twi_node *node) {
    return node->op->frozen ? (bool *)((char *)node->attrs + node->op->frozen->offset) : NULL;
}

tw_status tw_model_set_statistics_frozen(tw_model *model, const char *prefix, bool frozen) {
    if (!model || !prefix)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_set_statistics_frozen: model or prefix is NULL");
    int hits = 0;
    for (int i = 0; i < model->graph.node_count; i++) {
        const twi_node *node = model->graph.node[i];
        if (!frozen_of(node) || strncmp(node->name, prefix, strlen(prefix)) != 0) continue;
        *frozen_of(node) = frozen;
        hits++;
    }
    return hits
               ? TW_OK
               : TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_set_statistics_frozen: no norm's name begins with '%s'", prefix);
}

bool twi_model_has_batch_statistics(const tw_model *model) {
    for (int i = 0; i < model->graph.node_count; i++) {
        const bool *frozen = frozen_of(model->graph.node[i]);
        if (frozen && !*frozen) return true;
    }
    return false;
}

const char *tw_model_dump(tw_model *model) {
    if (!model) return NULL;
    twi_text text;
    char *taken;
    twi_text_init(&text, model->context->memory);
    twi_graph_dump(&model->graph, &text);
    if (twi_text_take(&text, &taken)) return NULL;
    twi_put(model->context->memory, model->dump);
    return model->dump = taken;
}

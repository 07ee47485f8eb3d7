/* Graphs from JSON: values and nodes are made as they are read, each checked before it is believed. Writing is in
 * graph_write.c. */
#include "attr_text.h"
#include "graph_text.h"

#include <string.h>

enum {
    NAME_ROOM = 2 * TWI_SCOPE_TEXT + 24, /* what the longest name of a layer's parameter takes */
    NODE_NAME = 2 * TWI_SCOPE_TEXT + 8,  /* a node's, which the names of its outputs go beyond */
    MOST = 16384                         /* values, and nodes: names are looked up one by one */
};

typedef struct graph_reader {
    tw_model *model;
    tw_value *output;
    int outputs;
    /* the value, alias or node under way */
    char name[NAME_ROOM], other[NAME_ROOM]; /* "of", or an input's name */
    int kind, type;                         /* twi_value_kind, twi_store_kind */
    twi_parameter record;                   /* its shape is any value's */
    const twi_op *op;
    void *attrs;
    tw_value *input[TWI_MAX_INPUTS];
    int input_count;
} graph_reader;

static tw_status refuse(const twi_json *json, const char *name, const char *problem) {
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: %s: '%.200s' %s", json->where, json->part, name, problem);
}

static tw_status read_name(twi_json *json, void *self) {
    graph_reader *r = self;
    TWI_TRY(twi_json_string(json, r->name, sizeof r->name));
    if (!*r->name) return twi_json_fail(json, "a name that is not empty before this");
    json->item = r->name;
    return TW_OK;
}

static tw_status check_new(const twi_json *json, const graph_reader *r) {
    return tw_model_find(r->model, r->name) ? refuse(json, r->name, "is there twice; names are unique") : TW_OK;
}

/* The value of that name, which must be there already: so there are no cycles. */
static tw_status find(const twi_json *json, const graph_reader *r, const char *name, tw_value **out) {
    *out = tw_model_find(r->model, name);
    return *out ? TW_OK : refuse(json, name, "is used, but nothing before it makes a value of that name");
}

/* What the graph says to the value or node just added. */
static tw_status made(const twi_json *json, const graph_reader *r) {
    tw_status status = twi_graph_status(&r->model->graph);
    return status ? twi_fail_within(status, "%s: %s", json->where, json->part) : TW_OK;
}

/* ---- values ---- */

typedef struct word {
    const char *text;
    int meaning;
} word;

static tw_status read_word(twi_json *json, const word *words, int count, int *out) {
    char text[16];
    TWI_TRY(twi_json_string(json, text, sizeof text));
    for (int i = 0; i < count; i++)
        if (strcmp(words[i].text, text) == 0) return *out = words[i].meaning, TW_OK;
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: %s, '%.200s': '%s' is none of '%s' and '%s'", json->where, json->part,
                    json->item ? json->item : "", text, words[0].text, words[count - 1].text);
}

static tw_status read_kind(twi_json *json, void *self) {
    static const word kinds[] = {
        {"input", TWI_VALUE_INPUT}, {"parameter", TWI_VALUE_PARAMETER}, {"buffer", TWI_VALUE_BUFFER}};
    return read_word(json, kinds, 3, &((graph_reader *)self)->kind);
}

static tw_status read_type(twi_json *json, void *self) {
    static const word types[] = {{"real", TWI_REAL}, {"labels", TWI_I32}};
    return read_word(json, types, 2, &((graph_reader *)self)->type);
}

static tw_status read_dim(twi_json *json, void *self) {
    twi_shape *shape = &((graph_reader *)self)->record.shape;
    uint64_t dim;
    TWI_TRY(twi_json_whole(json, &dim));
    if (dim < 1 || shape->rank == TW_MAX_RANK)
        return twi_json_fail(json, "at most 6 sizes, each at least 1, before this");
    shape->dim[shape->rank++] = (int64_t)dim;
    return TW_OK;
}

static tw_status read_shape(twi_json *json, void *self) { return twi_json_array(json, read_dim, self); }

static tw_status read_trainable(twi_json *json, void *self) {
    return twi_json_bool(json, &((graph_reader *)self)->record.trainable);
}

static tw_status read_decayed(twi_json *json, void *self) {
    return twi_json_bool(json, &((graph_reader *)self)->record.decayed);
}

static tw_status read_counter(twi_json *json, void *self) {
    return twi_json_bool(json, &((graph_reader *)self)->record.counter);
}

/* Nothing has checked yet that its elements can be counted. */
static bool is_one_number(const twi_shape *shape) {
    for (int axis = 0; axis < shape->rank; axis++)
        if (shape->dim[axis] != 1) return false;
    return true;
}

static tw_status make_value(const twi_json *json, graph_reader *r) {
    twi_graph *graph = &r->model->graph;
    twi_shape *shape = &r->record.shape;
    TWI_TRY(check_new(json, r));
    if (graph->value_count == MOST) return refuse(json, r->name, "is one value too many; 16384 are possible");
    if (r->kind == TWI_VALUE_INPUT) {
        if (shape->rank == TW_MAX_RANK) return refuse(json, r->name, "has more axes than an input can have");
        memmove(shape->dim + 1, shape->dim, (size_t)shape->rank++ * sizeof *shape->dim);
        shape->dim[0] = 1;
        twi_graph_value(graph, r->name, TWI_VALUE_INPUT, r->type, true, shape);
        return made(json, r);
    }
    if (r->record.counter && (r->kind == TWI_VALUE_PARAMETER || !is_one_number(shape)))
        return refuse(json, r->name, "is a counter, but no buffer of one number");
    r->record.learned = r->kind == TWI_VALUE_PARAMETER;
    twi_model_parameter(r->model, r->name, NULL, &r->record);
    return made(json, r);
}

static tw_status read_value(twi_json *json, void *self) {
    static const twi_json_member members[] = {
        {"name", read_name, false},      {"kind", read_kind, false},          {"shape", read_shape, false},
        {"type", read_type, true},       {"trainable", read_trainable, true}, {"decayed", read_decayed, true},
        {"counter", read_counter, true},
    };
    graph_reader *r = self;
    r->record = (twi_parameter){0};
    r->type = TWI_REAL;
    TWI_TRY(twi_json_object(json, members, sizeof members / sizeof *members, r));
    json->item = NULL;
    return make_value(json, r);
}

/* ---- aliases ---- */

static tw_status read_of(twi_json *json, void *self) {
    graph_reader *r = self;
    return twi_json_string(json, r->other, sizeof r->other);
}

static tw_status read_alias(twi_json *json, void *self) {
    static const twi_json_member members[] = {{"name", read_name, false}, {"of", read_of, false}};
    graph_reader *r = self;
    tw_value *of;
    TWI_TRY(twi_json_object(json, members, 2, r));
    json->item = NULL;
    TWI_TRY(check_new(json, r));
    TWI_TRY(find(json, r, r->other, &of));
    if (of->kind != TWI_VALUE_PARAMETER) return refuse(json, r->other, "has an alias, but is no parameter");
    if (r->model->store.alias_count == MOST) return refuse(json, r->name, "is one alias too many; 16384 are possible");
    return twi_store_add_alias(&r->model->store, r->name, of->parameter);
}

/* ---- nodes ---- */

static tw_status read_op(twi_json *json, void *self) {
    graph_reader *r = self;
    char name[64];
    TWI_TRY(twi_json_string(json, name, sizeof name));
    r->op = twi_registry_find(r->model->graph.registry, name);
    if (!r->op || !r->op->infer)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED,
                        "%s: %s: there is no op '%s' in this context; register it before the file is opened",
                        json->where, json->part, name);
    TWI_TRY(twi_get(r->model->context->memory, &r->attrs, 1, r->op->attr_size, "attributes"));
    twi_attrs_preset(r->op, r->attrs);
    return TW_OK;
}

static tw_status read_input(twi_json *json, void *self) {
    graph_reader *r = self;
    TWI_TRY(twi_json_string(json, r->other, sizeof r->other));
    if (r->input_count == TWI_MAX_INPUTS) return twi_json_fail(json, "at most 8 inputs before this");
    return find(json, r, r->other, &r->input[r->input_count++]);
}

static tw_status read_inputs(twi_json *json, void *self) { return twi_json_array(json, read_input, self); }

static tw_status read_attributes(twi_json *json, void *self) {
    graph_reader *r = self;
    if (!r->op) return twi_json_fail(json, "'op' to stand before 'attributes'");
    return twi_attrs_read(json, r->op, r->attrs);
}

static tw_status make_node(const twi_json *json, graph_reader *r) {
    twi_graph *graph = &r->model->graph;
    if (strlen(r->name) >= NODE_NAME) return refuse(json, r->name, "is longer than a node's name can be");
    TWI_TRY(check_new(json, r));
    if (graph->node_count == MOST) return refuse(json, r->name, "is one node too many; 16384 are possible");
    (void)twi_graph_node(graph, r->op->name, r->name, r->input_count, r->input, r->attrs);
    TWI_TRY(made(json, r));
    const twi_node *node = graph->node[graph->node_count - 1];
    for (int i = 1; i < node->output_count; i++) /* "name:1" is not a name that was asked for */
        if (twi_graph_find(graph, node->output[i]->name) != node->output[i])
            return refuse(json, node->output[i]->name, "is there twice; names are unique");
    return TW_OK;
}

static tw_status read_node(twi_json *json, void *self) {
    static const twi_json_member members[] = {
        {"op", read_op, false},
        {"name", read_name, false},
        {"inputs", read_inputs, false},
        {"attributes", read_attributes, true},
    };
    graph_reader *r = self;
    r->op = NULL;
    r->input_count = 0;
    tw_status status = twi_json_object(json, members, sizeof members / sizeof *members, r);
    json->item = NULL;
    if (status == TW_OK) status = make_node(json, r);
    twi_put(r->model->context->memory, r->attrs);
    r->attrs = NULL;
    return status;
}

/* ---- the whole ---- */

static tw_status read_values(twi_json *json, void *self) { return twi_json_array(json, read_value, self); }
static tw_status read_aliases(twi_json *json, void *self) { return twi_json_array(json, read_alias, self); }
static tw_status read_nodes(twi_json *json, void *self) { return twi_json_array(json, read_node, self); }

static tw_status read_output(twi_json *json, void *self) {
    graph_reader *r = self;
    TWI_TRY(twi_json_string(json, r->other, sizeof r->other));
    if (r->outputs++) return refuse(json, r->other, "is a second output; a model has one");
    return find(json, r, r->other, &r->output);
}

static tw_status read_outputs(twi_json *json, void *self) { return twi_json_array(json, read_output, self); }

tw_status twi_graph_read(twi_json *json, tw_model *model, tw_value **output) {
    static const twi_json_member members[] = {
        {"values", read_values, false},
        {"aliases", read_aliases, true},
        {"nodes", read_nodes, false},
        {"outputs", read_outputs, false},
    };
    graph_reader r = {.model = model};
    TWI_TRY(twi_json_object(json, members, sizeof members / sizeof *members, &r));
    if (!twi_json_at_end(json)) return twi_json_fail(json, "the end");
    if (!r.output) return twi_json_fail(json, "an output before this");
    *output = r.output;
    return TW_OK;
}

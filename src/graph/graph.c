/* Making values and nodes, names and scopes, sticky failures. Lowering is in src/program. */
#include "graph.h"

#include <stdio.h>
#include <string.h>

void twi_graph_init(twi_graph *graph, twi_memory *memory, const twi_registry *registry) {
    memset(graph, 0, sizeof *graph);
    graph->memory = memory;
    graph->registry = registry;
}

void twi_graph_cut(twi_graph *graph, int values, int nodes) {
    while (graph->value_count > values) twi_put(graph->memory, graph->value[--graph->value_count]);
    while (graph->node_count > nodes) twi_put(graph->memory, graph->node[--graph->node_count]);
    graph->status = TW_OK;
}

void twi_graph_free(twi_graph *graph) {
    twi_graph_cut(graph, 0, 0);
    twi_put(graph->memory, graph->value);
    twi_put(graph->memory, graph->node);
    memset(graph, 0, sizeof *graph);
}

tw_value *twi_graph_fail(twi_graph *graph, tw_status status) {
    if (graph->status == TW_OK) {
        graph->status = status;
        snprintf(graph->failure, sizeof graph->failure, "%s", tw_last_error());
    }
    return NULL;
}

tw_status twi_graph_status(const twi_graph *graph) {
    return graph->status ? TWI_FAIL(graph->status, "%s", graph->failure) : TW_OK;
}

void twi_graph_scope_begin(twi_graph *graph, const char *name) {
    size_t length = strlen(graph->scope);
    if (!name || !*name) {
        (void)twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT, "scope: a scope needs a name"));
    } else if (graph->scope_depth == TWI_SCOPE_DEPTH || length + strlen(name) + 2 > sizeof graph->scope) {
        (void)twi_graph_fail(graph,
                             TWI_FAIL(TW_ERROR_ARGUMENT,
                                      "scope '%.40s': nested deeper than %d or longer than %d characters in all; "
                                      "end scopes with tw_scope_end",
                                      name, TWI_SCOPE_DEPTH, TWI_SCOPE_TEXT - 1));
    } else {
        graph->scope_length[graph->scope_depth++] = (int)length;
        snprintf(graph->scope + length, sizeof graph->scope - length, "%s.", name);
    }
}

void twi_graph_scope_end(twi_graph *graph) {
    if (graph->scope_depth == 0)
        (void)twi_graph_fail(graph, TWI_FAIL(TW_ERROR_STATE, "tw_scope_end without a matching tw_scope_begin"));
    else
        graph->scope[graph->scope_length[--graph->scope_depth]] = 0;
}

tw_value *twi_graph_find(const twi_graph *graph, const char *name) {
    for (int i = 0; i < graph->value_count; i++)
        if (strcmp(graph->value[i]->name, name) == 0) return graph->value[i];
    return NULL;
}

bool twi_graph_owns(const twi_graph *graph, const tw_value *value) {
    return value->id >= 0 && value->id < graph->value_count && graph->value[value->id] == value;
}

static bool name_taken(const twi_graph *graph, const char *name) {
    size_t length = strlen(name);
    for (int i = 0; i < graph->value_count; i++) { /* a layer's own name is taken once it has a parameter "name.x" */
        const char *other = graph->value[i]->name;
        if (strncmp(other, name, length) == 0 && (other[length] == 0 || other[length] == '.')) return true;
    }
    return false;
}

/* Leaves the name in graph->name. */
static bool numbered_name_taken(twi_graph *graph, const char *base, int number) {
    snprintf(graph->name, sizeof graph->name, "%s%s%d", graph->scope, base, number);
    return name_taken(graph, graph->name);
}

/* Values and nodes copy their names: graph->name only hands one over. */
const char *twi_graph_name(twi_graph *graph, const char *name, const char *base) {
    if (graph->status) return NULL;
    char *full = graph->name;
    if (name) {
        if (!*name)
            return (const char *)twi_graph_fail(
                graph, TWI_FAIL(TW_ERROR_ARGUMENT, "%s: an empty name; leave it NULL for an automatic one", base));
        if (snprintf(full, sizeof graph->name, "%s%s", graph->scope, name) >= (int)sizeof graph->name)
            return (const char *)twi_graph_fail(
                graph, TWI_FAIL(TW_ERROR_ARGUMENT, "name '%.40s...' is longer than %zu characters with its scope", name,
                                sizeof graph->name - 1));
        if (strcmp(full, "__metadata__") == 0)
            return (const char *)twi_graph_fail(
                graph,
                TWI_FAIL(TW_ERROR_ARGUMENT, "name '%s' is what files call something else; choose another", full));
        if (name_taken(graph, full))
            return (const char *)twi_graph_fail(
                graph, TWI_FAIL(TW_ERROR_ARGUMENT,
                                "name '%s' is taken; give each layer a name of its own, or use scopes", full));
        return full;
    }
    /* Numbers are taken from 1 on without gaps, so the first free one is found by halving, not by counting. */
    int taken = 0, free = 1;
    while (numbered_name_taken(graph, base, free)) {
        taken = free;
        free *= 2;
    }
    while (free - taken > 1) {
        int middle = taken + (free - taken) / 2;
        *(numbered_name_taken(graph, base, middle) ? &taken : &free) = middle;
    }
    (void)numbered_name_taken(graph, base, free);
    return full;
}

static tw_status append(twi_graph *graph, void *list, int *count, int *capacity, void *item, const char *what) {
    void ***items = list;
    if (*count == *capacity) {
        int grown = *capacity ? 2 * *capacity : 64;
        TWI_TRY(twi_grow(graph->memory, items, (size_t)grown, sizeof **items, what));
        *capacity = grown;
    }
    (*items)[(*count)++] = item;
    return TW_OK;
}

tw_value *twi_graph_value(twi_graph *graph, const char *name, twi_value_kind kind, twi_store_kind store, bool batched,
                          const twi_shape *shape) {
    if (graph->status || !name) return NULL;
    tw_status status = twi_shape_check(shape, name);
    if (status) return twi_graph_fail(graph, status);
    tw_value *value;
    size_t length = strlen(name) + 1;
    status = twi_get(graph->memory, &value, 1, sizeof *value + length, "graph value");
    if (status) return twi_graph_fail(graph, status);
    status = append(graph, &graph->value, &graph->value_count, &graph->value_capacity, value, "graph values");
    if (status) {
        twi_put(graph->memory, value);
        return twi_graph_fail(graph, status);
    }
    memcpy(value + 1, name, length);
    value->name = (const char *)(value + 1);
    value->id = graph->value_count - 1;
    value->kind = (uint8_t)kind;
    value->store = (uint8_t)store;
    value->batched = batched;
    value->shape = *shape;
    value->parameter = -1;
    return value;
}

void twi_graph_mark_needed(const twi_graph *graph, const tw_value *value, bool *needed) {
    needed[value->id] = true;
    for (int i = graph->node_count - 1; i >= 0; i--) { /* a node comes after those that make its inputs */
        const twi_node *node = graph->node[i];
        bool used = false;
        for (int k = 0; k < node->output_count; k++) used = used || needed[node->output[k]->id];
        for (int k = 0; used && k < node->input_count; k++) needed[node->input[k]->id] = true;
    }
}

void twi_attrs_preset(const twi_op *op, void *attrs) {
    for (int i = 0; i < op->attr_count; i++) {
        const twi_attr *attr = &op->attrs[i];
        char *field = (char *)attrs + attr->offset;
        if (attr->type == TWI_ATTR_INT) *(int32_t *)field = (int32_t)attr->preset;
        if (attr->type == TWI_ATTR_FLOAT) *(float *)field = (float)attr->preset;
        if (attr->type == TWI_ATTR_BOOL) *(bool *)field = attr->preset != 0;
    }
}

tw_status twi_graph_infer(const twi_node *node, int64_t batch, const twi_shape *const inputs[], twi_infer *out) {
    memset(out, 0, sizeof *out);
    out->op = node->op;
    out->name = node->name;
    out->attrs = node->attrs;
    out->input_count = node->input_count;
    out->output_count = node->op->outputs;
    for (int i = 0; i < node->input_count; i++) {
        out->input[i] = *inputs[i];
        out->batched[i] = node->input[i]->batched;
        out->input_store[i] = node->input[i]->store;
        if (out->batched[i] && out->input[i].rank > 0) out->input[i].dim[0] = batch;
    }
    for (int i = 0; i < out->output_count; i++) {
        out->output_store[i] = TWI_REAL;
        out->output_batched[i] = true;
    }
    TWI_TRY(node->op->infer(out));
    for (int i = 0; i < out->output_count; i++) TWI_TRY(twi_shape_check(&out->output[i], node->name));
    return TW_OK;
}

/* A node, its name and its attributes in one block. */
static tw_status make_node(twi_graph *graph, const twi_op *op, const char *name, int input_count,
                           tw_value *const *inputs, const void *attrs, twi_node **out) {
    twi_node *node;
    size_t length = strlen(name) + 1, attrs_at = (sizeof *node + 15) & ~(size_t)15,
           name_at = attrs_at + ((op->attr_size + 15) & ~(size_t)15);
    TWI_TRY(twi_get(graph->memory, &node, 1, name_at + length, "graph node"));
    node->op = op;
    node->attrs = (char *)node + attrs_at;
    node->name = (char *)node + name_at;
    memcpy((char *)node + name_at, name, length);
    if (attrs)
        memcpy(node->attrs, attrs, op->attr_size);
    else
        twi_attrs_preset(op, node->attrs);
    node->id = graph->node_count;
    node->input_count = input_count;
    for (int i = 0; i < input_count; i++) node->input[i] = inputs[i];
    *out = node;
    return TW_OK;
}

/* How many inputs there may be is asked before they are looked at: the caller's array may be shorter than said. */
static tw_status check_inputs(const twi_graph *graph, const twi_op *op, const char *op_name, const char *name,
                              int input_count, tw_value *const *inputs) {
    if (!op || !op->infer)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "'%s': there is no op '%s' in this context", name, op_name);
    if (input_count < op->inputs_min || input_count > op->inputs_max)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s '%s': takes %d to %d inputs, got %d", op_name, name, op->inputs_min,
                        op->inputs_max, input_count);
    for (int i = 0; i < input_count; i++) {
        if (!inputs[i]) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s '%s': input %d is NULL", op_name, name, i);
        if (!twi_graph_owns(graph, inputs[i]))
            return TWI_FAIL(TW_ERROR_ARGUMENT, "%s '%s': input %d, '%s', belongs to another model", op_name, name, i,
                            inputs[i]->name);
    }
    return TW_OK;
}

static tw_status add_node(twi_graph *graph, const char *op_name, const char *name, int input_count,
                          tw_value *const *inputs, const void *attrs, twi_node **out) {
    const twi_op *op = twi_registry_find(graph->registry, op_name);
    TWI_TRY(check_inputs(graph, op, op_name, name, input_count, inputs));
    twi_node *node;
    TWI_TRY(make_node(graph, op, name, input_count, inputs, attrs, &node));
    const twi_shape *shapes[TWI_MAX_INPUTS] = {NULL};
    for (int i = 0; i < input_count; i++) shapes[i] = &inputs[i]->shape;
    twi_infer infer;
    tw_status status = twi_graph_infer(node, 1, shapes, &infer);
    if (status == TW_OK)
        status = append(graph, &graph->node, &graph->node_count, &graph->node_capacity, node, "graph nodes");
    if (status) {
        twi_put(graph->memory, node);
        return status;
    }
    for (int i = 0; i < op->outputs; i++) {
        char output_name[sizeof graph->name + 16];
        snprintf(output_name, sizeof output_name, i ? "%s:%d" : "%s", node->name, i);
        tw_value *value = twi_graph_value(graph, output_name, TWI_VALUE_RESULT, infer.output_store[i],
                                          infer.output_batched[i], &infer.output[i]);
        if (!value) return graph->status;
        value->producer = node;
        value->output = i;
        node->output[node->output_count++] = value;
    }
    *out = node;
    return TW_OK;
}

tw_value *twi_graph_node(twi_graph *graph, const char *op_name, const char *node_name, int input_count,
                         tw_value *const *inputs, const void *attrs) {
    if (graph->status || !node_name) return NULL;
    twi_node *node = NULL;
    tw_status status = add_node(graph, op_name, node_name, input_count, inputs, attrs, &node);
    return status ? twi_graph_fail(graph, status) : node->output[0];
}

void twi_graph_dump(const twi_graph *graph, twi_text *text) {
    char shape[TWI_SHAPE_TEXT];
    for (int i = 0; i < graph->value_count; i++) {
        const tw_value *value = graph->value[i];
        if (value->kind == TWI_VALUE_RESULT) continue;
        static const char *const kinds[] = {"result", "input", "parameter", "buffer"};
        twi_text_add(text, "%-9s %-40s %s%s\n", kinds[value->kind], value->name, twi_shape_text(&value->shape, shape),
                     value->batched ? " batched" : "");
    }
    for (int i = 0; i < graph->node_count; i++) {
        const twi_node *node = graph->node[i];
        twi_text_add(text, "%-16s %-32s %-20s <-", node->op->name, node->name,
                     twi_shape_text(&node->output[0]->shape, shape));
        for (int k = 0; k < node->input_count; k++) twi_text_add(text, " %s", node->input[k]->name);
        for (int k = 0; k < node->op->attr_count; k++) {
            const twi_attr *attr = &node->op->attrs[k];
            const char *field = (const char *)node->attrs + attr->offset;
            double number = attr->type == TWI_ATTR_INT     ? *(const int32_t *)field
                            : attr->type == TWI_ATTR_FLOAT ? (double)*(const float *)field
                            : attr->type == TWI_ATTR_BOOL  ? *(const bool *)field
                                                           : attr->preset;
            if (attr->type != TWI_ATTR_INTS && number != attr->preset) twi_text_add(text, " %s=%g", attr->name, number);
        }
        twi_text_add(text, "\n");
    }
}

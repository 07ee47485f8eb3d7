/* Graphs to JSON. Reading them is in graph_read.c. */
#include "attr_text.h"
#include "graph_text.h"
#include "json_writer.h"

#include <string.h>

static void add_name(twi_text *text, const char *key, const char *name) {
    twi_text_add(text, "\"%s\":", key);
    twi_json_add_string(text, name, "");
}

static void write_value(twi_text *text, const tw_model *model, const tw_value *value) {
    static const char *const kinds[] = {
        [TWI_VALUE_INPUT] = "input", [TWI_VALUE_PARAMETER] = "parameter", [TWI_VALUE_BUFFER] = "buffer"};
    twi_text_add(text, "{");
    add_name(text, "name", value->name);
    twi_text_add(text, ",\"kind\":\"%s\",\"shape\":[", kinds[value->kind]);
    for (int i = value->batched; i < value->shape.rank; i++)
        twi_text_add(text, i > value->batched ? ",%lld" : "%lld", (long long)value->shape.dim[i]);
    twi_text_add(text, "]");
    if (value->kind == TWI_VALUE_INPUT) {
        twi_text_add(text, ",\"type\":\"%s\"", value->store == TWI_I32 ? "labels" : "real");
    } else {
        const twi_parameter *parameter = &model->store.parameter[value->parameter];
        if (parameter->trainable) twi_text_add(text, ",\"trainable\":true");
        if (parameter->decayed) twi_text_add(text, ",\"decayed\":true");
        if (parameter->counter) twi_text_add(text, ",\"counter\":true");
    }
    twi_text_add(text, "}");
}

static tw_status write_node(twi_text *text, const twi_node *node) {
    void *preset;
    twi_text_add(text, "{");
    add_name(text, "op", node->op->name);
    twi_text_add(text, ",");
    add_name(text, "name", node->name);
    twi_text_add(text, ",\"inputs\":[");
    for (int i = 0; i < node->input_count; i++) {
        if (i) twi_text_add(text, ",");
        twi_json_add_string(text, node->input[i]->name, "");
    }
    twi_text_add(text, "],\"attributes\":");
    TWI_TRY(twi_get(text->memory, &preset, 1, node->op->attr_size, "attributes"));
    twi_attrs_preset(node->op, preset);
    tw_status status = twi_attrs_write(text, node->op, node->attrs, preset);
    twi_put(text->memory, preset);
    twi_text_add(text, "}");
    return status ? twi_fail_within(status, "%s '%s'", node->op->name, node->name) : TW_OK;
}

static void write_aliases(twi_text *text, const tw_model *model, const bool *needed) {
    const twi_store *store = &model->store;
    const char *before = "";
    for (int i = 0; i < store->alias_count; i++) {
        const char *of = store->parameter[store->alias[i].parameter].name;
        if (!needed[twi_graph_find(&model->graph, of)->id]) continue;
        twi_text_add(text, "%s{", before);
        add_name(text, "name", store->alias[i].name);
        twi_text_add(text, ",");
        add_name(text, "of", of);
        twi_text_add(text, "}");
        before = ",";
    }
}

tw_status twi_graph_write(twi_text *text, const tw_model *model, const bool *needed) {
    const twi_graph *graph = &model->graph;
    const char *before = "";
    twi_text_add(text, "{\"values\":[");
    for (int i = 0; i < graph->value_count; i++) {
        if (!needed[i] || graph->value[i]->kind == TWI_VALUE_RESULT) continue;
        twi_text_add(text, "%s", before);
        write_value(text, model, graph->value[i]);
        before = ",";
    }
    twi_text_add(text, "],\"aliases\":[");
    write_aliases(text, model, needed);
    twi_text_add(text, "],\"nodes\":[");
    before = "";
    for (int i = 0; i < graph->node_count; i++) {
        const twi_node *node = graph->node[i];
        bool used = false;
        for (int k = 0; k < node->output_count; k++) used = used || needed[node->output[k]->id];
        if (!used) continue;
        twi_text_add(text, "%s", before);
        TWI_TRY(write_node(text, node));
        before = ",";
    }
    twi_text_add(text, "],");
    twi_text_add(text, "\"outputs\":[");
    twi_json_add_string(text, model->output->name, "");
    twi_text_add(text, "]}");
    return TW_OK;
}

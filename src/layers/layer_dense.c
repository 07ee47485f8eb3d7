/* Dense layer: weight, bias, and the ops flatten (where needed), dense and bias. */
#include "layer.h"

#include <stdio.h>
#include <string.h>

/* The layer's name belongs to its result: the product before the bias is "name.product". */
tw_value *twi_layer_biased(tw_model *model, const char *op, const char *layer, tw_value *const inputs[2],
                           tw_value *bias, const void *attrs) {
    char product[sizeof model->graph.name + 16];
    snprintf(product, sizeof product, "%s.product", layer);
    tw_value *pair[] = {twi_graph_node(&model->graph, op, product, 2, inputs, attrs), bias};
    return twi_graph_node(&model->graph, "bias", layer, 2, pair, NULL);
}

tw_value *tw_dense(tw_model *model, tw_value *x, int64_t out, const tw_dense_options *given) {
    tw_dense_options o;
    if (!twi_layer_begin(model, x, &o, sizeof o, given, "dense")) return NULL;
    twi_graph *graph = &model->graph;
    if (x->shape.rank != 2) x = tw_flatten(model, x);
    char layer[sizeof graph->name];
    const char *name = twi_graph_name(graph, o.name, "fc");
    if (!name || !x) return NULL;
    memcpy(layer, name, sizeof layer);
    if (out < 1)
        return twi_graph_fail(graph,
                              TWI_FAIL(TW_ERROR_ARGUMENT, "dense '%s': out %lld is below 1", layer, (long long)out));
    int64_t in = x->shape.dim[1];
    twi_parameter weight = {.learned = true,
                            .trainable = true,
                            .decayed = true,
                            .init = o.weight_init,
                            .shape = {2, {out, in}},
                            .fan_in = in,
                            .fan_out = out};
    tw_value *inputs[] = {x, twi_model_tie(model, layer, o.tied_to, "weight", &weight)};
    if (o.no_bias) return twi_graph_node(graph, "dense", layer, 2, inputs, NULL);
    twi_parameter bias = {
        .learned = true, .trainable = true, .init = o.bias_init, .shape = {1, {out}}, .fan_in = in, .fan_out = out};
    return twi_layer_biased(model, "dense", layer, inputs, twi_model_tie(model, layer, o.tied_to, "bias", &bias), NULL);
}

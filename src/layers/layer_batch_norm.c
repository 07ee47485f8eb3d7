/* Batch normalisation layer: scale, shift and running statistics, and the op batch_norm. */
#include "layer.h"

#include <string.h>

tw_value *tw_batch_norm(tw_model *model, tw_value *x, const tw_batch_norm_options *given) {
    tw_batch_norm_options o;
    if (!twi_layer_begin(model, x, &o, sizeof o, given, "batch_norm")) return NULL;
    twi_graph *graph = &model->graph;
    char layer[sizeof graph->name];
    const char *name = twi_graph_name(graph, o.name, "bn");
    if (!name) return NULL;
    memcpy(layer, name, sizeof layer);
    if (x->shape.rank < 2) {
        char shape[TWI_SHAPE_TEXT];
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_SHAPE, "batch_norm '%s': needs N,C,..., got %s '%s'", layer,
                                              twi_shape_text(&x->shape, shape), x->name));
    }
    twi_batch_norm_attrs attrs = {.epsilon = o.epsilon != 0 ? o.epsilon : 1e-5f,
                                  .momentum = o.momentum != 0 ? o.momentum : 0.1f,
                                  .frozen = o.frozen};
    twi_shape channels = {1, {x->shape.dim[1]}}, one = {1, {1}};
    twi_parameter gamma = {
        .learned = true, .trainable = true, .init = {TW_INIT_CONSTANT, o.zero_scale ? 0.0f : 1.0f}, .shape = channels};
    twi_parameter beta = {.learned = true, .trainable = true, .init = {TW_INIT_CONSTANT, 0}, .shape = channels};
    twi_parameter mean = {.shape = channels}, var = {.shape = channels, .init_value = 1},
                  batches = {.shape = one, .counter = true};
    tw_value *inputs[] = {x,
                          twi_model_parameter(model, layer, "weight", &gamma),
                          twi_model_parameter(model, layer, "bias", &beta),
                          twi_model_parameter(model, layer, "running_mean", &mean),
                          twi_model_parameter(model, layer, "running_var", &var),
                          twi_model_parameter(model, layer, "num_batches_tracked", &batches)};
    return twi_graph_node(graph, "batch_norm", layer, 6, inputs, &attrs);
}

/* Inputs, and the layers that have no parameters: each is one node. */
#include "layer.h"

#include <string.h>

bool twi_layer_begin(tw_model *model, const tw_value *x, void *options, size_t size, const void *given,
                     const char *what) {
    if (!model || model->graph.status) return false;
    tw_status status = twi_options_read(options, size, given, what);
    if (status == TW_OK && !x) status = TWI_FAIL(TW_ERROR_ARGUMENT, "%s: its input is NULL", what);
    if (status) (void)twi_graph_fail(&model->graph, status);
    return status == TW_OK;
}

tw_value *twi_layer_node(tw_model *model, const char *op, const char *name, const char *base, int input_count,
                         tw_value *const *inputs, const void *attrs) {
    if (!model) return NULL;
    return twi_graph_node(&model->graph, op, twi_graph_name(&model->graph, name, base), input_count, inputs, attrs);
}

static tw_value *make_input(tw_model *model, const char *name, const char *base, int rank, const int64_t *dims,
                            twi_store_kind store) {
    if (!model) return NULL;
    twi_shape shape = {rank + 1, {1}};
    const char *called = twi_graph_name(&model->graph, name, base);
    if (!called) return NULL;
    if (rank < 0 || rank >= TW_MAX_RANK || (rank > 0 && !dims))
        return twi_graph_fail(&model->graph,
                              TWI_FAIL(TW_ERROR_ARGUMENT, "input '%s': a sample has %d axes; 0 to %d are possible",
                                       called, rank, TW_MAX_RANK - 1));
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 1)
            return twi_graph_fail(&model->graph,
                                  TWI_FAIL(TW_ERROR_ARGUMENT, "input '%s': size %lld of axis %d is below 1", called,
                                           (long long)dims[i], i + 1));
        shape.dim[i + 1] = dims[i];
    }
    return twi_graph_value(&model->graph, called, TWI_VALUE_INPUT, store, true, &shape);
}

tw_value *tw_input(tw_model *model, int64_t channels, int64_t height, int64_t width) {
    const int64_t dims[] = {channels, height, width};
    return make_input(model, NULL, "input", 3, dims, TWI_REAL);
}

tw_value *tw_input_shaped(tw_model *model, const char *name, int rank, const int64_t *dims) {
    return make_input(model, name, "input", rank, dims, TWI_REAL);
}

tw_value *tw_input_labels(tw_model *model, const char *name) {
    return make_input(model, name, "labels", 0, NULL, TWI_I32);
}

tw_value *tw_relu(tw_model *model, tw_value *x) { return twi_layer_node(model, "relu", NULL, "relu", 1, &x, NULL); }

tw_value *tw_gelu(tw_model *model, tw_value *x, const tw_gelu_options *given) {
    tw_gelu_options o;
    if (!twi_layer_begin(model, x, &o, sizeof o, given, "gelu")) return NULL;
    twi_gelu_attrs attrs = {o.tanh};
    return twi_layer_node(model, "gelu", o.name, "gelu", 1, &x, &attrs);
}

tw_value *tw_add(tw_model *model, tw_value *a, tw_value *b) {
    tw_value *inputs[] = {a, b};
    return twi_layer_node(model, "add", NULL, "add", 2, inputs, NULL);
}

tw_value *tw_flatten(tw_model *model, tw_value *x) {
    return twi_layer_node(model, "flatten", NULL, "flatten", 1, &x, NULL);
}

tw_value *tw_reshape(tw_model *model, tw_value *x, int rank, const int64_t *dims) {
    if (!model) return NULL;
    twi_reshape_attrs attrs = {.rank = rank};
    if (rank < 0 || rank >= TW_MAX_RANK || (rank > 0 && !dims))
        return twi_graph_fail(
            &model->graph,
            TWI_FAIL(TW_ERROR_ARGUMENT, "reshape: a sample of %d axes; 0 to %d are possible", rank, TW_MAX_RANK - 1));
    for (int i = 0; i < rank; i++) attrs.dims[i] = dims[i];
    return twi_layer_node(model, "reshape", NULL, "reshape", 1, &x, &attrs);
}

static tw_value *pool(tw_model *model, tw_value *x, int kernel, const tw_pool_options *given, const char *op,
                      const char *base) {
    tw_pool_options o;
    if (!twi_layer_begin(model, x, &o, sizeof o, given, base)) return NULL;
    twi_pool_attrs attrs;
    memset(&attrs, 0, sizeof attrs);
    attrs.kernel_h = kernel;
    attrs.kernel_w = o.kernel_w ? o.kernel_w : kernel;
    attrs.stride_h = o.stride ? o.stride : attrs.kernel_h;
    attrs.stride_w = o.stride_w ? o.stride_w : o.stride ? o.stride : attrs.kernel_w;
    attrs.pad_top = attrs.pad_bottom = attrs.pad_left = attrs.pad_right = o.padding;
    attrs.ceil_mode = o.ceil_mode;
    attrs.exclude_padding = o.exclude_padding;
    return twi_layer_node(model, op, o.name, base, 1, &x, &attrs);
}

tw_value *tw_max_pool(tw_model *model, tw_value *x, int kernel, const tw_pool_options *options) {
    return pool(model, x, kernel, options, "max_pool", "maxpool");
}
tw_value *tw_avg_pool(tw_model *model, tw_value *x, int kernel, const tw_pool_options *options) {
    return pool(model, x, kernel, options, "avg_pool", "avgpool");
}
tw_value *tw_global_avg_pool(tw_model *model, tw_value *x) {
    return twi_layer_node(model, "global_avg_pool", NULL, "avgpool", 1, &x, NULL);
}

tw_value *tw_dropout(tw_model *model, tw_value *x, float rate) {
    twi_dropout_attrs attrs = {rate};
    return twi_layer_node(model, "dropout", NULL, "dropout", 1, &x, &attrs);
}

tw_value *tw_softmax(tw_model *model, tw_value *x) {
    return twi_layer_node(model, "softmax", NULL, "softmax", 1, &x, NULL);
}

tw_value *tw_cross_entropy(tw_model *model, tw_value *logits, tw_value *labels, const tw_cross_entropy_options *given) {
    tw_cross_entropy_options o;
    if (!twi_layer_begin(model, logits, &o, sizeof o, given, "cross_entropy")) return NULL;
    twi_cross_entropy_attrs attrs = {o.label_smoothing};
    tw_value *inputs[] = {logits, labels};
    return twi_layer_node(model, "cross_entropy", o.name, "loss", 2, inputs, &attrs);
}

tw_value *tw_argmax(tw_model *model, tw_value *x) {
    return twi_layer_node(model, "argmax", NULL, "argmax", 1, &x, NULL);
}

tw_value *tw_class_rank(tw_model *model, tw_value *logits, tw_value *labels) {
    tw_value *inputs[] = {logits, labels};
    return twi_layer_node(model, "class_rank", NULL, "rank", 2, inputs, NULL);
}

/* Convolution layer: weight, bias, and the ops conv2d and bias. */
#include "layer.h"

#include <string.h>

tw_value *tw_conv2d(tw_model *model, tw_value *x, int64_t out_channels, int kernel, const tw_conv2d_options *given) {
    tw_conv2d_options o;
    if (!twi_layer_begin(model, x, &o, sizeof o, given, "conv2d")) return NULL;
    twi_graph *graph = &model->graph;
    char layer[sizeof graph->name];
    const char *name = twi_graph_name(graph, o.name, "conv");
    if (!name) return NULL;
    memcpy(layer, name, sizeof layer);
    int groups = o.groups ? o.groups : 1;
    if (x->shape.rank != 4) {
        char shape[TWI_SHAPE_TEXT];
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_SHAPE, "conv2d '%s': needs images N,C,H,W, got %s '%s'", layer,
                                              twi_shape_text(&x->shape, shape), x->name));
    }
    int kernel_w = o.kernel_w ? o.kernel_w : kernel;
    if (out_channels < 1 || kernel < 1 || kernel_w < 1)
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT,
                                              "conv2d '%s': out_channels %lld and kernel %d x %d must be at least 1",
                                              layer, (long long)out_channels, kernel, kernel_w));
    if (groups < 1 || x->shape.dim[1] % groups || out_channels % groups)
        return twi_graph_fail(graph,
                              TWI_FAIL(TW_ERROR_ARGUMENT,
                                       "conv2d '%s': groups %d does not divide the %lld channels in and %lld out",
                                       layer, groups, (long long)x->shape.dim[1], (long long)out_channels));
    twi_conv2d_attrs attrs;
    memset(&attrs, 0, sizeof attrs);
    attrs.stride_h = o.stride ? o.stride : 1;
    attrs.stride_w = o.stride_w ? o.stride_w : attrs.stride_h;
    attrs.pad_top = o.padding;
    attrs.pad_left = o.no_padding_w ? 0 : o.padding_w ? o.padding_w : o.padding;
    if (__builtin_add_overflow(attrs.pad_top, o.pad_bottom, &attrs.pad_bottom) ||
        __builtin_add_overflow(attrs.pad_left, o.pad_right, &attrs.pad_right))
        return twi_graph_fail(graph,
                              TWI_FAIL(TW_ERROR_OVERFLOW,
                                       "conv2d '%s': padding %d with pad_bottom %d and pad_right %d is too large",
                                       layer, o.padding, o.pad_bottom, o.pad_right));
    attrs.dilation_h = attrs.dilation_w = o.dilation ? o.dilation : 1;
    attrs.groups = groups;
    twi_parameter weight = {.learned = true,
                            .trainable = true,
                            .decayed = true,
                            .init = o.weight_init,
                            .shape = {4, {out_channels, x->shape.dim[1] / groups, kernel, kernel_w}}};
    tw_status status = twi_shape_check(&weight.shape, layer); /* the fans below must not overflow */
    if (status) return twi_graph_fail(graph, status);
    weight.fan_in = twi_shape_count_from(&weight.shape, 1);
    weight.fan_out = out_channels / groups * kernel * kernel_w;
    tw_value *inputs[] = {x, twi_model_tie(model, layer, o.tied_to, "weight", &weight)};
    if (o.no_bias) return twi_graph_node(graph, "conv2d", layer, 2, inputs, &attrs);
    twi_parameter bias = {.learned = true,
                          .trainable = true,
                          .init = o.bias_init,
                          .shape = {1, {out_channels}},
                          .fan_in = weight.fan_in,
                          .fan_out = weight.fan_out};
    tw_value *bias_value = twi_model_tie(model, layer, o.tied_to, "bias", &bias);
    return twi_layer_biased(model, "conv2d", layer, inputs, bias_value, &attrs);
}

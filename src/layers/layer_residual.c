/* Residual blocks, basic and bottleneck, made of the other layers. */
#include "layer.h"

#include <string.h>

static tw_value *conv_norm(tw_model *model, tw_value *x, int64_t channels, int kernel, int stride, const char *conv,
                           const char *norm) {
    x = tw_conv2d(model, x, channels, kernel,
                  TW_OPTIONS(conv2d, .name = conv, .stride = stride, .padding = kernel / 2, .no_bias = true,
                             .weight_init = {TW_INIT_KAIMING_NORMAL, 0}));
    return tw_batch_norm(model, x, TW_OPTIONS(batch_norm, .name = norm));
}

static tw_value *shortcut(tw_model *model, tw_value *x, int64_t channels, int stride) {
    if (!x || (stride == 1 && x->shape.dim[1] == channels)) return x;
    return conv_norm(model, x, channels, 1, stride, "downsample.0", "downsample.1");
}

tw_value *tw_residual(tw_model *model, tw_value *x, int64_t channels, const tw_residual_options *given) {
    tw_residual_options o;
    if (!twi_layer_begin(model, x, &o, sizeof o, given, "residual")) return NULL;
    twi_graph *graph = &model->graph;
    const char *name = o.name ? o.name : twi_graph_name(graph, NULL, "block");
    if (!name) return NULL;
    if (x->shape.rank != 4) {
        char shape[TWI_SHAPE_TEXT];
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_SHAPE, "residual '%s': needs images N,C,H,W, got %s '%s'", name,
                                              twi_shape_text(&x->shape, shape), x->name));
    }
    if (channels < 1 || channels > INT64_MAX / 4)
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT, "residual '%s': %lld channels are too few or too many",
                                              name, (long long)channels));
    int stride = o.stride ? o.stride : 1;
    tw_scope_begin(model, o.name ? o.name : name + strlen(graph->scope));
    tw_value *y;
    if (o.bottleneck) {
        y = tw_relu(model, conv_norm(model, x, channels, 1, 1, "conv1", "bn1"));
        y = tw_relu(model, conv_norm(model, y, channels, 3, stride, "conv2", "bn2"));
        y = conv_norm(model, y, 4 * channels, 1, 1, "conv3", "bn3");
        channels *= 4;
    } else {
        y = tw_relu(model, conv_norm(model, x, channels, 3, stride, "conv1", "bn1"));
        y = conv_norm(model, y, channels, 3, 1, "conv2", "bn2");
    }
    y = tw_relu(model, tw_add(model, y, shortcut(model, x, channels, stride)));
    tw_scope_end(model);
    return y;
}

/* The ResNets: a stem, stages of residual blocks, global average pooling and a dense layer. */
#include "base/options.h"
#include "program/model.h"
#include <talweg/zoo.h>

#include <stdio.h>

enum { STAGES_MAX = 4 };

typedef struct recipe {
    int64_t width;
    int stem_kernel, stem_stride;
    bool stem_pool;
    bool bottleneck;
    int stages;
    int blocks[STAGES_MAX];
} recipe;

static tw_value *resnet(tw_model *model, tw_value *x, int64_t classes, const tw_resnet_options *given,
                        const recipe *r) {
    if (!model) return NULL;
    tw_resnet_options o;
    tw_status status = twi_options_read(&o, sizeof o, given, "resnet");
    if (status) return twi_graph_fail(&model->graph, status);
    enum { WIDTH_MAX = 1 << 20 };
    int64_t width = o.width ? o.width : r->width;
    if (width < 1 || width > WIDTH_MAX) /* what the stages and bottlenecks multiply must not overflow */
        return twi_graph_fail(&model->graph, TWI_FAIL(TW_ERROR_ARGUMENT, "resnet: width %lld is outside 1 .. %d",
                                                      (long long)width, WIDTH_MAX));
    x = tw_conv2d(model, x, width, r->stem_kernel,
                  TW_OPTIONS(conv2d, .name = "conv1", .stride = r->stem_stride, .padding = r->stem_kernel / 2,
                             .no_bias = true, .weight_init = {TW_INIT_KAIMING_NORMAL, 0}));
    x = tw_relu(model, tw_batch_norm(model, x, TW_OPTIONS(batch_norm, .name = "bn1")));
    if (r->stem_pool) x = tw_max_pool(model, x, 3, TW_OPTIONS(pool, .stride = 2, .padding = 1));
    for (int stage = 0; stage < r->stages; stage++)
        for (int block = 0; block < r->blocks[stage]; block++) {
            char name[32];
            snprintf(name, sizeof name, "layer%d.%d", stage + 1, block);
            x = tw_residual(
                model, x, width << stage,
                TW_OPTIONS(residual, .name = name, .stride = stage && !block ? 2 : 1, .bottleneck = r->bottleneck));
        }
    return tw_dense(model, tw_global_avg_pool(model, x), classes, TW_OPTIONS(dense, .name = "fc"));
}

tw_value *tw_zoo_resnet20(tw_model *model, tw_value *x, int64_t classes, const tw_resnet_options *options) {
    static const recipe r = {.width = 16, .stem_kernel = 3, .stem_stride = 1, .stages = 3, .blocks = {3, 3, 3}};
    return resnet(model, x, classes, options, &r);
}

tw_value *tw_zoo_resnet18(tw_model *model, tw_value *x, int64_t classes, const tw_resnet_options *options) {
    static const recipe r = {
        .width = 64, .stem_kernel = 7, .stem_stride = 2, .stem_pool = true, .stages = 4, .blocks = {2, 2, 2, 2}};
    return resnet(model, x, classes, options, &r);
}

tw_value *tw_zoo_resnet50(tw_model *model, tw_value *x, int64_t classes, const tw_resnet_options *options) {
    static const recipe r = {.width = 64,
                             .stem_kernel = 7,
                             .stem_stride = 2,
                             .stem_pool = true,
                             .bottleneck = true,
                             .stages = 4,
                             .blocks = {3, 4, 6, 3}};
    return resnet(model, x, classes, options, &r);
}

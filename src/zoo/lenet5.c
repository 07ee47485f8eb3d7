/* LeNet-5 and multi-layer perceptrons. */
#include "program/model.h"
#include <talweg/zoo.h>

tw_value *tw_zoo_mlp(tw_model *model, tw_value *x, int count, const int64_t *widths) {
    if (!model) return NULL;
    if (count < 1 || !widths)
        return twi_graph_fail(&model->graph, TWI_FAIL(TW_ERROR_ARGUMENT, "tw_zoo_mlp: %d widths%s; give one or more",
                                                      count, widths ? "" : " at NULL"));
    for (int i = 0; i < count; i++) {
        x = tw_dense(model, x, widths[i], NULL);
        if (i + 1 < count) x = tw_relu(model, x);
    }
    return x;
}

/* Hidden layers start as He et al. (2015) derive for relu, as the ResNets do; the last one as PyTorch does. */
#define HIDDEN .weight_init = {TW_INIT_KAIMING_UNIFORM, 0}, .bias_init = {TW_INIT_CONSTANT, 0}

/* What two poolings and the second convolution, which is not padded, leave a pixel of. */
enum { LENET5_LEAST = 12 };

tw_value *tw_zoo_lenet5(tw_model *model, tw_value *x, int64_t classes) {
    const bool image = model && x && x->shape.rank == 4; /* of anything else the first layer speaks */
    if (image && (x->shape.dim[2] < LENET5_LEAST || x->shape.dim[3] < LENET5_LEAST))
        return twi_graph_fail(&model->graph,
                              TWI_FAIL(TW_ERROR_SHAPE,
                                       "tw_zoo_lenet5: needs images of at least %d x %d, got %lld x %lld", LENET5_LEAST,
                                       LENET5_LEAST, (long long)x->shape.dim[2], (long long)x->shape.dim[3]));
    x = tw_relu(model, tw_conv2d(model, x, 6, 5, TW_OPTIONS(conv2d, .padding = 2, HIDDEN)));
    x = tw_max_pool(model, x, 2, NULL);
    x = tw_relu(model, tw_conv2d(model, x, 16, 5, TW_OPTIONS(conv2d, HIDDEN)));
    x = tw_max_pool(model, x, 2, NULL);
    x = tw_relu(model, tw_dense(model, x, 120, TW_OPTIONS(dense, HIDDEN)));
    x = tw_relu(model, tw_dense(model, x, 84, TW_OPTIONS(dense, HIDDEN)));
    return tw_dense(model, x, classes, NULL);
}

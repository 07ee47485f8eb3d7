/* LeNet-5 and multi-layer perceptrons. */
#include "program/model.h"
#include <talweg/zoo.h>

tw_value *tw_zoo_mlp(tw_model *model, tw_value *x, int count, const int64_t *widths) {
    if (!model) return NULL;
    if (count < 1 || !widths) return twi_graph_fail(&model->graph, TWI_FAIL(TW_ERROR_ARGUMENT, "tw_zoo_mlp: %d widths%s; give one or more", count, widths ? "" : " at NULL"));
    for (int i = 0; i < count; i++) {
        x = tw_dense(model, x, widths[i], NULL);
        if (i + 1 < count) x = tw_relu(model, x);
    }
    return x;
}

tw_value *tw_zoo_lenet5(tw_model *model, tw_value *x, int64_t classes) {
    x = tw_relu(model, tw_conv2d(model, x, 6, 5, TW_OPTIONS(conv2d, .padding = 2)));
    x = tw_max_pool(model, x, 2, NULL);
    x = tw_relu(model, tw_conv2d(model, x, 16, 5, NULL));
    x = tw_max_pool(model, x, 2, NULL);
    x = tw_relu(model, tw_dense(model, x, 120, NULL));
    x = tw_relu(model, tw_dense(model, x, 84, NULL));
    return tw_dense(model, x, classes, NULL);
}

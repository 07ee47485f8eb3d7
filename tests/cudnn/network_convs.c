/* See network_convs.h. */
#include "network_convs.h"

#include "check.h"
#include "program/model.h"
#include <talweg/zoo.h>

#include <stdio.h>

typedef tw_value *(*build_resnet)(tw_model *, tw_value *, int64_t, const tw_resnet_options *);

typedef struct network {
    const char *name;
    int64_t batch, channels, size, classes;
    build_resnet build; /* NULL: LeNet-5 */
} network;

static const network networks[] = {
    {"LeNet-5", 128, 1, 28, 10, NULL},
    {"ResNet-20", 128, 3, 32, 10, tw_zoo_resnet20},
    {"ResNet-18", 64, 3, 224, 1000, tw_zoo_resnet18},
    {"ResNet-50", 64, 3, 224, 1000, tw_zoo_resnet50},
};

static bool is_known(const network_conv *convs, int count, const conv_check_case *c) {
    for (int i = 0; i < count; i++)
        if (memcmp(&convs[i].c, c, sizeof *c) == 0) return true;
    return false;
}

static int add(network_conv *convs, int count, const network *net, const twi_node *node) {
    const twi_shape *x = &node->input[0]->shape, *w = &node->input[1]->shape;
    network_conv conv = {.network = net->name};
    conv.c = (conv_check_case){net->batch, x->dim[1], x->dim[2], x->dim[3],
                               w->dim[0],  w->dim[2], w->dim[3], *(const twi_conv2d_attrs *)node->attrs};
    if (is_known(convs, count, &conv.c)) return count;
    assert_true(count < NETWORK_CONVS_MOST);
    const size_t length = strlen(node->name), product = strlen(".product");
    const bool biased = length > product && strcmp(node->name + length - product, ".product") == 0;
    snprintf(conv.layer, sizeof conv.layer, "%.*s", (int)(biased ? length - product : length), node->name);
    convs[count] = conv;
    return count + 1;
}

int network_convs(network_conv out[NETWORK_CONVS_MOST]) {
    int count = 0;
    for (size_t n = 0; n < sizeof networks / sizeof *networks; n++) {
        const network *net = &networks[n];
        tw_context *context;
        tw_model *model;
        CHECK_OK(tw_context_create(&context, "plan:cpu", NULL));
        CHECK_OK(tw_model_create(&model, context));
        tw_value *x = tw_input(model, net->channels, net->size, net->size);
        x = net->build ? net->build(model, x, net->classes, NULL) : tw_zoo_lenet5(model, x, net->classes);
        assert_non_null(x);
        for (int i = 0; i < model->graph.node_count; i++)
            if (strcmp(model->graph.node[i]->op->name, "conv2d") == 0)
                count = add(out, count, net, model->graph.node[i]);
        tw_model_destroy(model);
        tw_context_destroy(context);
    }
    return count;
}

/* The gradient that a dense layer hands back, on its way through the relu and the bias before the layer:
 * g = dense'(dy, w) where y > 0, else 0; db[i] = sum of g
 *
 * Saves a pass over g for each. Made by the fusion pass alone. */
#include "bias_relu.h"

/* ---- specification: the single kernels, one after the other ---- */

enum { DY, W, Y, G, DB };

static void run_backward(const twi_call *call) {
    const twi_operand *operand = call->operand;
    twi_call part = *call;
    part.operand_count = 3;
    part.operand[2] = operand[G];
    TWI_NAME(twi_kernel_dense_backward_data).run(&part);
    part.operand[0] = part.operand[2] = operand[G];
    part.operand[1] = operand[Y];
    TWI_NAME(twi_kernel_relu_backward).run(&part);
    part.operand_count = 2;
    part.operand[1] = operand[DB];
    TWI_NAME(twi_kernel_bias_backward).run(&part);
}

/* ---- kernels ---- */

static double flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[W].shape) * (double)call->operand[DY].shape.dim[0];
}

static const twi_kernel kernel_backward = {
    .name = "dense.backward_data_relu",
    .operand_count = 5,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"y", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"g", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0},
                {"db", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .flops = flops,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&kernel_backward, NULL};

/* ---- cases ---- */

enum { BATCH, FEATURES_IN, FEATURES_OUT };

static const twi_case cases[] = {
    {"small", {3, 5, 4}},
    {"one of everything", {1, 1, 1}},
    {"8 features in", {5, 8, 3}},
    {"odd sizes", {7, 33, 17}},
    {"large 17 images", {17, 131, 67}},
    {"large 64 images", {64, 128, 96}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", 2, (int64_t[]){c->p[BATCH], c->p[FEATURES_IN]});
    tw_value *y = twi_case_bias_relu(builder, x, true);
    tw_value *w = builder->parameter(builder, "w", 2, (int64_t[]){c->p[FEATURES_OUT], c->p[FEATURES_IN]});
    return builder->node(builder, "dense", "dense", 2, (tw_value *[]){y, w}, NULL);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_relu_backward) = {
    .name = "dense_relu_backward",
    .formula = "g[n,i] = sum over o of dy[n,o] * w[o,i] where y[n,i] > 0, else 0; db[i] = sum of g",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "dense.backward_data_relu",
    .asked = true,
};

/* The gradients of a dense layer's weight and bias, which are sums over the same dy:
 * dw[o,i] = sum over n of dy[n,o] * x[n,i]; db[o] = sum over n of dy[n,o]
 *
 * Saves a pass over dy, and the bias needs no partial sums. Made by the fusion pass alone. */
#include "bias_relu.h"

/* ---- specification: that of the weight, and the sum ---- */

enum { X, DY, DW, DB };

static void run_backward(const twi_call *call) {
    const twi_operand *dy = &call->operand[DY], *db = &call->operand[DB];
    const tw_real *dy_data = dy->data;
    twi_call part = *call;
    part.operand_count = 3;
    TWI_NAME(twi_kernel_dense_backward_weights).run(&part);
    for (int64_t o = call->begin; o < call->end; o++) {
        tw_real sum = 0;
        for (int64_t n = 0; n < dy->shape.dim[0]; n++) sum += dy_data[n * dy->stride[0] + o * dy->stride[1]];
        ((tw_real *)db->data)[o * db->stride[0]] = sum;
    }
}

/* ---- kernels ---- */

static int64_t rows(const twi_call *call) { return call->operand[DW].shape.dim[0]; }

static double flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[DW].shape) * (double)call->operand[DY].shape.dim[0];
}

const twi_kernel TWI_NAME(twi_kernel_dense_backward_weights_bias) = {
    .name = "dense.backward_weights_bias",
    .operand_count = 4,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_RANGED, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_WHOLE, 0},
                {"db", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = rows,
    .grain = TWI_DENSE_GRAIN,
    .flops = flops,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_dense_backward_weights_bias), NULL};

/* ---- cases: those of a dense layer (op_dense.c) ---- */

static const twi_case cases[] = {
    {"small", {3, 5, 4}},
    {"one of everything", {1, 1, 1}},
    {"one image", {1, 7, 10}},
    {"one feature in", {5, 1, 3}},
    {"odd sizes", {7, 33, 17}},
    {"multiples of 4", {5, 12, 16}},
    {"large 17 images", {17, 131, 67}},
    {"large 64 images", {64, 128, 96}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    return twi_case_bias_relu(builder, TWI_NAME(twi_op_dense).build_case(builder, c), false);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_bias_backward) = {
    .name = "dense_bias_backward",
    .formula = "dw[o,i] = sum over n of dy[n,o] * x[n,i]; db[o] = sum over n of dy[n,o]",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "dense.backward_weights_bias",
};

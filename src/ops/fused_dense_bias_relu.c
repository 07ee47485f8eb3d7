/* A dense layer that adds the bias and rectifies on its way out: y = relu(dense(x, w) + b), or without the relu.
 *
 * Saves a pass over y for each. Made by the fusion pass alone; backward is that of the single ops. */
#include "bias_relu.h"

/* ---- specification and kernels ---- */

static void run_bias(const twi_call *call) { twi_run_bias(call, &TWI_NAME(twi_kernel_dense_forward)); }
static void run_bias_relu(const twi_call *call) { twi_run_bias_relu(call, &TWI_NAME(twi_kernel_dense_forward)); }

static const twi_kernel kernel_bias = TWI_BIASED_KERNEL("dense.forward_bias", run_bias, "dense.forward_bias_rows");
static const twi_kernel kernel_bias_relu =
    TWI_BIASED_KERNEL("dense.forward_bias_relu", run_bias_relu, "dense.forward_bias_relu_rows");

static const twi_kernel *const kernels[] = {&kernel_bias, &kernel_bias_relu, NULL};

/* ---- cases ---- */

/* The numbers of a dense case (op_dense.c), and whether a relu follows. */
enum { RELU = 3 };

static const twi_case cases[] = {
    {"small", {3, 5, 4, 1}},
    {"no relu", {3, 5, 4, 0}},
    {"one of everything", {1, 1, 1, 1}},
    {"one feature in", {5, 1, 3, 1}},
    {"odd sizes", {7, 33, 17, 1}},
    {"large 8 images", {8, 100, 10, 0}},
    {"large 17 images", {17, 131, 67, 1}},
    {"large 64 images", {64, 128, 96, 1}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *y = TWI_NAME(twi_op_dense).build_case(builder, c);
    return twi_case_bias_relu(builder, y, c->p[RELU] != 0);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_bias_relu) = {
    .name = "dense_bias_relu",
    .formula = "y = relu(dense(x, w) + b)",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "dense.forward_bias",
};

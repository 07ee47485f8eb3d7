/* A convolution that adds the bias and rectifies on its way out: y = relu(conv2d(x, w) + b), or without the relu.
 *
 * Saves a pass over y for each. Made by the fusion pass alone; backward is that of the single ops. */
#include "bias_relu.h"

/* ---- specification and kernels ---- */

static void run_bias(const twi_call *call) { twi_run_bias(call, &TWI_NAME(twi_kernel_conv2d_forward)); }
static void run_bias_relu(const twi_call *call) { twi_run_bias_relu(call, &TWI_NAME(twi_kernel_conv2d_forward)); }

static const twi_kernel kernel_bias = TWI_BIASED_KERNEL("conv2d.forward_bias", run_bias, NULL);
static const twi_kernel kernel_bias_relu = TWI_BIASED_KERNEL("conv2d.forward_bias_relu", run_bias_relu, NULL);

static const twi_kernel *const kernels[] = {&kernel_bias, &kernel_bias_relu, NULL};

/* ---- cases ---- */

/* The numbers of a conv2d case (op_conv2d.c), and whether a relu follows. */
enum { RELU = 11 };

static const twi_case cases[] = {
    {"3x3", {2, 3, 5, 4, 4, 3, 3, 11, 1111, 11, 1, 1}},
    {"no relu", {2, 3, 5, 4, 4, 3, 3, 11, 1111, 11, 1, 0}},
    {"one of everything", {1, 1, 1, 1, 1, 1, 1, 11, 0, 11, 1, 1}},
    {"paddings differ", {1, 2, 5, 6, 2, 3, 4, 21, 1203, 11, 1, 1}},
    {"groups", {2, 4, 5, 4, 6, 3, 3, 11, 1111, 11, 2, 1}},
    {"large 1 channel, 8 images", {8, 1, 12, 11, 6, 5, 5, 11, 2222, 11, 1, 1}},
    {"large 3 channels, 17 images", {17, 3, 9, 10, 16, 3, 3, 11, 1111, 11, 1, 1}},
    {"large 6 channels, no relu", {16, 6, 9, 8, 5, 5, 5, 11, 0, 11, 1, 0}},
    {"large 16 channels", {3, 16, 9, 7, 16, 3, 3, 11, 1111, 11, 1, 1}},
    {"large 16 channels, no relu", {3, 16, 9, 7, 16, 3, 3, 11, 1111, 11, 1, 0}},
    {"large 32 to 48 channels", {17, 32, 7, 7, 48, 3, 3, 22, 1111, 11, 1, 1}},
    {"large 1x1", {5, 32, 7, 5, 16, 1, 1, 11, 0, 11, 1, 1}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *y = TWI_NAME(twi_op_conv2d).build_case(builder, c);
    return twi_case_bias_relu(builder, y, c->p[RELU] != 0);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_conv2d_bias_relu) = {
    .name = "conv2d_bias_relu",
    .formula = "y = relu(conv2d(x, w) + b)",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "conv2d.forward_bias",
};

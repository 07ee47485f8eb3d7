/* A dense layer's way forward by ranges of its features: y[n,o] = sum over i of x[n,i] * w[o,i] for a part of the rows
 * o of w and all samples; with the bias, and with bias and relu.
 *
 * What op_dense.c and fused_dense_bias_relu.c do by samples. Here a worker reads rows of w of its own, those that it
 * writes when they are updated, and all of x. Put in their place by a pass (src/program/ranges.c) alone. */
#include "kernels.h"

/* ---- specification ---- */

enum { X, W };

static void run_rows(const twi_call *call, bool relu) {
    const twi_operand *x = &call->operand[X], *w = &call->operand[W], *y = &call->operand[call->operand_count - 1];
    const twi_operand *b = call->operand_count == 4 ? &call->operand[2] : NULL;
    for (int64_t n = 0; n < y->shape.dim[0]; n++)
        for (int64_t o = call->begin; o < call->end; o++) {
            const tw_real *from = (const tw_real *)x->data + n * x->stride[0],
                          *weight = (const tw_real *)w->data + o * w->stride[0];
            tw_real sum = 0;
            for (int64_t i = 0; i < x->shape.dim[1]; i++) sum += from[i * x->stride[1]] * weight[i * w->stride[1]];
            if (b) sum += ((const tw_real *)b->data)[o * b->stride[0]];
            if (relu && sum < 0) sum = 0; /* keeps NaN */
            ((tw_real *)y->data)[n * y->stride[0] + o * y->stride[1]] = sum;
        }
}

static void run_plain(const twi_call *call) { run_rows(call, false); }
static void run_relu(const twi_call *call) { run_rows(call, true); }

/* ---- kernels ---- */

static int64_t rows(const twi_call *call) { return call->operand[W].shape.dim[0]; }

static double flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[W].shape) * (double)call->operand[X].shape.dim[0];
}

static const twi_kernel kernel_forward = {
    .name = "dense.forward_rows",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_RANGED, 0}},
    .split = TWI_BY_RANGE,
    .range = rows,
    .grain = 8,
    .flops = flops,
    .run = run_plain,
};

#define BIASED(kernel_name, kernel_run)                                                      \
    {                                                                                        \
        .name = kernel_name, .operand_count = 4,                                             \
        .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},                                 \
                    {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},                                 \
                    {"b", TWI_READ, TWI_REAL, TWI_WHOLE, 0},                                 \
                    {"y", TWI_WRITE, TWI_REAL, TWI_RANGED, 0}},                              \
        .split = TWI_BY_RANGE, .range = rows, .grain = 8, .flops = flops, .run = kernel_run, \
    }

static const twi_kernel kernel_bias = BIASED("dense.forward_bias_rows", run_plain);
static const twi_kernel kernel_bias_relu = BIASED("dense.forward_bias_relu_rows", run_relu);

static const twi_kernel *const kernels[] = {&kernel_forward, &kernel_bias, &kernel_bias_relu, NULL};

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_rows) = {
    .name = "dense_rows",
    .formula = "y[n,o] = sum over i of x[n,i] * w[o,i], for a range of o",
    .kernels = kernels,
    .asked = true,
};

/* What the fused forms share whose product of x and w is followed by a bias and maybe a relu: specification, kernel
 * record and cases, all made from those of the product alone. */
#ifndef TWI_OPS_BIAS_RELU_H
#define TWI_OPS_BIAS_RELU_H

#include "kernels.h"

/* ---- specification: the single kernels, one after the other ---- */

enum { TWI_BIASED_X, TWI_BIASED_W, TWI_BIASED_B, TWI_BIASED_Y };

static inline void twi_run_bias(const twi_call *call, const twi_kernel *product) {
    const twi_operand *operand = call->operand;
    twi_call part = *call;
    part.operand_count = 3;
    part.operand[2] = operand[TWI_BIASED_Y];
    product->run(&part);
    part.operand[0] = operand[TWI_BIASED_Y];
    part.operand[1] = operand[TWI_BIASED_B];
    TWI_NAME(twi_kernel_bias_forward).run(&part);
}

static inline void twi_run_bias_relu(const twi_call *call, const twi_kernel *product) {
    twi_run_bias(call, product);
    twi_call part = *call;
    part.operand_count = 2;
    part.operand[0] = part.operand[1] = call->operand[TWI_BIASED_Y];
    TWI_NAME(twi_kernel_relu_forward).run(&part);
}

/* ---- kernels ---- */

/* Each element of y takes one product a weight of its channel; the bias is not counted. */
static inline double twi_biased_flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[TWI_BIASED_Y].shape) *
           (double)twi_shape_count_from(&call->operand[TWI_BIASED_W].shape, 1);
}

/* The record of a kernel x, w, b -> y, and the name of one that does it by rows of w. */
#define TWI_BIASED_KERNEL(kernel_name, kernel_run, kernel_by_range)            \
    {                                                                         \
        .name = kernel_name, .operand_count = 4,                              \
        .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},                \
                    {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},                  \
                    {"b", TWI_READ, TWI_REAL, TWI_WHOLE, 0},                  \
                    {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},              \
        .split = TWI_BY_SAMPLE, .flops = twi_biased_flops, .run = kernel_run, \
        .by_range = kernel_by_range, .range_of = TWI_BIASED_W,                   \
    }

/* ---- cases: the plain graph, which the fusion pass makes into such kernels ---- */

extern const twi_op TWI_NAME(twi_op_conv2d);
extern const twi_op TWI_NAME(twi_op_dense);

static inline tw_value *twi_case_bias_relu(twi_builder *builder, tw_value *x, bool relu) {
    tw_value *b = builder->parameter(builder, "b", 1, &x->shape.dim[1]);
    tw_value *y = builder->node(builder, "bias", "bias", 2, (tw_value *[]){x, b}, NULL);
    return relu ? builder->node(builder, "relu", "relu", 1, &y, NULL) : y;
}

#endif

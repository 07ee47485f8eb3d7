/* What the fused forms share in which the gradient that a dense layer hands back goes on through an activation and the bias
 * before it: specification, kernel record and cases, all made from those of the activation alone. */
#ifndef TWI_OPS_DENSE_BACKWARD_H
#define TWI_OPS_DENSE_BACKWARD_H

#include "bias_relu.h"

/* What the activation's backward reads (its input or its result) is KEPT. */
enum { TWI_DENSE_DY, TWI_DENSE_W, TWI_DENSE_KEPT, TWI_DENSE_G, TWI_DENSE_DB };

/* ---- specification: the single kernels, one after the other ---- */

static inline void twi_run_dense_backward(const twi_call *call, const twi_kernel *activation) {
    const twi_operand *operand = call->operand;
    twi_call part = *call;
    part.operand_count = 3;
    part.operand[2] = operand[TWI_DENSE_G];
    TWI_NAME(twi_kernel_dense_backward_data).run(&part);
    part.operand_count = 4;
    part.operand[0] = part.operand[2] = operand[TWI_DENSE_G];
    part.operand[1] = operand[TWI_DENSE_KEPT];
    part.operand[3] = operand[TWI_DENSE_DB];
    activation->run(&part);
}

/* ---- kernels ---- */

static inline double twi_dense_backward_flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[TWI_DENSE_W].shape) *
           (double)call->operand[TWI_DENSE_DY].shape.dim[0];
}

#define TWI_DENSE_BACKWARD_KERNEL(kernel_name, kept, kernel_run)                        \
    {                                                                                   \
        .name = kernel_name, .operand_count = 5,                                        \
        .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},                         \
                    {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},                            \
                    {kept, TWI_READ, TWI_REAL, TWI_BATCHED, 0},                         \
                    {"g", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0},                         \
                    {"db", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}},                         \
        .split = TWI_BY_SAMPLE, .flops = twi_dense_backward_flops, .run = kernel_run,   \
    }

/* ---- cases: batch, features in and out of a dense layer that follows the activation ---- */

#define TWI_DENSE_BACKWARD_CASES                                                        \
    {                                                                                   \
        {"small", {3, 5, 4}},                                                           \
            {"one of everything", {1, 1, 1}},                                           \
            {"8 features in", {5, 8, 3}},                                               \
            {"odd sizes", {7, 33, 17}},                                                 \
            {"large 17 images", {17, 131, 67}},                                         \
            {"large 64 images", {64, 128, 96}},                                         \
            {NULL, {0}},                                                                \
    }

/* x, to which the bias and the activation are to be applied. */
static inline tw_value *twi_case_dense_backward_x(twi_builder *builder, const twi_case *c) {
    return builder->input(builder, "x", 2, (int64_t[]){c->p[0], c->p[1]});
}
/* The dense layer behind the activation's result. */
static inline tw_value *twi_case_dense_backward(twi_builder *builder, const twi_case *c, tw_value *y) {
    tw_value *w = builder->parameter(builder, "w", 2, (int64_t[]){c->p[2], c->p[1]});
    return builder->node(builder, "dense", "dense", 2, (tw_value *[]){y, w}, NULL);
}

#endif

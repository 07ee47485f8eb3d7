/* The gradients of a bias and of the relu behind it in one pass: g = dy where y > 0, else 0; db[c] = sum of g
 *
 * g is the gradient of what the bias was added to. Made by the fusion pass alone. */
#include "bias_relu.h"

/* ---- specification: the single kernels, one after the other ---- */

enum { DY, Y, G, DB };

static void run_backward(const twi_call *call) {
    twi_call part = *call;
    part.operand_count = 3;
    TWI_NAME(twi_kernel_relu_backward).run(&part);
    part.operand_count = 2;
    part.operand[0] = call->operand[G];
    part.operand[1] = call->operand[DB];
    TWI_NAME(twi_kernel_bias_backward).run(&part);
}

/* ---- kernels ---- */

const twi_kernel TWI_NAME(twi_kernel_bias_relu_backward) = {
    .name = "bias_relu.backward",
    .operand_count = 4,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"y", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"g", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + DY},
                {"db", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_bias_relu_backward), NULL};

/* ---- cases ---- */

enum { RANK, DIMS };

static const twi_case cases[] = {
    {"features", {2, 3, 5}},
    {"image", {4, 2, 3, 4, 5}},
    {"one of everything", {4, 1, 1, 1, 1}},
    {"one pixel", {4, 3, 7, 1, 1}},
    {"large features", {2, 17, 100}},
    {"large image", {4, 17, 33, 7, 9}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    return twi_case_bias_relu(builder, builder->input(builder, "x", (int)c->p[RANK], &c->p[DIMS]), true);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_bias_relu) = {
    .name = "bias_relu",
    .formula = "g = dy where y > 0, else 0; db[c] = sum of g",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "bias_relu.backward",
};

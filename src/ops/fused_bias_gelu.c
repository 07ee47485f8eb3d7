/* The gradients of a bias and of the gelu of the tanh form behind it in one pass: g = dy gelu'(z); db[c] = sum of g
 *
 * z is what the gelu reads, g the gradient of what the bias was added to. Made by the fusion pass alone. */
#include "backend/attrs.h"
#include "bias_relu.h"

/* ---- specification: the single kernels, one after the other ---- */

enum { DY, Z, G, DB };

static void run_backward(const twi_call *call) {
    twi_call part = *call;
    part.operand_count = 3;
    TWI_NAME(twi_kernel_gelu_backward_tanh).run(&part);
    part.operand_count = 2;
    part.operand[0] = call->operand[G];
    part.operand[1] = call->operand[DB];
    TWI_NAME(twi_kernel_bias_backward).run(&part);
}

/* ---- kernels ---- */

const twi_kernel TWI_NAME(twi_kernel_bias_gelu_backward) = {
    .name = "bias_gelu.backward",
    .operand_count = 4,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"z", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"g", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + DY},
                {"db", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_bias_gelu_backward), NULL};

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
    const twi_gelu_attrs attrs = {.tanh = true};
    tw_value *x = builder->input(builder, "x", (int)c->p[RANK], &c->p[DIMS]);
    tw_value *y = twi_case_bias_relu(builder, x, false);
    return builder->node(builder, "gelu", "gelu", 1, &y, &attrs);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_bias_gelu) = {
    .name = "bias_gelu",
    .formula = "g = dy gelu'(z); db[c] = sum of g",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "bias_gelu.backward",
};

/* A sum and the relu behind it in one pass: y = relu(a + b). Reached by the fusion pass alone; the backward is that of
 * the single ops, which reads y and nothing of the sum. */
#include "kernels.h"

/* ---- specification: the single kernels, one after the other ---- */

static void run(const twi_call *call) {
    TWI_NAME(twi_kernel_add_forward).run(call); /* a, b, y in both */
    twi_call part = *call;
    part.operand_count = 2;
    part.operand[0] = part.operand[1] = call->operand[2];
    TWI_NAME(twi_kernel_relu_forward).run(&part);
}

static const twi_kernel add_relu = {
    .name = "add.forward_relu",
    .operand_count = 3,
    .operand = {{"a", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"b", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + 0}},
    .split = TWI_BY_SAMPLE,
    .run = run,
};

static const twi_kernel *const kernels[] = {&add_relu, NULL};

/* ---- cases ---- */

enum { RANK, DIMS };

static const twi_case cases[] = {
    {"features", {2, 2, 3}},
    {"image", {4, 2, 3, 4, 5}},
    {"one element", {2, 1, 1}},
    {"large image", {4, 17, 33, 7, 9}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *a = builder->input(builder, "a", (int)c->p[RANK], &c->p[DIMS]);
    tw_value *b = builder->input(builder, "b", (int)c->p[RANK], &c->p[DIMS]);
    tw_value *sum = builder->node(builder, "add", "add", 2, (tw_value *[]){a, b}, NULL);
    return builder->node(builder, "relu", "relu", 1, &sum, NULL);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_add_relu) = {
    .name = "add_relu",
    .formula = "y = relu(a + b)",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "add.forward_relu",
};

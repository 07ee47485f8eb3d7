/* A dense layer that adds the bias and passes a gelu of the tanh form on its way out: y = gelu(z), z = dense(x, w) + b
 *
 * z is written where the backward of the gelu will read it. Made by the fusion pass alone. */
#include "backend/attrs.h"
#include "bias_relu.h"

/* ---- specification: the single kernels, one after the other ---- */

enum { Y = TWI_BIASED_Y, Z };

static void run_forward(const twi_call *call) {
    twi_call part = *call;
    part.operand_count = 4;
    if (call->operand[Z].data) part.operand[Y] = call->operand[Z];
    twi_run_bias(&part, &TWI_NAME(twi_kernel_dense_forward));
    part.operand_count = 2;
    part.operand[0] = part.operand[Y];
    part.operand[1] = call->operand[Y];
    TWI_NAME(twi_kernel_gelu_forward_tanh).run(&part);
}

/* ---- kernels ---- */

static const twi_kernel kernel_forward = {
    .name = "dense.forward_bias_gelu",
    .operand_count = 5,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"b", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0},
                {"z", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}}, /* may be absent */
    .split = TWI_BY_SAMPLE,
    .flops = twi_biased_flops,
    .run = run_forward,
};

static const twi_kernel *const kernels[] = {&kernel_forward, NULL};

/* ---- cases: those of a dense layer (op_dense.c) ---- */

static const twi_case cases[] = {
    {"small", {3, 5, 4}},
    {"one of everything", {1, 1, 1}},
    {"one feature in", {5, 1, 3}},
    {"odd sizes", {7, 33, 17}},
    {"8 features out", {5, 9, 8}},
    {"large 17 images", {17, 131, 67}},
    {"large 64 images", {64, 128, 96}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    const twi_gelu_attrs attrs = {.tanh = true};
    tw_value *y = twi_case_bias_relu(builder, TWI_NAME(twi_op_dense).build_case(builder, c), false);
    return builder->node(builder, "gelu", "gelu", 1, &y, &attrs);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_bias_gelu) = {
    .name = "dense_bias_gelu",
    .formula = "y = gelu(dense(x, w) + b)",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "dense.forward_bias_gelu",
};

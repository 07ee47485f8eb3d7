/* The end of a residual block in one pass: batch norm's last pass, the shortcut added, relu; and the backward passes
 * that read the relu's mask.
 *
 *   t = scale[c] * x + offset[c] + r     y = t < 0 ? 0 : t     mask = !(t <= 0)
 *
 * The gradient of the shortcut r is mask ? dy : 0: written by relu.backward_masked, or added to another contribution by
 * add.masked. Batch norm's own backward passes are those of fused_batch_norm_relu.c. Reached by fusion alone. */
#include "kernels.h"

/* ---- specification: by the single kernels, where there are such ---- */

static void apply_add_relu_run(const twi_call *call) {
    const twi_operand *r = &call->operand[2], *y = &call->operand[3], *mask = &call->operand[4];
    twi_call part = *call;
    part.operand_count = 3;
    part.operand[2] = *y;
    TWI_NAME(twi_kernel_batch_norm_apply).run(&part);
    part.operand[0] = *y;
    part.operand[1] = *r;
    TWI_NAME(twi_kernel_add_forward).run(&part);
    twi_relu_with_mask(y, mask);
}

static void relu_backward_masked_run(const twi_call *call) {
    const twi_operand *dy = &call->operand[0], *mask = &call->operand[1], *dxo = &call->operand[2];
    tw_real *dx = dxo->data;
    for (int64_t n = 0; n < dy->shape.dim[0]; n++)
        for (int64_t i = 0; i < twi_sample_count(dy); i++) dx[twi_offset(dxo, n, i)] = twi_masked(dy, mask, n, i);
}

static void add_masked_run(const twi_call *call) {
    const twi_operand *dy = &call->operand[0], *mask = &call->operand[1];
    const twi_operand *bo = &call->operand[2], *yo = &call->operand[3];
    const tw_real *b = bo->data;
    tw_real *y = yo->data;
    for (int64_t n = 0; n < dy->shape.dim[0]; n++)
        for (int64_t i = 0; i < twi_sample_count(dy); i++)
            y[twi_offset(yo, n, i)] = twi_masked(dy, mask, n, i) + b[twi_offset(bo, n, i)];
}

/* ---- kernels ---- */

static const twi_kernel apply_add_relu = {
    .name = "batch_norm.apply_add_relu",
    .operand_count = 5,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"coef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"r", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1},
                {"mask", TWI_WRITE, TWI_BITS, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = apply_add_relu_run,
};

const twi_kernel TWI_NAME(twi_kernel_relu_backward_masked) = {
    .name = "relu.backward_masked",
    .operand_count = 3,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"mask", TWI_READ, TWI_BITS, TWI_BATCHED, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1}},
    .split = TWI_BY_SAMPLE,
    .run = relu_backward_masked_run,
};

static const twi_kernel add_masked = {
    .name = "add.masked",
    .operand_count = 4,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"mask", TWI_READ, TWI_BITS, TWI_BATCHED, 0},
                {"b", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 3}}, /* may take b's memory */
    .split = TWI_BY_SAMPLE,
    .run = add_masked_run,
};

/* ---- cases: the plain graph, which the fusion pass makes into the kernels above ---- */

enum { SHORTCUT_INPUT, SHORTCUT_NORM, SHORTCUT_SAME };

/* {N, C, H, W, shortcut, frozen}; H 0: [N, C] */
static const twi_case cases[] = {
    {"flat", {5, 17, 0, 0, SHORTCUT_INPUT}},
    {"one image", {1, 3, 4, 5, SHORTCUT_INPUT}},
    {"one channel", {4, 1, 3, 5, SHORTCUT_INPUT}},
    {"16 channels", {2, 16, 3, 3, SHORTCUT_INPUT}},
    {"shortcut normalised", {3, 5, 3, 5, SHORTCUT_NORM}},
    {"shortcut normalised, 8 channels", {2, 8, 3, 3, SHORTCUT_NORM}},
    {"shortcut normalised, flat", {5, 3, 0, 0, SHORTCUT_NORM}},
    {"shortcut is a relu with other readers", {3, 17, 2, 3, SHORTCUT_SAME}},
    {"shortcut is a relu, pixels", {5, 32, 1, 1, SHORTCUT_SAME}},
    {"large flat", {17, 201, 0, 0, SHORTCUT_INPUT}},
    {"large", {16, 32, 15, 16, SHORTCUT_INPUT}},
    {"large, shortcut normalised", {17, 64, 7, 9, SHORTCUT_NORM}},
    {"large, shortcut is a relu", {17, 16, 9, 14, SHORTCUT_SAME}},
    {"frozen", {3, 5, 3, 5, SHORTCUT_INPUT, 1}},
    {"frozen, shortcut normalised", {2, 8, 3, 3, SHORTCUT_NORM, 1}},
    {"frozen, shortcut is a relu with other readers", {3, 17, 2, 3, SHORTCUT_SAME, 1}},
    {"large, frozen", {17, 64, 7, 9, SHORTCUT_NORM, 1}},
    {NULL, {0}},
};

/* relu(norm(x) + shortcut). The shortcut is an input; a second batch norm, as where a block changes its width; or the
 * relu of one, whose value a further sum reads too, so that its gradient has two contributions. */
static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    static const char *const names[7] = {"norm", "x", "gamma", "beta", "mean", "var", "batches"};
    static const char *const others[7] = {"norm2", "x2", "gamma2", "beta2", "mean2", "var2", "batches2"};
    tw_value *norm = TWI_NAME(twi_case_batch_norm)(builder, c, names, c->p[5] != 0), *shortcut;
    if (c->p[4] == SHORTCUT_INPUT) {
        shortcut = builder->input(builder, "r", c->p[2] ? 4 : 2, c->p);
    } else {
        shortcut = TWI_NAME(twi_case_batch_norm)(builder, c, others, c->p[5] != 0);
        if (c->p[4] == SHORTCUT_SAME) shortcut = builder->node(builder, "relu", "relu2", 1, &shortcut, NULL);
    }
    tw_value *sum = builder->node(builder, "add", "sum", 2, (tw_value *[]){norm, shortcut}, NULL);
    tw_value *end = builder->node(builder, "relu", "relu", 1, &sum, NULL);
    if (c->p[4] != SHORTCUT_SAME) return end;
    return builder->node(builder, "add", "both", 2, (tw_value *[]){end, shortcut}, NULL);
}

/* ---- record ---- */

static const twi_kernel *const kernels[] = {&apply_add_relu, &TWI_NAME(twi_kernel_relu_backward_masked), &add_masked,
                                            NULL};

const twi_op TWI_NAME(twi_op_batch_norm_add_relu) = {
    .name = "batch_norm_add_relu",
    .formula = "y = relu(batch_norm(x) + r)",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "batch_norm.apply_add_relu",
};

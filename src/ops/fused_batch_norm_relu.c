/* Batch norm's last pass with the relu after it in one, and the backward passes that read the relu's mask.
 *
 *   t = scale[c] * x + offset[c]     y = t < 0 ? 0 : t     mask = !(t <= 0)
 *
 * The mask is one bit an element, so that the backward needs neither y nor t: a 32nd of the memory. Its passes are
 * those of batch norm with dy replaced by mask ? dy : 0. The statistics are batch norm's own. Reached by the fusion
 * pass alone. */
#include "kernels.h"

/* ---- specification: by the single kernels ---- */

static void apply_relu_run(const twi_call *call) {
    TWI_NAME(twi_kernel_batch_norm_apply).run(call); /* x, coef, y come first in both */
    twi_relu_with_mask(&call->operand[2], &call->operand[3]);
}

static void backward_sums_masked_run(const twi_call *call) {
    const twi_operand *o = call->operand;
    TWI_NAME(twi_norm_backward_sums)(&o[0], &o[1], &o[2], &o[3], &o[4]);
}

/* dx holds the masked dy in between. */
static void backward_apply_masked_run(const twi_call *call) {
    const twi_operand *x = &call->operand[2], *dcoef = &call->operand[3], *dx = &call->operand[4];
    twi_call part = *call;
    part.operand_count = 3;
    part.operand[2] = *dx;
    TWI_NAME(twi_kernel_relu_backward_masked).run(&part);
    part.operand_count = 4;
    part.operand[0] = part.operand[3] = *dx;
    part.operand[1] = *x;
    part.operand[2] = *dcoef;
    TWI_NAME(twi_kernel_batch_norm_backward_apply).run(&part);
}

/* ---- kernels ---- */

static const twi_kernel apply_relu = {
    .name = "batch_norm.apply_relu",
    .operand_count = 4,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"coef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1},
                {"mask", TWI_WRITE, TWI_BITS, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = apply_relu_run,
};

static const twi_kernel backward_sums_masked = {
    .name = "batch_norm.backward_sums_masked",
    .operand_count = 5,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"mask", TWI_READ, TWI_BITS, TWI_BATCHED, 0},
                {"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"coef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"sums", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = backward_sums_masked_run,
};

static const twi_kernel backward_apply_masked = {
    .name = "batch_norm.backward_apply_masked",
    .operand_count = 5,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"mask", TWI_READ, TWI_BITS, TWI_BATCHED, 0},
                {"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"dcoef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1}},
    .split = TWI_BY_SAMPLE,
    .run = backward_apply_masked_run,
};

/* ---- cases: the plain graph, which the fusion pass makes into the kernels above ---- */

/* {N, C, H, W, frozen}; H 0: [N, C] */
static const twi_case cases[] = {
    {"flat", {5, 17, 0}},
    {"one channel", {7, 1, 0}},
    {"one image", {1, 3, 4, 5}},
    {"odd image", {3, 5, 5, 3}},
    {"8 channels", {2, 8, 3, 3}},
    {"16 channels", {2, 16, 3, 3}},
    {"17 channels", {2, 17, 2, 3}},
    {"pixels", {5, 32, 1, 1}},
    {"large flat", {17, 201, 0}},
    {"large few channels", {16, 3, 31, 32}},
    {"large many channels", {17, 64, 9, 14}},
    {"frozen flat", {5, 17, 0, 0, 1}},
    {"frozen image", {3, 5, 5, 3, 1}},
    {"large frozen images", {17, 64, 9, 14, 1}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    static const char *const names[7] = {"norm", "x", "gamma", "beta", "mean", "var", "batches"};
    tw_value *norm = TWI_NAME(twi_case_batch_norm)(builder, c, names, c->p[4] != 0);
    return builder->node(builder, "relu", "relu", 1, &norm, NULL);
}

/* ---- record ---- */

static const twi_kernel *const kernels[] = {&apply_relu, &backward_sums_masked, &backward_apply_masked, NULL};

const twi_op TWI_NAME(twi_op_batch_norm_relu) = {
    .name = "batch_norm_relu",
    .formula = "y = relu(batch_norm(x))",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "batch_norm.apply_relu",
};

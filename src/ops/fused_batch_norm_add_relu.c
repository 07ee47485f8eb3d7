/* The end of a residual block in one pass: batch norm's last pass, the shortcut added, relu; and the backward passes
 * that read the relu's mask.
 *
 *   t = scale[c] * x + offset[c] + r     y = t < 0 ? 0 : t     mask = !(t <= 0)
 *
 * The gradient of the shortcut r is mask ? dy : 0: written by relu.backward_masked, or added to another contribution by
 * add.masked. Batch norm's own backward passes are those of fused_batch_norm_relu.c. Reached by fusion alone. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

static void apply_add_relu_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *ro = &call->operand[2];
    const twi_operand *yo = &call->operand[3], *mo = &call->operand[4];
    const tw_real *x = TWI_DATA(const tw_real, call, 0), *coef = TWI_DATA(const tw_real, call, 1);
    const tw_real *r = TWI_DATA(const tw_real, call, 2);
    tw_real *y = TWI_DATA(tw_real, call, 3);
    int64_t batch = twi_dim(xo, 0), channels = twi_dim(xo, 1), height = twi_dim(xo, 2), width = twi_dim(xo, 3);
    const tw_real *scale = coef + TWI_NORM_SCALE * channels, *offset = coef + TWI_NORM_OFFSET * channels;
    for (int64_t n = 0; n < batch; n++) {
        uint8_t *mask = twi_mask_sample(mo, n); /* NULL: no backward follows */
        for (int64_t c = 0; c < channels; c++)
            for (int64_t h = 0; h < height; h++)
                for (int64_t w = 0; w < width; w++) {
                    tw_real t = scale[c] * x[twi_at4(xo, n, c, h, w)] + offset[c] + r[twi_at4(ro, n, c, h, w)];
                    y[twi_at4(yo, n, c, h, w)] = t < 0 ? 0 : t; /* keeps NaN */
                    if (mask) twi_bit_set(mask, twi_at4(mo, 0, c, h, w), !(t <= 0));
                }
    }
}

static void relu_backward_masked_run(const twi_call *call) {
    const twi_operand *dyo = &call->operand[0], *mo = &call->operand[1], *dxo = &call->operand[2];
    const tw_real *dy = TWI_DATA(const tw_real, call, 0);
    tw_real *dx = TWI_DATA(tw_real, call, 2);
    for (int64_t n = 0; n < twi_dim(dyo, 0); n++) {
        const uint8_t *mask = twi_mask_sample(mo, n);
        for (int64_t c = 0; c < twi_dim(dyo, 1); c++)
            for (int64_t h = 0; h < twi_dim(dyo, 2); h++)
                for (int64_t w = 0; w < twi_dim(dyo, 3); w++) {
                    bool kept = twi_bit_get(mask, twi_at4(mo, 0, c, h, w));
                    dx[twi_at4(dxo, n, c, h, w)] = kept ? dy[twi_at4(dyo, n, c, h, w)] : 0;
                }
    }
}

static void add_masked_run(const twi_call *call) {
    const twi_operand *dyo = &call->operand[0], *mo = &call->operand[1];
    const twi_operand *bo = &call->operand[2], *yo = &call->operand[3];
    const tw_real *dy = TWI_DATA(const tw_real, call, 0), *b = TWI_DATA(const tw_real, call, 2);
    tw_real *y = TWI_DATA(tw_real, call, 3);
    for (int64_t n = 0; n < twi_dim(dyo, 0); n++) {
        const uint8_t *mask = twi_mask_sample(mo, n);
        for (int64_t c = 0; c < twi_dim(dyo, 1); c++)
            for (int64_t h = 0; h < twi_dim(dyo, 2); h++)
                for (int64_t w = 0; w < twi_dim(dyo, 3); w++) {
                    bool kept = twi_bit_get(mask, twi_at4(mo, 0, c, h, w));
                    y[twi_at4(yo, n, c, h, w)] = (kept ? dy[twi_at4(dyo, n, c, h, w)] : 0) + b[twi_at4(bo, n, c, h, w)];
                }
    }
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

static const twi_kernel relu_backward_masked = {
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

/* {N, C, H, W, shortcut}; H 0: [N, C] */
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
    {NULL, {0}},
};

/* relu(norm(x) + shortcut). The shortcut is an input; a second batch norm, as where a block changes its width; or the
 * relu of one, whose value a further sum reads too, so that its gradient has two contributions. */
static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    static const char *const names[7] = {"norm", "x", "gamma", "beta", "mean", "var", "batches"};
    static const char *const others[7] = {"norm2", "x2", "gamma2", "beta2", "mean2", "var2", "batches2"};
    tw_value *norm = TWI_NAME(twi_case_batch_norm)(builder, c, names), *shortcut;
    if (c->p[4] == SHORTCUT_INPUT) {
        shortcut = builder->input(builder, "r", c->p[2] ? 4 : 2, c->p);
    } else {
        shortcut = TWI_NAME(twi_case_batch_norm)(builder, c, others);
        if (c->p[4] == SHORTCUT_SAME) shortcut = builder->node(builder, "relu", "relu2", 1, &shortcut, NULL);
    }
    tw_value *sum = builder->node(builder, "add", "sum", 2, (tw_value *[]){norm, shortcut}, NULL);
    tw_value *end = builder->node(builder, "relu", "relu", 1, &sum, NULL);
    if (c->p[4] != SHORTCUT_SAME) return end;
    return builder->node(builder, "add", "both", 2, (tw_value *[]){end, shortcut}, NULL);
}

/* ---- record ---- */

static const twi_kernel *const kernels[] = {&apply_add_relu, &relu_backward_masked, &add_masked, NULL};

const twi_op TWI_NAME(twi_op_batch_norm_add_relu) = {
    .name = "batch_norm_add_relu",
    .formula = "y = relu(batch_norm(x) + r)",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "batch_norm.apply_add_relu",
};

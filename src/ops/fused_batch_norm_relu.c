/* Batch norm's last pass with the relu after it in one, and the backward passes that read the relu's mask.
 *
 *   t = scale[c] * x + offset[c]     y = t < 0 ? 0 : t     mask = !(t <= 0)
 *
 * The mask is one bit an element, so that the backward needs neither y nor t: a 32nd of the memory. Its passes are
 * those of batch norm with dy replaced by mask ? dy : 0. The statistics are batch norm's own. Reached by the fusion
 * pass alone. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

static void apply_relu_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *yo = &call->operand[2], *mo = &call->operand[3];
    const tw_real *x = TWI_DATA(const tw_real, call, 0), *coef = TWI_DATA(const tw_real, call, 1);
    tw_real *y = TWI_DATA(tw_real, call, 2);
    int64_t batch = twi_dim(xo, 0), channels = twi_dim(xo, 1), height = twi_dim(xo, 2), width = twi_dim(xo, 3);
    const tw_real *scale = coef + TWI_NORM_SCALE * channels, *offset = coef + TWI_NORM_OFFSET * channels;
    for (int64_t n = 0; n < batch; n++) {
        uint8_t *mask = twi_mask_sample(mo, n); /* NULL: no backward follows */
        for (int64_t c = 0; c < channels; c++)
            for (int64_t h = 0; h < height; h++)
                for (int64_t w = 0; w < width; w++) {
                    tw_real t = scale[c] * x[twi_at4(xo, n, c, h, w)] + offset[c];
                    y[twi_at4(yo, n, c, h, w)] = t < 0 ? 0 : t; /* keeps NaN */
                    if (mask) twi_bit_set(mask, twi_at4(mo, 0, c, h, w), !(t <= 0));
                }
    }
}

static void backward_sums_masked_run(const twi_call *call) {
    const twi_operand *dyo = &call->operand[0], *mo = &call->operand[1], *xo = &call->operand[2];
    const tw_real *dy = TWI_DATA(const tw_real, call, 0), *x = TWI_DATA(const tw_real, call, 2);
    const tw_real *mean = TWI_DATA(const tw_real, call, 3); /* the first row of coef */
    tw_real *sums = TWI_DATA(tw_real, call, 4);
    int64_t batch = twi_dim(xo, 0), channels = twi_dim(xo, 1), height = twi_dim(xo, 2), width = twi_dim(xo, 3);
    for (int64_t c = 0; c < channels; c++) {
        tw_real sum = 0, product = 0;
        for (int64_t n = 0; n < batch; n++) {
            const uint8_t *mask = twi_mask_sample(mo, n);
            for (int64_t h = 0; h < height; h++)
                for (int64_t w = 0; w < width; w++) {
                    if (!twi_bit_get(mask, twi_at4(mo, 0, c, h, w))) continue;
                    tw_real d = dy[twi_at4(dyo, n, c, h, w)];
                    sum += d;
                    product += d * (x[twi_at4(xo, n, c, h, w)] - mean[c]);
                }
        }
        sums[TWI_NORM_SUM * channels + c] += sum;
        sums[TWI_NORM_PRODUCT * channels + c] += product;
        sums[TWI_NORM_COUNT * channels + c] += (tw_real)(batch * height * width);
    }
}

static void backward_apply_masked_run(const twi_call *call) {
    const twi_operand *dyo = &call->operand[0], *mo = &call->operand[1];
    const twi_operand *xo = &call->operand[2], *dxo = &call->operand[4];
    const tw_real *dy = TWI_DATA(const tw_real, call, 0), *x = TWI_DATA(const tw_real, call, 2);
    const tw_real *dcoef = TWI_DATA(const tw_real, call, 3);
    tw_real *dx = TWI_DATA(tw_real, call, 4);
    int64_t batch = twi_dim(xo, 0), channels = twi_dim(xo, 1), height = twi_dim(xo, 2), width = twi_dim(xo, 3);
    const tw_real *a = dcoef + TWI_NORM_A * channels, *b = dcoef + TWI_NORM_B * channels;
    const tw_real *k = dcoef + TWI_NORM_K * channels;
    for (int64_t n = 0; n < batch; n++) {
        const uint8_t *mask = twi_mask_sample(mo, n);
        for (int64_t c = 0; c < channels; c++)
            for (int64_t h = 0; h < height; h++)
                for (int64_t w = 0; w < width; w++) {
                    bool kept = twi_bit_get(mask, twi_at4(mo, 0, c, h, w));
                    tw_real d = kept ? dy[twi_at4(dyo, n, c, h, w)] : 0;
                    dx[twi_at4(dxo, n, c, h, w)] = a[c] * d + b[c] * x[twi_at4(xo, n, c, h, w)] + k[c];
                }
    }
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

/* {N, C, H, W}; H 0: [N, C] */
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
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    static const char *const names[7] = {"norm", "x", "gamma", "beta", "mean", "var", "batches"};
    tw_value *norm = TWI_NAME(twi_case_batch_norm)(builder, c, names);
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

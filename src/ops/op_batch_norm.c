/* Batch normalisation: every channel c is brought to mean 0 and variance 1 over the batch, then scaled and shifted.
 *
 *   y = gamma[c] * (x - mean[c]) / sqrt(var[c] + epsilon) + beta[c]
 *
 * Training: mean and var are those of the batch (var divides by n, the elements of a channel). The running statistics
 * move towards the batch's with weight `momentum`, the running variance with the estimate that divides by n - 1; a
 * channel of one element has no such estimate and uses the other, 0: a last batch of one trains on and spoils nothing.
 * Inference: mean and var are the running ones.
 * Frozen: so they are in training, where they do not move; they are constants, and dx = gamma * inv * dy.
 * Backward: dx = gamma * inv * (dy - sum(dy)/n - (x - mean) * inv^2 * sum(dy * (x - mean))/n) with
 * inv = 1/sqrt(var + epsilon), written as A*dy + B*x + K: three numbers a channel.
 * Source: Ioffe, Szegedy, "Batch normalization", ICML 2015. Shifting the data before summing squares: Chan, Golub,
 * LeVeque, "Algorithms for computing the sample variance", 1983; the running mean is the shift, being close to the
 * batch's as a rule. Where it is not (the first batches of a channel far from 0), squares of the distance would drown
 * the variance: then, and only then, the data are summed a second time, around the batch's own mean. */
#include "backend/attrs.h"
#include "kernels.h"
#include "rules.h"

#include <inttypes.h>
#include <tgmath.h>

enum { IN_X, IN_GAMMA, IN_BETA, IN_MEAN, IN_VAR, IN_BATCHES, INPUTS };
enum { SAVED_COEF };

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    static const char *const names[INPUTS] = {
        "the input", "gamma", "beta", "the running mean", "the running variance", "the count of batches"};
    const twi_batch_norm_attrs *attrs = infer->attrs;
    const twi_shape *x = &infer->input[IN_X];
    char text[TWI_SHAPE_TEXT];
    if (x->rank != 2 && x->rank != 4)
        return TWI_FAIL(TW_ERROR_SHAPE, "batch_norm '%s': input is %s, expected [N, C] or [N, C, H, W]; reshape it",
                        infer->name, twi_shape_text(x, text));
    TWI_TRY(twi_rule_input(infer, IN_X, names[IN_X], x->rank, true));
    for (int i = IN_GAMMA; i < INPUTS; i++) {
        TWI_TRY(twi_rule_input(infer, i, names[i], 1, false));
        int64_t expected = i == IN_BATCHES ? 1 : x->dim[1];
        if (infer->input[i].dim[0] != expected)
            return TWI_FAIL(TW_ERROR_SHAPE,
                            "batch_norm '%s': %s is %s, expected [%" PRId64 "]: the input has %" PRId64 " channels",
                            infer->name, names[i], twi_shape_text(&infer->input[i], text), expected, x->dim[1]);
    }
    if (!(attrs->epsilon > 0))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "batch_norm '%s': epsilon is %g, expected more than 0; 1e-5 is usual",
                        infer->name, attrs->epsilon);
    if (!(attrs->momentum >= 0 && attrs->momentum <= 1))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "batch_norm '%s': momentum, the weight of the newest batch, is %g, expected 0 to 1, e.g. 0.1",
                        infer->name, attrs->momentum);
    return twi_rule_output(infer, *x);
}

/* ---- lowering ---- */

static const twi_kernel statistics, center, refine, finalize, from_running, backward_sums, backward_finalize,
    backward_frozen;

/* Are mean and var those of the batch? */
static bool of_batch(const twi_lower *lower) {
    const twi_batch_norm_attrs *attrs = twi_lower_attrs(lower);
    return twi_lower_training(lower) && !attrs->frozen;
}

static twi_ref channel_rows(twi_lower *lower, const char *name, int64_t rows) {
    const twi_shape shape = {2, {rows, twi_lower_input_shape(lower, IN_X)->dim[1]}};
    return twi_lower_buffer(lower, name, &shape, TWI_ACC, false);
}

static void forward(twi_lower *lower) {
    twi_ref x = twi_lower_input(lower, IN_X), gamma = twi_lower_input(lower, IN_GAMMA);
    twi_ref beta = twi_lower_input(lower, IN_BETA), mean = twi_lower_input(lower, IN_MEAN);
    twi_ref var = twi_lower_input(lower, IN_VAR);
    twi_ref coef = channel_rows(lower, "coef", TWI_NORM_COEFFICIENTS);
    if (of_batch(lower)) {
        twi_ref sums = channel_rows(lower, "sums", TWI_NORM_SUMS);
        twi_lower_step(lower, &statistics, (twi_ref[]){x, mean, sums});
        twi_ref centers = channel_rows(lower, "centers", TWI_NORM_CENTERS);
        twi_ref refined = channel_rows(lower, "refined sums", TWI_NORM_SUMS);
        twi_lower_step(lower, &center, (twi_ref[]){sums, mean, centers});
        twi_lower_step(lower, &refine, (twi_ref[]){x, centers, refined});
        twi_ref batches = twi_lower_input(lower, IN_BATCHES);
        twi_lower_step(lower, &finalize,
                       (twi_ref[]){sums, gamma, beta, mean, var, batches, coef, twi_lower_shadow(lower, IN_MEAN),
                                   twi_lower_shadow(lower, IN_VAR), twi_lower_shadow(lower, IN_BATCHES), centers,
                                   refined});
    } else {
        twi_lower_step(lower, &from_running, (twi_ref[]){gamma, beta, mean, var, coef});
    }
    twi_lower_save(lower, SAVED_COEF, coef);
    twi_lower_step(lower, &TWI_NAME(twi_kernel_batch_norm_apply), (twi_ref[]){x, coef, twi_lower_output(lower, 0)});
}

static void lower_apply(twi_lower *lower, twi_ref dy, twi_ref x, twi_ref dcoef) {
    twi_lower_step(lower, &TWI_NAME(twi_kernel_batch_norm_backward_apply),
                   (twi_ref[]){dy, x, dcoef, twi_lower_input_gradient(lower, IN_X)});
}

/* Frozen, dx waits for no sum: a chunk goes through both passes. Without gamma and beta nothing is summed then. */
static void backward(twi_lower *lower) {
    twi_ref dy = twi_lower_output_gradient(lower, 0), x = twi_lower_input(lower, IN_X);
    twi_ref coef = twi_lower_saved(lower, SAVED_COEF), dcoef = TWI_NO_REF;
    const bool batch = of_batch(lower), wanted = twi_lower_wants_gradient(lower, IN_X);
    if (batch || wanted) dcoef = channel_rows(lower, "gradient coef", TWI_NORM_GRADIENTS);
    if (!batch && wanted) {
        twi_lower_step(lower, &backward_frozen, (twi_ref[]){coef, dcoef});
        lower_apply(lower, dy, x, dcoef);
    }
    if (batch || twi_lower_wants_gradient(lower, IN_GAMMA) || twi_lower_wants_gradient(lower, IN_BETA)) {
        twi_ref sums = channel_rows(lower, "gradient sums", TWI_NORM_SUMS);
        twi_lower_step(lower, &backward_sums, (twi_ref[]){dy, x, coef, sums});
        twi_lower_step(lower, &backward_finalize,
                       (twi_ref[]){sums, coef, twi_lower_input(lower, IN_GAMMA),
                                   twi_lower_input_gradient(lower, IN_GAMMA), twi_lower_input_gradient(lower, IN_BETA),
                                   batch ? dcoef : TWI_NO_REF});
    }
    if (batch && wanted) lower_apply(lower, dy, x, dcoef);
}

/* ---- specification: elements i of a sample in logical order, channel by channel ---- */

/* Elements of one channel of a sample. */
static int64_t channel_size(const twi_operand *x) { return twi_shape_count_from(&x->shape, 2); }

static void add_sums(tw_real *sums, int64_t channels, int64_t c, tw_real sum, tw_real product, int64_t count) {
    sums[TWI_NORM_SUM * channels + c] += sum;
    sums[TWI_NORM_PRODUCT * channels + c] += product;
    sums[TWI_NORM_COUNT * channels + c] += (tw_real)count;
}

/* operand 2 += sums of operand 0 around operand 1 */
static void statistics_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0];
    const tw_real *x = TWI_DATA(const tw_real, call, 0), *shift = TWI_DATA(const tw_real, call, 1);
    int64_t batch = xo->shape.dim[0], channels = xo->shape.dim[1], size = channel_size(xo);
    for (int64_t c = 0; c < channels; c++) {
        tw_real sum = 0, squares = 0;
        for (int64_t n = 0; n < batch; n++)
            for (int64_t i = c * size; i < (c + 1) * size; i++) {
                tw_real d = x[twi_offset(xo, n, i)] - shift[c];
                sum += d;
                squares += d * d;
            }
        add_sums(TWI_DATA(tw_real, call, 2), channels, c, sum, squares, batch * size);
    }
}

/* A mean so far from the shift, in deviations, that its square costs the variance digits that matter. */
#define FAR_DEVIATIONS 8

static void center_run(const twi_call *call) {
    const tw_real *sums = TWI_DATA(const tw_real, call, 0), *mean = TWI_DATA(const tw_real, call, 1);
    tw_real *centers = TWI_DATA(tw_real, call, 2);
    int64_t channels = call->operand[1].shape.dim[0];
    for (int64_t c = 0; c < channels; c++) {
        tw_real count = sums[TWI_NORM_COUNT * channels + c], distance = sums[TWI_NORM_SUM * channels + c] / count;
        tw_real var = sums[TWI_NORM_PRODUCT * channels + c] / count - distance * distance;
        bool far = count > 1 && distance * distance > FAR_DEVIATIONS * FAR_DEVIATIONS * (var > 0 ? var : 0);
        centers[TWI_NORM_CENTER * channels + c] = mean[c] + distance;
        centers[TWI_NORM_FAR * channels + c] = far;
    }
}

static void refine_run(const twi_call *call) {
    int64_t channels = call->operand[0].shape.dim[1];
    const tw_real *far = TWI_DATA(const tw_real, call, 1) + TWI_NORM_FAR * channels;
    for (int64_t c = 0; c < channels; c++)
        if (far[c] != 0) {
            statistics_run(call); /* the centers are operand 1's first row */
            return;
        }
}

/* Mean, inverse deviation, scale and offset of channel c. */
static void set_coefficients(tw_real *coef, int64_t channels, int64_t c, tw_real mean, tw_real inverse, tw_real gamma,
                             tw_real beta) {
    coef[TWI_NORM_MEAN * channels + c] = mean;
    coef[TWI_NORM_INVERSE * channels + c] = inverse;
    coef[TWI_NORM_SCALE * channels + c] = gamma * inverse;
    coef[TWI_NORM_OFFSET * channels + c] = beta - mean * gamma * inverse;
}

static void finalize_run(const twi_call *call) {
    const twi_batch_norm_attrs *attrs = call->attrs;
    const tw_real *sums = TWI_DATA(const tw_real, call, 0);
    const tw_real *gamma = TWI_DATA(const tw_real, call, 1), *beta = TWI_DATA(const tw_real, call, 2);
    const tw_real *mean = TWI_DATA(const tw_real, call, 3), *var = TWI_DATA(const tw_real, call, 4);
    const tw_real *batches = TWI_DATA(const tw_real, call, 5);
    tw_real *coef = TWI_DATA(tw_real, call, 6);
    tw_real *mean_new = TWI_DATA(tw_real, call, 7), *var_new = TWI_DATA(tw_real, call, 8);
    tw_real *batches_new = TWI_DATA(tw_real, call, 9);
    const tw_real *centers = TWI_DATA(const tw_real, call, 10), *refined = TWI_DATA(const tw_real, call, 11);
    int64_t channels = call->operand[1].shape.dim[0];
    tw_real weight = attrs->momentum;
    for (int64_t c = 0; c < channels; c++) {
        bool far = centers && centers[TWI_NORM_FAR * channels + c] != 0;
        const tw_real *from = far ? refined : sums;
        tw_real shift = far ? centers[TWI_NORM_CENTER * channels + c] : mean[c];
        tw_real count = from[TWI_NORM_COUNT * channels + c];
        tw_real rest = from[TWI_NORM_SUM * channels + c] / count; /* of the batch's mean from the shift */
        tw_real batch_mean = shift + rest, distance = batch_mean - mean[c];
        tw_real batch_var = from[TWI_NORM_PRODUCT * channels + c] / count - rest * rest;
        if (batch_var < 0) batch_var = 0; /* rounding; NaN stays */
        tw_real unbiased = count > 1 ? batch_var * (count / (count - 1)) : batch_var;
        set_coefficients(coef, channels, c, batch_mean, 1 / sqrt(batch_var + attrs->epsilon), gamma[c], beta[c]);
        mean_new[c] = mean[c] + weight * distance;
        var_new[c] = (1 - weight) * var[c] + weight * unbiased;
    }
    batches_new[0] = batches[0] + 1;
}

static void from_running_run(const twi_call *call) {
    const twi_batch_norm_attrs *attrs = call->attrs;
    const tw_real *gamma = TWI_DATA(const tw_real, call, 0), *beta = TWI_DATA(const tw_real, call, 1);
    const tw_real *mean = TWI_DATA(const tw_real, call, 2), *var = TWI_DATA(const tw_real, call, 3);
    int64_t channels = call->operand[0].shape.dim[0];
    for (int64_t c = 0; c < channels; c++)
        set_coefficients(TWI_DATA(tw_real, call, 4), channels, c, mean[c], 1 / sqrt(var[c] + attrs->epsilon), gamma[c],
                         beta[c]);
}

static void apply_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *yo = &call->operand[2];
    const tw_real *x = TWI_DATA(const tw_real, call, 0), *coef = TWI_DATA(const tw_real, call, 1);
    tw_real *y = TWI_DATA(tw_real, call, 2);
    int64_t channels = xo->shape.dim[1], size = channel_size(xo);
    const tw_real *scale = coef + TWI_NORM_SCALE * channels, *offset = coef + TWI_NORM_OFFSET * channels;
    for (int64_t n = 0; n < xo->shape.dim[0]; n++)
        for (int64_t i = 0; i < channels * size; i++)
            y[twi_offset(yo, n, i)] = scale[i / size] * x[twi_offset(xo, n, i)] + offset[i / size];
}

void TWI_NAME(twi_norm_backward_sums)(const twi_operand *dy, const twi_operand *mask, const twi_operand *xo,
                                      const twi_operand *coef, const twi_operand *sums) {
    const tw_real *x = xo->data, *mean = (const tw_real *)coef->data + TWI_NORM_MEAN * coef->shape.dim[1];
    int64_t batch = xo->shape.dim[0], channels = xo->shape.dim[1], size = channel_size(xo);
    for (int64_t c = 0; c < channels; c++) {
        tw_real sum = 0, product = 0;
        for (int64_t n = 0; n < batch; n++)
            for (int64_t i = c * size; i < (c + 1) * size; i++) {
                tw_real d = twi_masked(dy, mask, n, i);
                sum += d;
                product += d * (x[twi_offset(xo, n, i)] - mean[c]);
            }
        add_sums(sums->data, channels, c, sum, product, batch * size);
    }
}

static void backward_sums_run(const twi_call *call) {
    const twi_operand *o = call->operand;
    TWI_NAME(twi_norm_backward_sums)(&o[0], NULL, &o[1], &o[2], &o[3]);
}

static void backward_finalize_run(const twi_call *call) {
    const tw_real *sums = TWI_DATA(const tw_real, call, 0), *coef = TWI_DATA(const tw_real, call, 1);
    const tw_real *gamma = TWI_DATA(const tw_real, call, 2);
    tw_real *dgamma = TWI_DATA(tw_real, call, 3), *dbeta = TWI_DATA(tw_real, call, 4); /* NULL: not wanted */
    tw_real *dcoef = TWI_DATA(tw_real, call, 5); /* NULL: the statistics are frozen */
    int64_t channels = call->operand[2].shape.dim[0];
    for (int64_t c = 0; c < channels; c++) {
        tw_real mean = coef[TWI_NORM_MEAN * channels + c], inverse = coef[TWI_NORM_INVERSE * channels + c];
        tw_real sum = sums[TWI_NORM_SUM * channels + c], product = sums[TWI_NORM_PRODUCT * channels + c];
        tw_real count = sums[TWI_NORM_COUNT * channels + c];
        tw_real slope = inverse * inverse * product / count;
        if (dgamma) dgamma[c] = product * inverse;
        if (dbeta) dbeta[c] = sum;
        if (!dcoef) continue;
        dcoef[TWI_NORM_A * channels + c] = gamma[c] * inverse;
        dcoef[TWI_NORM_B * channels + c] = -gamma[c] * inverse * slope;
        dcoef[TWI_NORM_K * channels + c] = gamma[c] * inverse * (mean * slope - sum / count);
    }
}

static void backward_frozen_run(const twi_call *call) {
    const tw_real *coef = TWI_DATA(const tw_real, call, 0);
    tw_real *dcoef = TWI_DATA(tw_real, call, 1);
    int64_t channels = call->operand[0].shape.dim[1];
    for (int64_t c = 0; c < channels; c++) {
        dcoef[TWI_NORM_A * channels + c] = coef[TWI_NORM_SCALE * channels + c];
        dcoef[TWI_NORM_B * channels + c] = dcoef[TWI_NORM_K * channels + c] = 0;
    }
}

static void backward_apply_run(const twi_call *call) {
    const twi_operand *dyo = &call->operand[0], *xo = &call->operand[1], *dxo = &call->operand[3];
    const tw_real *dy = TWI_DATA(const tw_real, call, 0), *x = TWI_DATA(const tw_real, call, 1);
    const tw_real *dcoef = TWI_DATA(const tw_real, call, 2);
    tw_real *dx = TWI_DATA(tw_real, call, 3);
    int64_t channels = xo->shape.dim[1], size = channel_size(xo);
    const tw_real *a = dcoef + TWI_NORM_A * channels, *b = dcoef + TWI_NORM_B * channels;
    const tw_real *k = dcoef + TWI_NORM_K * channels;
    for (int64_t n = 0; n < xo->shape.dim[0]; n++)
        for (int64_t i = 0; i < channels * size; i++) {
            int64_t c = i / size;
            dx[twi_offset(dxo, n, i)] = a[c] * dy[twi_offset(dyo, n, i)] + b[c] * x[twi_offset(xo, n, i)] + k[c];
        }
}

/* ---- kernels ---- */

static const twi_kernel statistics = {
    .name = "batch_norm.statistics",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"shift", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"sums", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}}, /* of x - shift, of its square, of 1 */
    .split = TWI_BY_SAMPLE,
    .run = statistics_run,
};

static const twi_kernel center = {
    .name = "batch_norm.center",
    .operand_count = 3,
    .operand = {{"sums", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"shift", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"centers", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = center_run,
};

static const twi_kernel refine = {
    .name = "batch_norm.refine",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"centers", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"sums", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}}, /* as of statistics; nothing where no channel is far */
    .split = TWI_BY_SAMPLE,
    .run = refine_run,
};

static const twi_kernel finalize = {
    .name = "batch_norm.finalize",
    .operand_count = 12,
    .operand = {{"sums", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"gamma", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"beta", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"mean", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"var", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"batches", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"coef", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0},
                {"mean_new", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0},
                {"var_new", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0},
                {"batches_new", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0},
                {"centers", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"refined", TWI_READ, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = finalize_run,
};

static const twi_kernel from_running = {
    .name = "batch_norm.from_running",
    .operand_count = 5,
    .operand = {{"gamma", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"beta", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"mean", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"var", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"coef", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = from_running_run,
    .pure = true,
};

const twi_kernel TWI_NAME(twi_kernel_batch_norm_apply) = {
    .name = "batch_norm.apply",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"coef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1}},
    .split = TWI_BY_SAMPLE,
    .run = apply_run,
};

static const twi_kernel backward_sums = {
    .name = "batch_norm.backward_sums",
    .operand_count = 4,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"coef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"sums", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}}, /* of dy, of dy * (x - mean), of 1 */
    .split = TWI_BY_SAMPLE,
    .run = backward_sums_run,
};

static const twi_kernel backward_finalize = {
    .name = "batch_norm.backward_finalize",
    .operand_count = 6,
    .operand = {{"sums", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"coef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"gamma", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"dgamma", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0},
                {"dbeta", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0},
                {"dcoef", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = backward_finalize_run,
};

static const twi_kernel backward_frozen = {
    .name = "batch_norm.backward_frozen",
    .operand_count = 2,
    .operand = {{"coef", TWI_READ, TWI_ACC, TWI_WHOLE, 0}, {"dcoef", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = backward_frozen_run,
};

const twi_kernel TWI_NAME(twi_kernel_batch_norm_backward_apply) = {
    .name = "batch_norm.backward_apply",
    .operand_count = 4,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"dcoef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1}},
    .split = TWI_BY_SAMPLE,
    .run = backward_apply_run,
};

/* ---- cases ---- */

/* {N, C, H, W, frozen}; H 0: [N, C] */
static const twi_case cases[] = {
    {"one sample", {1, 3, 0}},
    {"two samples", {2, 5, 0}},
    {"one channel", {7, 1, 0}},
    {"flat", {5, 17, 0}},
    {"flat wide", {3, 32, 0}},
    {"one image", {1, 3, 4, 5}},
    {"one channel of images", {4, 1, 3, 3}},
    {"odd image", {3, 8, 5, 3}},
    {"16 channels", {2, 16, 3, 3}},
    {"17 channels", {2, 17, 2, 3}},
    {"pixels", {5, 32, 1, 1}},
    {"row", {3, 5, 1, 7}},
    {"large flat", {17, 201, 0}},
    {"large few channels", {16, 3, 32, 31}},
    {"large many channels", {17, 64, 9, 14}},
    {"frozen flat", {5, 17, 0, 0, 1}},
    {"frozen image", {3, 8, 5, 3, 1}},
    {"frozen 17 channels", {2, 17, 2, 3, 1}},
    {"large frozen images", {17, 64, 9, 14, 1}},
    {NULL, {0}},
};

tw_value *TWI_NAME(twi_case_batch_norm)(twi_builder *builder, const twi_case *c, const char *const names[7],
                                        bool frozen) {
    const twi_batch_norm_attrs attrs = {.epsilon = 1e-5f, .momentum = 0.1f, .frozen = frozen};
    const int64_t one = 1, *channels = &c->p[1];
    tw_value *inputs[INPUTS] = {
        [IN_X] = builder->input(builder, names[1], c->p[2] ? 4 : 2, c->p),
        [IN_GAMMA] = builder->parameter(builder, names[2], 1, channels),
        [IN_BETA] = builder->parameter(builder, names[3], 1, channels),
        [IN_MEAN] = builder->buffer(builder, names[4], 1, channels, 0.25),
        [IN_VAR] = builder->buffer(builder, names[5], 1, channels, 1.5),
        [IN_BATCHES] = builder->buffer(builder, names[6], 1, &one, 0),
    };
    return builder->node(builder, "batch_norm", names[0], INPUTS, inputs, &attrs);
}

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    static const char *const names[7] = {"norm", "x", "gamma", "beta", "mean", "var", "batches"};
    return TWI_NAME(twi_case_batch_norm)(builder, c, names, c->p[4] != 0);
}

/* ---- record ---- */

static const twi_attr attributes[] = {
    {"epsilon", TWI_ATTR_FLOAT, offsetof(twi_batch_norm_attrs, epsilon), 1e-5},
    {"momentum", TWI_ATTR_FLOAT, offsetof(twi_batch_norm_attrs, momentum), 0.1},
    {"frozen", TWI_ATTR_BOOL, offsetof(twi_batch_norm_attrs, frozen), 0},
};

static const twi_kernel *const kernels[] = {&statistics,
                                            &center,
                                            &refine,
                                            &finalize,
                                            &from_running,
                                            &TWI_NAME(twi_kernel_batch_norm_apply),
                                            &backward_sums,
                                            &backward_finalize,
                                            &backward_frozen,
                                            &TWI_NAME(twi_kernel_batch_norm_backward_apply),
                                            NULL};

const twi_op TWI_NAME(twi_op_batch_norm) = {
    .name = "batch_norm",
    .formula = "y = gamma[c] * (x - mean[c]) / sqrt(var[c] + epsilon) + beta[c]",
    .inputs_min = INPUTS,
    .inputs_max = INPUTS,
    .outputs = 1,
    .attrs = attributes,
    .attr_count = sizeof attributes / sizeof *attributes,
    .attr_size = sizeof(twi_batch_norm_attrs),
    .frozen = &attributes[2],
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

/* Batch norm: statistics over the batch, what is made of them a channel, and the passes over the elements, with relu, its
 * mask and a shortcut fused in. Formulas: src/ops/op_batch_norm.c, fused_batch_norm_relu.c, fused_batch_norm_add_relu.c,
 * fused_batch_norm_fold.c. */
#include "channels.cuh"
#include "entries.h"
#include "pointwise.cuh"

namespace {

/* ---- sums a channel ---- */

/* Of x - center and of its square. */
struct statistics : twk_channel_functor<2, 1, false, true> {
    __device__ float operator()(const float *in, bool, float center, float *sum) const {
        float d = in[0] - center;
        sum[TWI_NORM_SUM] += d;
        sum[TWI_NORM_PRODUCT] += d * d;
        return 0;
    }
};

/* The same where any channel is far. */
struct refine : statistics {
    const float *far;
    int64_t channels;
    __device__ bool begin() const {
        int any = 0;
        for (int64_t c = threadIdx.y * blockDim.x + threadIdx.x; c < channels; c += TWK_THREADS) any |= far[c] != 0;
        return __syncthreads_or(any) != 0;
    }
};

/* Of dy and of dy * (x - mean); in: dy, x. */
template <bool MASKED> struct backward_sums : twk_channel_functor<2, 2, MASKED, true> {
    __device__ float operator()(const float *in, bool bit, float mean, float *sum) const {
        float dy = MASKED && !bit ? 0 : in[0];
        sum[TWI_NORM_SUM] += dy;
        sum[TWI_NORM_PRODUCT] += dy * (in[1] - mean);
        return 0;
    }
};

/* Operand 0 is x or dy. */
size_t workspace(const twi_call *call) { return twk_channels_workspace(&call->operand[0], TWK_CHANNELS, 2); }

template <class T, class F>
cudaError_t run_sums(const twk_launch *launch, F f, const twi_operand *const *in, const twi_operand *mask,
                     const float *center, const twi_operand *sums) {
    float *rows = (float *)sums->data, *counts = rows + TWI_NORM_COUNT * in[0]->shape.dim[1];
    return twk_channel_sums<T>(launch, f, TWK_CHANNELS, in, NULL, mask, center, rows, counts);
}

template <class T> cudaError_t run_statistics(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand, *const in[] = {&o[0]};
    return run_sums<T>(launch, statistics(), in, NULL, (const float *)o[1].data, &o[2]);
}

template <class T> cudaError_t run_refine(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand, *const in[] = {&o[0]};
    const float *centers = (const float *)o[1].data;
    refine f = {};
    f.channels = o[0].shape.dim[1];
    f.far = centers + TWI_NORM_FAR * f.channels;
    return run_sums<T>(launch, f, in, NULL, centers + TWI_NORM_CENTER * f.channels, &o[2]);
}

template <class T> cudaError_t run_backward_sums(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand, *const in[] = {&o[0], &o[1]};
    const float *mean = (const float *)o[2].data + TWI_NORM_MEAN * o[1].shape.dim[1];
    return run_sums<T>(launch, backward_sums<false>(), in, NULL, mean, &o[3]);
}

template <class T> cudaError_t run_backward_sums_masked(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand, *const in[] = {&o[0], &o[2]};
    const float *mean = (const float *)o[3].data + TWI_NORM_MEAN * o[2].shape.dim[1];
    return run_sums<T>(launch, backward_sums<true>(), in, &o[1], mean, &o[4]);
}

/* ---- numbers a channel ---- */

/* A thread a channel. */
template <class F> __global__ void each_channel(F f, int64_t channels) {
    int64_t c = twk_thread();
    if (c < channels) f(channels, c);
}

template <class F> cudaError_t run_each_channel(const twk_launch *launch, const F &f, int64_t channels) {
    return TWC_LAUNCH((each_channel<F>), twk_blocks(channels), TWK_THREADS, 0, launch->stream, f, channels);
}

/* A mean so far from the shift, in deviations, that its square costs the variance digits that matter. */
enum { FAR_DEVIATIONS = 8 };

struct center {
    const float *sums, *mean;
    float *centers;
    __device__ void operator()(int64_t channels, int64_t c) const {
        float count = sums[TWI_NORM_COUNT * channels + c], distance = sums[TWI_NORM_SUM * channels + c] / count;
        float var = sums[TWI_NORM_PRODUCT * channels + c] / count - distance * distance;
        bool far = count > 1 && distance * distance > FAR_DEVIATIONS * FAR_DEVIATIONS * (var > 0 ? var : 0);
        centers[TWI_NORM_CENTER * channels + c] = mean[c] + distance;
        centers[TWI_NORM_FAR * channels + c] = far;
    }
};

__device__ inline void set_coefficients(float *coef, int64_t channels, int64_t c, float mean, float inverse,
                                        float gamma, float beta) {
    coef[TWI_NORM_MEAN * channels + c] = mean;
    coef[TWI_NORM_INVERSE * channels + c] = inverse;
    coef[TWI_NORM_SCALE * channels + c] = gamma * inverse;
    coef[TWI_NORM_OFFSET * channels + c] = beta - mean * gamma * inverse;
}

struct finalize {
    twi_batch_norm_attrs attrs;
    const float *sums, *gamma, *beta, *mean, *var, *batches;
    float *coef, *mean_new, *var_new, *batches_new;
    const float *centers, *refined; /* NULL: no channel was looked at twice */
    __device__ void operator()(int64_t channels, int64_t c) const {
        bool far = centers && centers[TWI_NORM_FAR * channels + c] != 0;
        const float *from = far ? refined : sums;
        float shift = far ? centers[TWI_NORM_CENTER * channels + c] : mean[c];
        float count = from[TWI_NORM_COUNT * channels + c];
        float rest = from[TWI_NORM_SUM * channels + c] / count; /* of the batch's mean from the shift */
        float batch_mean = shift + rest, distance = batch_mean - mean[c], weight = attrs.momentum;
        float batch_var = from[TWI_NORM_PRODUCT * channels + c] / count - rest * rest;
        if (batch_var < 0) batch_var = 0; /* rounding; not-a-number stays */
        float unbiased = count > 1 ? batch_var * (count / (count - 1)) : batch_var;
        set_coefficients(coef, channels, c, batch_mean, 1 / sqrtf(batch_var + attrs.epsilon), gamma[c], beta[c]);
        mean_new[c] = mean[c] + weight * distance;
        var_new[c] = (1 - weight) * var[c] + weight * unbiased;
        if (c == 0) batches_new[0] = batches[0] + 1;
    }
};

struct from_running {
    float epsilon;
    const float *gamma, *beta, *mean, *var;
    float *coef;
    __device__ void operator()(int64_t channels, int64_t c) const {
        set_coefficients(coef, channels, c, mean[c], 1 / sqrtf(var[c] + epsilon), gamma[c], beta[c]);
    }
};

struct backward_finalize {
    const float *sums, *coef, *gamma;
    float *dgamma, *dbeta; /* NULL: not wanted */
    float *dcoef;          /* NULL: the statistics are frozen */
    __device__ void operator()(int64_t channels, int64_t c) const {
        float mean = coef[TWI_NORM_MEAN * channels + c], inverse = coef[TWI_NORM_INVERSE * channels + c];
        float sum = sums[TWI_NORM_SUM * channels + c], product = sums[TWI_NORM_PRODUCT * channels + c];
        float count = sums[TWI_NORM_COUNT * channels + c], slope = inverse * inverse * product / count;
        if (dgamma) dgamma[c] = product * inverse;
        if (dbeta) dbeta[c] = sum;
        if (!dcoef) return;
        dcoef[TWI_NORM_A * channels + c] = gamma[c] * inverse;
        dcoef[TWI_NORM_B * channels + c] = -gamma[c] * inverse * slope;
        dcoef[TWI_NORM_K * channels + c] = gamma[c] * inverse * (mean * slope - sum / count);
    }
};

struct backward_frozen {
    const float *coef;
    float *dcoef;
    __device__ void operator()(int64_t channels, int64_t c) const {
        dcoef[TWI_NORM_A * channels + c] = coef[TWI_NORM_SCALE * channels + c];
        dcoef[TWI_NORM_B * channels + c] = dcoef[TWI_NORM_K * channels + c] = 0;
    }
};

cudaError_t run_center(const twi_call *call, const twk_launch *launch) {
    const center f = {twk_floats_of(call, 0), twk_floats_of(call, 1), twk_floats_of(call, 2)};
    return run_each_channel(launch, f, call->operand[1].shape.dim[0]);
}

cudaError_t run_finalize(const twi_call *call, const twk_launch *launch) {
    const finalize f = {*(const twi_batch_norm_attrs *)call->attrs,
                        twk_floats_of(call, 0),
                        twk_floats_of(call, 1),
                        twk_floats_of(call, 2),
                        twk_floats_of(call, 3),
                        twk_floats_of(call, 4),
                        twk_floats_of(call, 5),
                        twk_floats_of(call, 6),
                        twk_floats_of(call, 7),
                        twk_floats_of(call, 8),
                        twk_floats_of(call, 9),
                        twk_floats_of(call, 10),
                        twk_floats_of(call, 11)};
    return run_each_channel(launch, f, call->operand[1].shape.dim[0]);
}

cudaError_t run_from_running(const twi_call *call, const twk_launch *launch) {
    const from_running f = {((const twi_batch_norm_attrs *)call->attrs)->epsilon,
                            twk_floats_of(call, 0),
                            twk_floats_of(call, 1),
                            twk_floats_of(call, 2),
                            twk_floats_of(call, 3),
                            twk_floats_of(call, 4)};
    return run_each_channel(launch, f, call->operand[0].shape.dim[0]);
}

/* ---- into weights: rows of coefficients have one number a filter, axis 0 of the weights ---- */

struct fold_weights : twk_functor<0, 2> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0] * in[1]; }
};

/* in: offset, b, scale. */
struct fold_bias : twk_functor<0, 3> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[1] * in[2] + in[0]; }
};

struct fold_no_bias : twk_functor<0, 1> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0]; }
};

template <class T> cudaError_t run_fold(const twi_call *call, const twk_launch *launch) {
    const twi_operand *w = &call->operand[0], *b = &call->operand[1], *coef = &call->operand[2];
    const twk_view filters = {{1}};
    const int64_t channels = coef->shape.dim[1];
    const float *rows = (const float *)coef->data;
    const twk_input scale = {rows + TWI_NORM_SCALE * channels, filters},
                    offset = {rows + TWI_NORM_OFFSET * channels, filters};
    const twk_input weights[] = {twk_input_of(w), scale};
    cudaError_t error = twk_pointwise<T>(launch, fold_weights(), weights, &call->operand[3]);
    if (error != cudaSuccess) return error;
    if (!b->data) return twk_pointwise<T>(launch, fold_no_bias(), &offset, &call->operand[4]);
    const twk_input biases[] = {offset, {b->data, {{b->stride[0]}}}, scale};
    return twk_pointwise<T>(launch, fold_bias(), biases, &call->operand[4]);
}

cudaError_t run_backward_finalize(const twi_call *call, const twk_launch *launch) {
    const backward_finalize f = {twk_floats_of(call, 0), twk_floats_of(call, 1), twk_floats_of(call, 2),
                                 twk_floats_of(call, 3), twk_floats_of(call, 4), twk_floats_of(call, 5)};
    return run_each_channel(launch, f, call->operand[2].shape.dim[0]);
}

cudaError_t run_backward_frozen(const twi_call *call, const twk_launch *launch) {
    const backward_frozen f = {twk_floats_of(call, 0), twk_floats_of(call, 1)};
    return run_each_channel(launch, f, call->operand[0].shape.dim[1]);
}

/* ---- passes over the elements ---- */

enum { SCALE, OFFSET };

struct apply : twk_functor<1, 2> { /* in: x, scale, offset */
    __device__ float operator()(const float *in, twk_aside &) const { return in[1 + SCALE] * in[0] + in[1 + OFFSET]; }
};

__device__ inline float relu_with_bit(float t, twk_aside &aside) {
    aside.bit = !(t <= 0);
    return t < 0 ? 0 : t;
}

struct apply_relu : twk_functor<1, 2, TWK_WRITES_MASK> {
    __device__ float operator()(const float *in, twk_aside &aside) const {
        return relu_with_bit(in[1 + SCALE] * in[0] + in[1 + OFFSET], aside);
    }
};

struct apply_add_relu : twk_functor<2, 2, TWK_WRITES_MASK> { /* in: x, r, scale, offset */
    __device__ float operator()(const float *in, twk_aside &aside) const {
        return relu_with_bit(in[2 + SCALE] * in[0] + in[2 + OFFSET] + in[1], aside);
    }
};

struct backward_apply : twk_functor<2, 3> { /* in: dy, x, a, b, k */
    __device__ float operator()(const float *in, twk_aside &) const { return in[2] * in[0] + in[3] * in[1] + in[4]; }
};

struct backward_apply_masked : twk_functor<2, 3, TWK_READS_MASK> {
    __device__ float operator()(const float *in, twk_aside &aside) const {
        return in[2] * (aside.bit ? in[0] : 0) + in[3] * in[1] + in[4];
    }
};

/* Row `row` of an operand [rows, C]. */
inline twk_input row_of(const twi_operand *rows, int row) {
    return twk_channels_of((const float *)rows->data + row * rows->shape.dim[1]);
}

template <class T> cudaError_t run_apply(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), row_of(&o[1], TWI_NORM_SCALE), row_of(&o[1], TWI_NORM_OFFSET)};
    return twk_pointwise<T>(launch, apply(), in, &o[2]);
}

template <class T> cudaError_t run_apply_relu(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), row_of(&o[1], TWI_NORM_SCALE), row_of(&o[1], TWI_NORM_OFFSET)};
    return twk_pointwise<T>(launch, apply_relu(), in, &o[2], &o[3]);
}

template <class T> cudaError_t run_apply_add_relu(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), twk_input_of(&o[2]), row_of(&o[1], TWI_NORM_SCALE),
                            row_of(&o[1], TWI_NORM_OFFSET)};
    return twk_pointwise<T>(launch, apply_add_relu(), in, &o[3], &o[4]);
}

template <class T> cudaError_t run_backward_apply(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), twk_input_of(&o[1]), row_of(&o[2], TWI_NORM_A),
                            row_of(&o[2], TWI_NORM_B), row_of(&o[2], TWI_NORM_K)};
    return twk_pointwise<T>(launch, backward_apply(), in, &o[3]);
}

template <class T> cudaError_t run_backward_apply_masked(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), twk_input_of(&o[2]), row_of(&o[3], TWI_NORM_A),
                            row_of(&o[3], TWI_NORM_B), row_of(&o[3], TWI_NORM_K)};
    return twk_pointwise<T>(launch, backward_apply_masked(), in, &o[4], &o[1]);
}

} // namespace

extern "C" const twk_entry twk_batch_norm_entries[] = {
    {"batch_norm.statistics", NULL, workspace, TWK_TYPED(run_statistics)},
    {"batch_norm.center", NULL, NULL, run_center},
    {"batch_norm.refine", NULL, workspace, TWK_TYPED(run_refine)},
    {"batch_norm.finalize", NULL, NULL, run_finalize},
    {"batch_norm.from_running", NULL, NULL, run_from_running},
    {"batch_norm.fold", NULL, NULL, TWK_TYPED(run_fold)},
    {"batch_norm.apply", NULL, NULL, TWK_TYPED(run_apply)},
    {"batch_norm.apply_relu", NULL, NULL, TWK_TYPED(run_apply_relu)},
    {"batch_norm.apply_add_relu", NULL, NULL, TWK_TYPED(run_apply_add_relu)},
    {"batch_norm.backward_sums", NULL, workspace, TWK_TYPED(run_backward_sums)},
    {"batch_norm.backward_sums_masked", NULL, workspace, TWK_TYPED(run_backward_sums_masked)},
    {"batch_norm.backward_finalize", NULL, NULL, run_backward_finalize},
    {"batch_norm.backward_frozen", NULL, NULL, run_backward_frozen},
    {"batch_norm.backward_apply", NULL, NULL, TWK_TYPED(run_backward_apply)},
    {"batch_norm.backward_apply_masked", NULL, NULL, TWK_TYPED(run_backward_apply_masked)},
    {},
};

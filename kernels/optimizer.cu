/* The optimizers' one step over all parameters. Formulas: src/ops/op_sgd.c, op_adamw.c. */
#include "entries.h"
#include "fault.cuh"
#include "segments.cuh"

namespace {

/* T: the half type of gradients and of the weights' copy; float where there are none. */
template <class T> struct sgd {
    const twi_control *control;
    float *param, *buffer; /* buffer NULL: no momentum */
    T *copy;               /* of the weights in half precision; NULL: none */
    twk_gradients<T> grad;
    float momentum, rate, factor;
    bool nesterov;

    __device__ bool begin() {
        rate = (float)control->learning_rate;
        factor = (float)control->guard.factor;
        return !twk_run_refused(control);
    }
    template <int WIDTH> __device__ void step(int64_t i, float weight_decay, bool half) const {
        twk_floats<WIDTH> w = twk_floats_at<WIDTH>(param, i), g = grad.template at<WIDTH>(i, half), b = {};
        if (buffer) b = twk_floats_at<WIDTH>(buffer, i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            float d = fmaf(weight_decay, w.at[e], factor * g.at[e]);
            if (buffer) {
                b.at[e] = momentum * b.at[e] + d;
                d = nesterov ? d + momentum * b.at[e] : b.at[e];
            }
            w.at[e] -= rate * d;
        }
        if (buffer) twk_floats_at<WIDTH>(buffer, i) = b;
        twk_floats_at<WIDTH>(param, i) = w;
        if (copy) twk_round_to<T, WIDTH>(copy, i, w);
    }
    __device__ void end(int64_t, int64_t) const {}
};

/* What all elements of a run share, worked out by one thread of a block. */
struct adamw_run {
    float rate, correction1, correction2, factor;
};

template <class T> struct adamw {
    const twi_control *control;
    float *param, *m, *v;
    T *copy; /* as of sgd */
    twk_gradients<T> grad;
    float beta1, beta2, epsilon;
    adamw_run run;

    __device__ bool begin() {
        TWC_SHARED(adamw_run, shared, [1]);
        if (threadIdx.x == 0) {
            double t = (double)control->update + 1;
            shared[0].rate = (float)control->learning_rate;
            shared[0].factor = (float)control->guard.factor;
            shared[0].correction1 = (float)(1 - pow((double)beta1, t));
            shared[0].correction2 = (float)sqrt(1 - pow((double)beta2, t));
        }
        __syncthreads();
        run = shared[0];
        return !twk_run_refused(control);
    }
    template <int WIDTH> __device__ void step(int64_t i, float weight_decay, bool half) const {
        twk_floats<WIDTH> w = twk_floats_at<WIDTH>(param, i), g = grad.template at<WIDTH>(i, half);
        twk_floats<WIDTH> first = twk_floats_at<WIDTH>(m, i), second = twk_floats_at<WIDTH>(v, i);
        float keep = 1 - run.rate * weight_decay, scale = run.rate / run.correction1;
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            float d = run.factor * g.at[e];
            first.at[e] = beta1 * first.at[e] + (1 - beta1) * d;
            second.at[e] = beta2 * second.at[e] + (1 - beta2) * d * d;
            w.at[e] = keep * w.at[e] - scale * first.at[e] / (sqrtf(second.at[e]) / run.correction2 + epsilon);
        }
        twk_floats_at<WIDTH>(m, i) = first;
        twk_floats_at<WIDTH>(v, i) = second;
        twk_floats_at<WIDTH>(param, i) = w;
        if (copy) twk_round_to<T, WIDTH>(copy, i, w);
    }
    __device__ void end(int64_t, int64_t) const {}
};

/* Can all arrays of the call be taken four elements at a time? */
bool wide(const twi_call *call) {
    for (int o = 0; o < call->operand_count; o++)
        if (!twk_aligned(call->operand[o].data, sizeof(twk_floats<TWK_FOUR>))) return false;
    return true;
}

template <class T> cudaError_t run_sgd(const twi_call *call, const twk_launch *launch) {
    const twi_update_attrs *attrs = (const twi_update_attrs *)call->attrs;
    const sgd<T> f = {call->control,
                      twk_floats_of(call, 0),
                      twk_floats_of(call, 2),
                      (T *)call->operand[3].data,
                      twk_gradients_of<T>(&call->operand[1], &call->operand[4]),
                      attrs->momentum,
                      0,
                      0,
                      attrs->nesterov};
    return twk_over_segments(launch, attrs, wide(call), f);
}

template <class T> cudaError_t run_adamw(const twi_call *call, const twk_launch *launch) {
    const twi_update_attrs *attrs = (const twi_update_attrs *)call->attrs;
    const adamw<T> f = {call->control,
                        twk_floats_of(call, 0),
                        twk_floats_of(call, 2),
                        twk_floats_of(call, 3),
                        (T *)call->operand[4].data,
                        twk_gradients_of<T>(&call->operand[1], &call->operand[5]),
                        attrs->beta1,
                        attrs->beta2,
                        attrs->epsilon,
                        {0, 0, 0, 0}};
    return twk_over_segments(launch, attrs, wide(call), f);
}

} // namespace

extern "C" const twk_entry twk_optimizer_entries[] = {
    {"sgd.update", NULL, NULL, TWK_TYPED(run_sgd)},
    {"adamw.update", NULL, NULL, TWK_TYPED(run_adamw)},
    {},
};

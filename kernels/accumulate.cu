/* What a window of batches carries from one to the next: sums of gradients, and kept values. Formulas: src/ops/op_accumulate.c. */
#include "entries.h"
#include "pointwise.cuh"
#include "segments.cuh"

namespace {

/* ---- gradients: all sums begin at 0, also of what gets no gradient here; then segments are added ---- */

struct clear : twk_functor<1, 0> {
    const twi_control *control;
    __device__ bool begin() const { return control->micro == 0; }
    __device__ float operator()(const float *, twk_aside &) const { return 0; }
};

template <class T> struct add_gradients {
    twk_gradients<T> gradient;
    float *sums;
    __device__ bool begin() const { return true; }
    template <int WIDTH> __device__ void step(int64_t i, float, bool half) const {
        twk_floats<WIDTH> g = gradient.template at<WIDTH>(i, half), s = twk_floats_at<WIDTH>(sums, i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) s.at[e] += g.at[e];
        twk_floats_at<WIDTH>(sums, i) = s;
    }
    __device__ void end(int64_t, int64_t) const {}
};

template <class T> cudaError_t run_gradients(const twi_call *call, const twk_launch *launch) {
    const twi_operand *gradient = &call->operand[0], *sums = &call->operand[1], *halves = &call->operand[2];
    const size_t four = sizeof(twk_floats<TWK_FOUR>);
    const twk_input in[] = {twk_input_of(gradient)};
    const add_gradients<T> add = {twk_gradients_of<T>(gradient, halves), (float *)sums->data};
    clear f = {};
    f.control = call->control;
    cudaError_t error = twk_pointwise<float>(launch, f, in, sums);
    if (error != cudaSuccess) return error;
    return twk_over_segments(launch, (const twi_update_attrs *)call->attrs,
                             twk_aligned(gradient->data, four) && twk_aligned(sums->data, four) &&
                                 twk_aligned(halves->data, four),
                             add);
}

/* ---- resume ---- */

struct resume : twk_functor<2, 0> { /* in: values, shadow */
    const twi_control *control;
    bool first; /* batch of its window */
    __device__ bool begin() {
        first = control->micro == 0;
        return true;
    }
    __device__ float operator()(const float *in, twk_aside &) const { return first ? in[0] : in[1]; }
};

cudaError_t run_resume(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), twk_input_of(&o[1])};
    resume f = {};
    f.control = call->control;
    return twk_pointwise<float>(launch, f, in, &o[2]);
}

} // namespace

extern "C" const twk_entry twk_accumulate_entries[] = {
    {"accumulate.gradients", NULL, NULL, TWK_TYPED(run_gradients)},
    {"accumulate.resume", NULL, NULL, run_resume},
    {},
};

/* What a window of batches carries from one to the next: sums of gradients, and kept values. Formulas: src/ops/op_accumulate.c. */
#include "entries.h"
#include "pointwise.cuh"

namespace {

/* What looks at which batch of its window the run is. */
template <int REALS, int FLOATS> struct of_window : twk_functor<REALS, FLOATS> {
    const twi_control *control;
    bool first;
    __device__ bool begin() {
        first = control->micro == 0;
        return true;
    }
};

/* ---- gradient ---- */

struct add_to_sum : of_window<1, 1> { /* in: gradient, sum */
    __device__ float operator()(const float *in, twk_aside &) const { return (first ? 0 : in[1]) + in[0]; }
};

struct clear : twk_functor<1, 0> {
    const twi_control *control;
    __device__ bool begin() const { return control->micro == 0; }
    __device__ float operator()(const float *, twk_aside &) const { return 0; }
};

template <class T> cudaError_t add(const twi_call *call, const twk_launch *launch, const twi_operand *gradient) {
    const twi_operand *sum = &call->operand[0];
    const twk_input in[] = {twk_input_of(gradient), twk_input_of(sum)};
    add_to_sum f = {};
    f.control = call->control;
    return twk_pointwise<T, add_to_sum, float>(launch, f, in, sum);
}

template <class T> cudaError_t run_gradient(const twi_call *call, const twk_launch *launch) {
    const twi_operand *sum = &call->operand[0], *floats = &call->operand[1], *halves = &call->operand[2];
    if (halves->data) return add<T>(call, launch, halves);
    if (floats->data) return add<float>(call, launch, floats);
    const twk_input in[] = {twk_input_of(sum)};
    clear f = {};
    f.control = call->control;
    return twk_pointwise<float>(launch, f, in, sum);
}

/* ---- resume ---- */

struct resume : of_window<2, 0> { /* in: values, shadow */
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
    {"accumulate.gradient", NULL, NULL, TWK_TYPED(run_gradient)},
    {"accumulate.resume", NULL, NULL, run_resume},
    {},
};

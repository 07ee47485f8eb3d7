/* gelu in both forms, its gradient, and that of a bias before it in one pass. Formulas: src/ops/op_gelu.c,
 * fused_bias_gelu.c. */
#include "channels.cuh"
#include "entries.h"
#include "gelu.cuh"
#include "pointwise.cuh"

namespace {

template <class Form> struct forward : twk_functor<1, 0> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0] * Form::share(in[0]); }
};

template <class Form> struct backward : twk_functor<2, 0> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0] * Form::slope(in[1]); }
};

/* in: dy, z; the output is g. */
struct backward_bias : twk_channel_functor<1, 2, false, false, true> {
    __device__ float operator()(const float *in, bool, float, float *sum) const {
        float g = in[0] * twk_gelu_tanh::slope(in[1]);
        sum[0] += g;
        return g;
    }
};

template <class T, class Form> cudaError_t any_forward(const twi_call *call, const twk_launch *launch) {
    const twk_input in[] = {twk_input_of(&call->operand[0])};
    return twk_pointwise<T>(launch, forward<Form>(), in, &call->operand[1]);
}
template <class T> cudaError_t run_forward(const twi_call *call, const twk_launch *launch) {
    return any_forward<T, twk_gelu_erf>(call, launch);
}
template <class T> cudaError_t run_forward_tanh(const twi_call *call, const twk_launch *launch) {
    return any_forward<T, twk_gelu_tanh>(call, launch);
}

template <class T, class Form> cudaError_t any_backward(const twi_call *call, const twk_launch *launch) {
    const twk_input in[] = {twk_input_of(&call->operand[0]), twk_input_of(&call->operand[1])};
    return twk_pointwise<T>(launch, backward<Form>(), in, &call->operand[2]);
}
template <class T> cudaError_t run_backward(const twi_call *call, const twk_launch *launch) {
    return any_backward<T, twk_gelu_erf>(call, launch);
}
template <class T> cudaError_t run_backward_tanh(const twi_call *call, const twk_launch *launch) {
    return any_backward<T, twk_gelu_tanh>(call, launch);
}

size_t workspace(const twi_call *call) { return twk_channels_workspace(&call->operand[0], TWK_CHANNELS, 1); }

template <class T> cudaError_t run_backward_bias(const twi_call *call, const twk_launch *launch) {
    const twi_operand *const in[] = {&call->operand[0], &call->operand[1]};
    return twk_channel_sums<T>(launch, backward_bias(), TWK_CHANNELS, in, &call->operand[2], NULL, NULL,
                               twk_floats_of(call, 3));
}

} // namespace

extern "C" const twk_entry twk_gelu_entries[] = {
    {"gelu.forward", NULL, NULL, TWK_TYPED(run_forward)},
    {"gelu.backward", NULL, NULL, TWK_TYPED(run_backward)},
    {"gelu.forward_tanh", NULL, NULL, TWK_TYPED(run_forward_tanh)},
    {"gelu.backward_tanh", NULL, NULL, TWK_TYPED(run_backward_tanh)},
    {"bias_gelu.backward", NULL, workspace, TWK_TYPED(run_backward_bias)},
    {},
};

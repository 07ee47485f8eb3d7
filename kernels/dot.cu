/* Dot product of two values and its gradients. Formulas: src/ops/op_dot.c. */
#include "channels.cuh"
#include "entries.h"
#include "pointwise.cuh"

namespace {

struct forward : twk_channel_functor<1, 2> {
    __device__ float operator()(const float *in, bool, float, float *sum) const { return sum[0] += in[0] * in[1]; }
};

struct backward : twk_functor<1, 1> { /* in: v, seed */
    __device__ float operator()(const float *in, twk_aside &) const { return in[0] * in[1]; }
};

size_t workspace(const twi_call *call) { return twk_channels_workspace(&call->operand[0], TWK_ONE_CHANNEL, 1); }

template <class T> cudaError_t run_forward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand, *const in[] = {&o[0], &o[1]};
    return twk_channel_sums<T>(launch, forward(), TWK_ONE_CHANNEL, in, NULL, NULL, NULL, (float *)o[2].data);
}

template <class T> cudaError_t run_backward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *v = &call->operand[0], *seed = &call->operand[1], *dx = &call->operand[2];
    const twk_input in[] = {twk_input_of(v), {seed->data, twk_view_of_channels(0)}};
    return twk_pointwise<T>(launch, backward(), in, dx);
}

} // namespace

extern "C" const twk_entry twk_dot_entries[] = {
    {"dot.forward", NULL, workspace, TWK_TYPED(run_forward)},
    {"dot.backward", NULL, NULL, TWK_TYPED(run_backward)},
    {},
};

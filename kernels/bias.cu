/* bias: y = x + b[c], its gradient, and that of bias and relu in one pass. Formulas: src/ops/op_bias.c, fused_bias_relu.c. */
#include "channels.cuh"
#include "entries.h"
#include "pointwise.cuh"

namespace {

struct forward : twk_functor<2, 0> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0] + in[1]; }
};

/* in: dy, y; the output is g. */
struct backward_relu : twk_channel_functor<1, 2, false, false, true> {
    __device__ float operator()(const float *in, bool, float, float *sum) const {
        float g = in[1] <= 0 ? 0 : in[0];
        sum[0] += g;
        return g;
    }
};

template <class T> cudaError_t run_forward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *x = &call->operand[0], *b = &call->operand[1], *y = &call->operand[2];
    const twk_input in[] = {twk_input_of(x), {b->data, twk_view_of_channels(b->stride[0])}};
    return twk_pointwise<T>(launch, forward(), in, y);
}

size_t workspace(const twi_call *call) { return twk_channels_workspace(&call->operand[0], TWK_CHANNELS, 1); }

template <class T> cudaError_t run_backward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *dy = &call->operand[0], *const in[] = {dy};
    return twk_channel_sums<T>(launch, twk_channel_sum(), TWK_CHANNELS, in, NULL, NULL, NULL, (float *)call->operand[1].data);
}

template <class T> cudaError_t run_backward_relu(const twi_call *call, const twk_launch *launch) {
    const twi_operand *dy = &call->operand[0], *y = &call->operand[1], *g = &call->operand[2], *const in[] = {dy, y};
    return twk_channel_sums<T>(launch, backward_relu(), TWK_CHANNELS, in, g, NULL, NULL,
                               (float *)call->operand[3].data);
}

} // namespace

extern "C" const twk_entry twk_bias_entries[] = {
    {"bias.forward", NULL, NULL, TWK_TYPED(run_forward)},
    {"bias.backward", NULL, workspace, TWK_TYPED(run_backward)},
    {"bias_relu.backward", NULL, workspace, TWK_TYPED(run_backward_relu)},
    {},
};

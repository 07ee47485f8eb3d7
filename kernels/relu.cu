/* relu and its gradients: by the output, and by a mask. Formulas: src/ops/op_relu.c, fused_batch_norm_add_relu.c. */
#include "entries.h"
#include "pointwise.cuh"

namespace {

struct forward : twk_functor<1, 0> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0] < 0 ? 0 : in[0]; }
};

struct backward : twk_functor<2, 0> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[1] <= 0 ? 0 : in[0]; }
};

struct backward_masked : twk_functor<1, 0, TWK_READS_MASK> {
    __device__ float operator()(const float *in, twk_aside &aside) const { return aside.bit ? in[0] : 0; }
};

template <class T> cudaError_t run_forward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0])};
    return twk_pointwise<T>(launch, forward(), in, &o[1]);
}

template <class T> cudaError_t run_backward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), twk_input_of(&o[1])};
    return twk_pointwise<T>(launch, backward(), in, &o[2]);
}

template <class T> cudaError_t run_backward_masked(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0])};
    return twk_pointwise<T>(launch, backward_masked(), in, &o[2], &o[1]);
}

} // namespace

extern "C" const twk_entry twk_relu_entries[] = {
    {"relu.forward", NULL, NULL, TWK_TYPED(run_forward)},
    {"relu.backward", NULL, NULL, TWK_TYPED(run_backward)},
    {"relu.backward_masked", NULL, NULL, TWK_TYPED(run_backward_masked)},
    {},
};

/* Sums of two values: add, with a relu behind it, with one summand masked, and of two parts of a parameter's gradient. Formulas: src/ops/op_add.c,
 * fused_add_relu.c, fused_batch_norm_add_relu.c, op_gradient_sum.c. */
#include "entries.h"
#include "pointwise.cuh"

namespace {

struct sum : twk_functor<2, 0> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0] + in[1]; }
};

/* Keeps not-a-number. */
struct sum_relu : twk_functor<2, 0> {
    __device__ float operator()(const float *in, twk_aside &) const {
        float y = in[0] + in[1];
        return y < 0 ? 0 : y;
    }
};

struct masked_sum : twk_functor<2, 0, TWK_READS_MASK> {
    __device__ float operator()(const float *in, twk_aside &aside) const { return (aside.bit ? in[0] : 0) + in[1]; }
};

template <class T> cudaError_t run_add(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), twk_input_of(&o[1])};
    return twk_pointwise<T>(launch, sum(), in, &o[2]);
}

template <class T> cudaError_t run_add_masked(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), twk_input_of(&o[2])};
    return twk_pointwise<T>(launch, masked_sum(), in, &o[3], &o[1]);
}

template <class T> cudaError_t run_add_relu(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const twk_input in[] = {twk_input_of(&o[0]), twk_input_of(&o[1])};
    return twk_pointwise<T>(launch, sum_relu(), in, &o[2]);
}

} // namespace

extern "C" const twk_entry twk_add_entries[] = {
    {"add.forward", NULL, NULL, TWK_TYPED(run_add)},
    {"add.forward_relu", NULL, NULL, TWK_TYPED(run_add_relu)},
    {"add.masked", NULL, NULL, TWK_TYPED(run_add_masked)},
    {"gradient_sum.add", NULL, NULL, run_add<float>},
    {},
};

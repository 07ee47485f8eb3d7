/* Changes of type between steps that compute in different ones. Formulas: src/ops/op_cast.c. */
#include "entries.h"
#include "pointwise.cuh"

namespace {

struct narrow : twk_functor<0, 1> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0]; }
};
struct widen : twk_functor<1, 0> {
    __device__ float operator()(const float *in, twk_aside &) const { return in[0]; }
};

template <class T> cudaError_t run_narrow(const twi_call *call, const twk_launch *launch) {
    const twk_input in[] = {twk_input_of(&call->operand[0])};
    return twk_pointwise<T>(launch, narrow(), in, &call->operand[1]);
}

template <class T> cudaError_t run_widen(const twi_call *call, const twk_launch *launch) {
    const twk_input in[] = {twk_input_of(&call->operand[0])};
    return twk_pointwise<T, widen, float>(launch, widen(), in, &call->operand[1]);
}

/* The half operand of a cast is one or the other, so it says the type, not the first real one. */
template <int HALF, twk_run F32, twk_run F16, twk_run BF16>
cudaError_t run_by(const twi_call *call, const twk_launch *launch) {
    switch (call->operand[HALF].dtype) {
    case TW_F16:
        return F16(call, launch);
    case TW_BF16:
        return BF16(call, launch);
    default:
        return F32(call, launch);
    }
}

} // namespace

extern "C" const twk_entry twk_cast_entries[] = {
    {"cast.narrow", NULL, NULL, run_by<1, run_narrow<float>, run_narrow<__half>, run_narrow<__nv_bfloat16>>},
    {"cast.widen", NULL, NULL, run_by<0, run_widen<float>, run_widen<__half>, run_widen<__nv_bfloat16>>},
    {},
};

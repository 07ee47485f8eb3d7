/* The end of a run: what looks for faults, and what changes lasting state where there is none. Formulas: src/ops/op_commit.c. */
#include "entries.h"
#include "fault.cuh"
#include "pointwise.cuh"
#include "segments.cuh"

namespace {

/* ---- check ---- */

__global__ void check(const float *loss, twi_control *control, int32_t node) {
    if (!isfinite(loss[0])) twk_fault_raise(control, TW_ERROR_NUMERIC, node, TWI_FAULT_RUN, (double)loss[0]);
}

cudaError_t run_check(const twi_call *call, const twk_launch *launch) {
    return TWC_LAUNCH(check, 1, 1, 0, launch->stream, (const float *)call->operand[0].data, call->control, call->node);
}

/* ---- check_gradients: the first bad element of every block, then the first of all ---- */

struct find_first {
    const float *gradient;
    long long *found; /* of each block */
    long long first;

    __device__ bool begin() {
        first = TWK_NO_FAULT;
        return true;
    }
    template <int WIDTH> __device__ void step(int64_t i, float) {
        twk_floats<WIDTH> g = twk_floats_at<WIDTH>(gradient, i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            if (!isfinite(g.at[e]) && i + e < first) first = i + e;
    }
    __device__ void end(int64_t block) const {
        long long least = twk_block_join(first, twk_smaller());
        if (threadIdx.x == 0) found[block] = least;
    }
};

__global__ void __launch_bounds__(TWK_THREADS)
    raise_first(const float *gradient, const long long *found, int64_t blocks, twi_control *control) {
    long long first = TWK_NO_FAULT;
    for (int64_t b = threadIdx.x; b < blocks; b += TWK_THREADS)
        if (found[b] < first) first = found[b];
    first = twk_block_join(first, twk_smaller());
    if (threadIdx.x == 0 && first != TWK_NO_FAULT)
        twk_fault_raise(control, TW_ERROR_NUMERIC, -1, TWI_FAULT_ELEMENT + first, (double)gradient[first]);
}

size_t workspace_check(const twi_call *call) {
    return (size_t)twk_update_blocks((const twi_update_attrs *)call->attrs) * sizeof(long long);
}

cudaError_t run_check_gradients(const twi_call *call, const twk_launch *launch) {
    const twi_update_attrs *attrs = (const twi_update_attrs *)call->attrs;
    const float *gradient = (const float *)call->operand[0].data;
    find_first f = {gradient, (long long *)launch->workspace, 0};
    int64_t blocks = twk_update_blocks(attrs);
    if (blocks == 0) return cudaSuccess;
    cudaError_t error = twk_over_segments(launch, attrs, twk_aligned(gradient, sizeof(twk_floats<TWK_FOUR>)), f);
    if (error != cudaSuccess) return error;
    return TWC_LAUNCH(raise_first, 1, TWK_THREADS, 0, launch->stream, gradient, f.found, blocks, call->control);
}

/* ---- copy, advance ---- */

struct copy : twk_functor<1, 0> {
    const twi_control *control;
    __device__ bool begin() const { return !twk_fault_raised(control); }
    __device__ float operator()(const float *in, twk_aside &) const { return in[0]; }
};

cudaError_t run_copy(const twi_call *call, const twk_launch *launch) {
    copy f = {};
    f.control = call->control;
    const twk_input in[] = {twk_input_of(&call->operand[0])};
    return twk_pointwise<float>(launch, f, in, &call->operand[1]);
}

__global__ void advance(twi_control *control) {
    if (!twk_fault_raised(control)) control->update++;
}

cudaError_t run_advance(const twi_call *call, const twk_launch *launch) {
    return TWC_LAUNCH(advance, 1, 1, 0, launch->stream, call->control);
}

} // namespace

extern "C" const twk_entry twk_commit_entries[] = {
    {"commit.check", NULL, NULL, run_check},
    {"commit.check_gradients", NULL, workspace_check, run_check_gradients},
    {"commit.copy", NULL, NULL, run_copy},
    {"commit.advance", NULL, NULL, run_advance},
    {},
};

/* Are the gradients finite, and what is their norm? One pass over them, then a look at one number a block. Formulas:
 * src/ops/op_guard.c. */
#include "entries.h"
#include "fault.cuh"
#include "segments.cuh"

namespace {

/* ---- measure ---- */

struct smaller {
    __device__ double operator()(double a, double b) const { return a < b ? a : b; } /* marks fall from element to element */
};

template <class T> struct measure {
    twk_gradients<T> gradient;
    float *blocks;
    double squares;
    int64_t last; /* element that is not finite; -1: none */
    float value;

    __device__ bool begin() {
        squares = 0;
        last = -1;
        value = 0;
        return true;
    }
    template <int WIDTH> __device__ void step(int64_t i, float, bool half) {
        twk_floats<WIDTH> g = gradient.template at<WIDTH>(i, half);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            squares += (double)g.at[e] * (double)g.at[e];
            if (isfinite(g.at[e])) continue;
            last = i + e;
            value = g.at[e];
        }
    }
    __device__ void end(int64_t block, int64_t first) const {
        double sum = twk_block_join(squares, twk_add());
        double mark = twk_block_join(last < 0 ? 0 : twi_guard_mark((double)value, last - first), smaller());
        if (threadIdx.x == 0) blocks[block] = (float)(mark < 0 ? mark : sqrt(sum / TWI_UPDATE_BLOCK));
    }
};

template <class T> cudaError_t run_measure(const twi_call *call, const twk_launch *launch) {
    const twi_operand *gradient = &call->operand[0], *halves = &call->operand[2];
    const size_t four = sizeof(twk_floats<TWK_FOUR>);
    const measure<T> f = {twk_gradients_of<T>(gradient, halves), twk_floats_of(call, 1), 0, 0, 0};
    return twk_over_segments(launch, (const twi_update_attrs *)call->attrs,
                             twk_aligned(gradient->data, four) && twk_aligned(halves->data, four), f);
}

/* ---- decide ---- */

struct larger {
    __device__ long long operator()(long long a, long long b) const { return a > b ? a : b; }
};

__global__ void __launch_bounds__(TWK_THREADS)
    decide(const float *blocks, twi_guard_attrs attrs, twi_control *control) {
    double squares = 0;
    long long last = -1;
    for (int64_t b = threadIdx.x; b < attrs.blocks; b += TWK_THREADS) {
        const double block = (double)blocks[b];
        squares += block * block;
        if (block < 0) last = b;
    }
    squares = twk_block_join(squares, twk_add());
    last = twk_block_join(last, larger());
    if (threadIdx.x != 0 || twk_fault_raised(control)) return;
    int64_t place = -1;
    double value = 0;
    if (last >= 0) {
        place = last * TWI_UPDATE_BLOCK + twi_guard_marked((double)blocks[last]);
        value = twi_guard_marked_value((double)blocks[last]);
    }
    if (twi_guard_decide(&control->guard, &attrs, control->micro == 0, control->bad_loss,
                         sqrt(squares * TWI_UPDATE_BLOCK), place, value))
        twk_fault_raise(control, TW_ERROR_NUMERIC, -1, TWI_FAULT_PLACE + place, value);
}

cudaError_t run_decide(const twi_call *call, const twk_launch *launch) {
    return TWC_LAUNCH(decide, 1, TWK_THREADS, 0, launch->stream, (const float *)call->operand[0].data,
                      *(const twi_guard_attrs *)call->attrs, call->control);
}

} // namespace

extern "C" const twk_entry twk_guard_entries[] = {
    {"guard.measure", NULL, NULL, TWK_TYPED(run_measure)},
    {"guard.decide", NULL, NULL, run_decide},
    {},
};

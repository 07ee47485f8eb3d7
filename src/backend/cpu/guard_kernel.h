/* The guard's look at gradients: sums of squares, a block at a time. A gradient that is not finite shows in the sum,
 * and only then is it looked for. */
#include "backend/attrs.h"
#include "point.h"
#include "vec_half.h"
#include "vec_math.h"

#include <float.h>
#include <math.h>

/* Half as many doubles as a vector has floats, and the floats they are made from. */
typedef float half_vec __attribute__((vector_size(2 * VEC_WIDTH)));
typedef float half_vec_in_memory __attribute__((vector_size(2 * VEC_WIDTH), aligned(4), may_alias));
typedef double double_vec __attribute__((vector_size(4 * VEC_WIDTH)));
enum { GUARD_SUMS = 4, GUARD_STEP = GUARD_SUMS * VEC_WIDTH / 2 };

static float guard_sum(const float *g, int64_t count) {
    vec sum[GUARD_SUMS] = {{0}};
    int64_t i = 0;
    for (; i + GUARD_SUMS * VEC_WIDTH <= count; i += GUARD_SUMS * VEC_WIDTH) {
        VEC_UNROLL
        for (int k = 0; k < GUARD_SUMS; k++) {
            vec part = vec_load(g + i + k * VEC_WIDTH);
            sum[k] = vec_fma(part, part, sum[k]);
        }
    }
    for (; i < count; i += VEC_WIDTH) {
        vec part = vec_load_some(g + i, (int)(count - i < VEC_WIDTH ? count - i : VEC_WIDTH));
        sum[0] = vec_fma(part, part, sum[0]);
    }
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static double sum_in_double(const float *g, int64_t count) {
    double_vec sum[GUARD_SUMS] = {{0}};
    double total = 0;
    int64_t i = 0;
    for (; i + GUARD_STEP <= count; i += GUARD_STEP) {
        VEC_UNROLL
        for (int k = 0; k < GUARD_SUMS; k++) {
            half_vec part = *(const half_vec_in_memory *)(g + i + k * VEC_WIDTH / 2);
            double_vec wide = __builtin_convertvector(part, double_vec);
            sum[k] += wide * wide;
        }
    }
    for (; i < count; i++) total += (double)g[i] * (double)g[i];
    double_vec joined = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int e = 0; e < VEC_WIDTH / 2; e++) total += joined[e];
    return total;
}

static double last_mark(const float *g, int64_t count, int64_t first) {
    for (int64_t i = count - 1; i >= 0; i--)
        if (!isfinite(g[i])) return twi_guard_mark((double)g[i], first + i);
    return 0;
}

/* What becomes of a block whose sum in f32 does not hold. Rows may be longer than a full block, and what they come to
 * larger than any of their elements. */
static float guard_block(const float *g, int64_t count, int64_t first) {
    const double squares = sum_in_double(g, count);
    return (float)(isfinite(squares) ? fmin(sqrt(squares / TWI_UPDATE_BLOCK), (double)FLT_MAX)
                                     : last_mark(g, count, first));
}

/* A block of gradients in half precision, widened. */
static const float *widen_block(const twi_operand *half, const twi_update_segment *part, float *wide) {
    const bool bf16 = half->dtype == TW_BF16;
    const uint16_t *from = (const uint16_t *)half->data + part->begin;
    const int64_t count = part->end - part->begin;
    int64_t i = 0;
    for (; i + VEC_WIDTH <= count; i += VEC_WIDTH) vec_store(wide + i, vec_from_half(from + i, bf16));
    if (i < count) vec_store_some(wide + i, vec_from_halves(from + i, bf16, (int)(count - i)), (int)(count - i));
    return wide;
}

static void guard_measure(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    float *blocks = call->operand[1].data, wide[TWI_UPDATE_BLOCK];
    for (int64_t left = call->begin; left < call->end; left++) {
        int64_t base;
        const int64_t b = twi_update_block_left(call->attrs, left);
        const twi_update_segment part = twi_update_block(call->attrs, b, &base);
        const float *gradient =
            part.half ? widen_block(&call->operand[2], &part, wide) : (const float *)call->operand[0].data + part.begin;
        const float sum = guard_sum(gradient, part.end - part.begin);
        blocks[b] = twi_squares_hold(sum) ? twi_block_of_squares(sum)
                                          : guard_block(gradient, part.end - part.begin, part.begin - base);
    }
}

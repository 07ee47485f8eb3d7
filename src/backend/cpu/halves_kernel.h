/* The loops of halves.h for the instruction set of the including file, as HALVES_LOOPS. */
#include "halves.h"
#include "vec_half.h"
#include "vec_math.h"

static void widen(float *out, const uint16_t *in, tw_dtype half, int64_t count) {
    const bool bf16 = half == TW_BF16;
    int64_t i = 0;
    for (; i + VEC_WIDTH <= count; i += VEC_WIDTH) vec_store(out + i, vec_from_half(in + i, bf16));
    if (i < count) vec_store_some(out + i, vec_from_halves(in + i, bf16, (int)(count - i)), (int)(count - i));
}

static void narrow(uint16_t *out, const float *in, tw_dtype half, int64_t count) {
    const bool bf16 = half == TW_BF16;
    int64_t i = 0;
    for (; i + VEC_WIDTH <= count; i += VEC_WIDTH) vec_to_half(out + i, vec_load(in + i), bf16);
    if (i < count) vec_to_halves(out + i, vec_load_part(in + i, (int)(count - i)), bf16, (int)(count - i));
}

static float narrow_squares(uint16_t *out, const float *in, tw_dtype half, int64_t count) {
    const bool bf16 = half == TW_BF16;
    vec sum[2] = {{0}};
    int64_t i = 0;
    for (; i + VEC_WIDTH <= count; i += VEC_WIDTH) {
        vec_to_half(out + i, vec_load(in + i), bf16);
        const vec rounded = vec_from_half(out + i, bf16);
        sum[0] = vec_fma(rounded, rounded, sum[0]);
        const vec other = sum[0];
        sum[0] = sum[1];
        sum[1] = other;
    }
    if (i < count) {
        const int rest = (int)(count - i);
        vec_to_halves(out + i, vec_load_part(in + i, rest), bf16, rest);
        const vec rounded = vec_from_halves(out + i, bf16, rest);
        sum[0] = vec_fma(rounded, rounded, sum[0]);
    }
    return vec_sum(sum[0] + sum[1]);
}

const twi_halves_loops HALVES_LOOPS = {.widen = widen, .narrow = narrow, .narrow_squares = narrow_squares};

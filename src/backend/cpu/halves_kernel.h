/* The loops of halves.h for the instruction set of the including file, as HALVES_LOOPS. */
#include "halves.h"
#include "vec_half.h"

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

const twi_halves_loops HALVES_LOOPS = {.widen = widen, .narrow = narrow};

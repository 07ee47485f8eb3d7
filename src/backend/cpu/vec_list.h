/* Lists of the elements of vectors that are not zero. */
#ifndef TWI_CPU_VEC_LIST_H
#define TWI_CPU_VEC_LIST_H

#include "vec_test.h"

/* Yes where v is not 0; also where it is not a number. */
VEC_INLINE vec_test vec_nonzero(vec v) {
#if VEC_WIDTH == 16
    return _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
#else
    return (vec_test)(v != (vec){0});
#endif
}

VEC_INLINE int64_t vec_test_count(vec_test yes) {
#if VEC_WIDTH == 16
    unsigned bits; /* by hand: gcc 12 may keep 16 bits of a mask in memory and count 32 */
    __asm__("kmovw %1, %0" : "=r"(bits) : "k"(yes));
    return __builtin_popcount(bits);
#else
    return __builtin_popcount(vec_test_bits(yes));
#endif
}

/* Appends the pairs where `yes` to a list of `count`, behind which a vector has room; gives how many it has then. */
VEC_INLINE int64_t vec_append_pairs(vec_test yes, vec value, vec_mask place, float *values, int32_t *places,
                                    int64_t count) {
#if VEC_WIDTH == 16
    _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(yes, (__m512)value));
    _mm512_storeu_si512(places + count, _mm512_maskz_compress_epi32(yes, (__m512i)place));
    return count + vec_test_count(yes);
#else
    const unsigned bits = vec_test_bits(yes);
    for (int i = 0; i < VEC_WIDTH; i++) {
        values[count] = value[i], places[count] = place[i];
        count += bits >> i & 1;
    }
    return count;
#endif
}

#endif

/* Comparisons on the vectors of vec.h: a vec_test holds a yes or no for every element, in the form the instruction set
 * likes best, and is turned into bits of memory and back. */
#ifndef TWI_CPU_VEC_TEST_H
#define TWI_CPU_VEC_TEST_H

#include "vec.h"
#include <string.h>

#if VEC_WIDTH == 16 && defined(__AVX512F__)
typedef __mmask16 vec_test;

/* !(v <= 0): what relu lets through, not-a-number with it. */
VEC_INLINE vec_test vec_positive(vec v) { return _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_NLE_UQ); }
/* !(a < b): also where either is not a number. */
VEC_INLINE vec_test vec_not_less(vec a, vec b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLT_UQ); }
/* a > b, or a is not a number and b is one: the order of a maximum in which not-a-number wins. */
VEC_INLINE vec_test vec_beats(vec a, vec b) {
    return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask((__m512)b, (__m512)b, _CMP_ORD_Q), (__m512)a, (__m512)b,
                                   _CMP_NLE_UQ);
}
VEC_INLINE vec_test vec_same(vec_mask a, vec_mask b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
/* Where yes: v, elsewhere 0. Where yes: a, elsewhere b. */
VEC_INLINE vec vec_keep(vec_test yes, vec v) { return (vec)_mm512_maskz_mov_ps(yes, (__m512)v); }
VEC_INLINE vec vec_choose(vec_test yes, vec a, vec b) { return (vec)_mm512_mask_mov_ps((__m512)b, yes, (__m512)a); }
VEC_INLINE vec_mask vec_choose_int(vec_test yes, vec_mask a, vec_mask b) {
    return (vec_mask)_mm512_mask_mov_epi32((__m512i)b, yes, (__m512i)a);
}
VEC_INLINE unsigned vec_test_bits(vec_test yes) { return yes; }
VEC_INLINE vec_test vec_test_from(unsigned bits) { return (vec_test)bits; }

#else
typedef vec_mask vec_test;

#if VEC_WIDTH == 8 && defined(__AVX2__) /* compilers take two instructions for a negated comparison */
#define VEC_NOT(a, operator, b, predicate) ((vec_test)_mm256_cmp_ps((__m256)(a), (__m256)(b), predicate))
#else
#define VEC_NOT(a, operator, b, predicate) (~((a) operator(b)))
#endif
VEC_INLINE vec_test vec_positive(vec v) { return VEC_NOT(v, <=, (vec){0}, _CMP_NLE_UQ); }
VEC_INLINE vec_test vec_not_less(vec a, vec b) { return VEC_NOT(a, <, b, _CMP_NLT_UQ); }
VEC_INLINE vec_test vec_beats(vec a, vec b) { return VEC_NOT(a, <=, b, _CMP_NLE_UQ) & (b == b); }
VEC_INLINE vec_test vec_same(vec_mask a, vec_mask b) { return a == b; }
VEC_INLINE vec vec_keep(vec_test yes, vec v) { return (vec)((vec_mask)v & yes); }
VEC_INLINE vec vec_choose(vec_test yes, vec a, vec b) {
#if VEC_WIDTH == 8 && defined(__AVX2__)
    return (vec)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)yes);
#else
    return (vec)(((vec_mask)a & yes) | ((vec_mask)b & ~yes));
#endif
}
VEC_INLINE vec_mask vec_choose_int(vec_test yes, vec_mask a, vec_mask b) {
    return (vec_mask)vec_choose(yes, (vec)a, (vec)b);
}

VEC_INLINE unsigned vec_test_bits(vec_test yes) {
#if VEC_WIDTH == 8 && defined(__AVX2__)
    return (unsigned)_mm256_movemask_ps((__m256)yes);
#else
    unsigned bits = 0;
    for (int i = 0; i < VEC_WIDTH; i++) bits |= ((unsigned)yes[i] & 1u) << i;
    return bits;
#endif
}
VEC_INLINE vec_test vec_test_from(unsigned bits) {
#if VEC_WIDTH == 16
    const vec_mask own = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
#elif VEC_WIDTH == 8
    const vec_mask own = {1, 2, 4, 8, 16, 32, 64, 128};
#else
    const vec_mask own = {1, 2, 4, 8};
#endif
    return (((int32_t)bits - (vec_mask){0}) & own) == own;
}
#endif

VEC_INLINE vec_mask vec_splat_int(int32_t x) { return x - (vec_mask){0}; }

/* The tests of elements i .. i+VEC_WIDTH-1 of a run as bits in memory (bit i is byte i/8, 1 << i%8); i is a multiple of
 * VEC_WIDTH. Vectors of half a byte are put in ascending order. */
VEC_INLINE vec_test vec_get_bits(const uint8_t *bits, int64_t i) {
#if VEC_WIDTH == 16
    uint16_t word;
    memcpy(&word, bits + (i >> 3), sizeof word);
    return vec_test_from(word);
#else
    return vec_test_from((unsigned)bits[i >> 3] >> (i & 7));
#endif
}
VEC_INLINE void vec_put_bits(uint8_t *bits, int64_t i, vec_test yes) {
#if VEC_WIDTH == 16
    uint16_t word = (uint16_t)vec_test_bits(yes);
    memcpy(bits + (i >> 3), &word, sizeof word);
#elif VEC_WIDTH == 8
    bits[i >> 3] = (uint8_t)vec_test_bits(yes);
#else
    bits[i >> 3] = (uint8_t)(vec_test_bits(yes) << (i & 7) | ((i & 7) ? bits[i >> 3] : 0u));
#endif
}

#endif

/* Halves to vectors of floats and back, for the instruction set that the including file is compiled for: f16 and bf16
 * as base/half.h converts them, to nearest even, with infinities and not-a-number kept, and denormals too, whatever the
 * thread's floating-point state is, but where AVX512_BF16 narrows to bf16. */
#ifndef TWI_CPU_VEC_HALF_H
#define TWI_CPU_VEC_HALF_H

#include "vec.h"
#include "base/half.h"

typedef uint32_t vec_bits __attribute__((vector_size(4 * VEC_WIDTH)));
typedef uint16_t half_bits __attribute__((vector_size(2 * VEC_WIDTH)));
typedef uint16_t half_in_memory __attribute__((vector_size(2 * VEC_WIDTH), aligned(2), may_alias));

/* Compilers widen a vector of words by halves, which takes twice as long. */
VEC_INLINE vec vec_from_bf16(const uint16_t *p) {
#if defined(__AVX512F__) && VEC_WIDTH == 16
    const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
#elif defined(__AVX2__) && VEC_WIDTH == 8
    const __m128i words = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
#else
    return (vec)(__builtin_convertvector((half_bits) * (const half_in_memory *)p, vec_bits) << 16);
#endif
}
#if defined(__AVX512BF16__) && VEC_WIDTH == 16
/* Turns denormals into zero, as arithmetic does in workers. Arrays that are converted as such (halves.h) keep
 * theirs. */
VEC_INLINE void vec_to_bf16(uint16_t *p, vec v) {
    _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh((__m512)v));
}
#elif defined(__AVX512BW__) && VEC_WIDTH == 16
VEC_INLINE void vec_to_bf16(uint16_t *p, vec v) {
    const __m512i upper_words = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 29, 27, 25, 23, 21,
                                                 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __m512i bits = (__m512i)v, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper_words, kept)));
}
#else
VEC_INLINE void vec_to_bf16(uint16_t *p, vec v) {
    const vec_bits bits = (vec_bits)v, odd = bits >> 16 & 1;
    const vec_bits nan = (vec_bits)((bits & 0x7FFFFFFFu) > 0x7F800000u);
    const vec_bits rounded = (bits + 0x7FFFu + odd) >> 16, quiet = bits >> 16 | 0x40u;
    *(half_in_memory *)p = __builtin_convertvector((nan & quiet) | (~nan & rounded), half_bits);
}
#endif

#if defined(__AVX512F__) && VEC_WIDTH == 16
VEC_INLINE vec vec_from_f16(const uint16_t *p) {
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
VEC_INLINE void vec_to_f16(uint16_t *p, vec v) {
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(__F16C__) && VEC_WIDTH == 8
VEC_INLINE vec vec_from_f16(const uint16_t *p) {
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
VEC_INLINE void vec_to_f16(uint16_t *p, vec v) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}
#else
VEC_INLINE vec vec_from_f16(const uint16_t *p) {
    vec v = {0};
    for (int i = 0; i < VEC_WIDTH; i++) v[i] = twi_f16_to_f32(p[i]);
    return v;
}
VEC_INLINE void vec_to_f16(uint16_t *p, vec v) {
    for (int i = 0; i < VEC_WIDTH; i++) p[i] = twi_f16_from_f32(v[i]);
}
#endif

VEC_INLINE vec vec_from_half(const uint16_t *p, bool bf16) { return bf16 ? vec_from_bf16(p) : vec_from_f16(p); }
VEC_INLINE void vec_to_half(uint16_t *p, vec v, bool bf16) {
    if (bf16)
        vec_to_bf16(p, v);
    else
        vec_to_f16(p, v);
}

/* Numbers of any type: the bytes of one, and vectors of them. */
VEC_INLINE int64_t bytes_of(const tw_dtype dtype) { return dtype == TW_F32 ? 4 : 2; }
VEC_INLINE vec load_real(const tw_dtype dtype, const void *from) {
    return dtype == TW_F32 ? vec_load(from) : vec_from_half(from, dtype == TW_BF16);
}
VEC_INLINE void store_real(const tw_dtype dtype, void *to, vec v) {
    if (dtype == TW_F32)
        vec_store(to, v);
    else
        vec_to_half(to, v, dtype == TW_BF16);
}

/* The first n <= VEC_WIDTH halves, then zeros; and stores as many. */
VEC_INLINE vec vec_from_halves(const uint16_t *p, bool bf16, int n) {
    uint16_t part[VEC_WIDTH] = {0};
    if (n == VEC_WIDTH) return vec_from_half(p, bf16);
    memcpy(part, p, (size_t)n * sizeof *p);
    return vec_from_half(part, bf16);
}
VEC_INLINE void vec_to_halves(uint16_t *p, vec v, bool bf16, int n) {
    uint16_t part[VEC_WIDTH];
    if (n == VEC_WIDTH) {
        vec_to_half(p, v, bf16);
        return;
    }
    vec_to_half(part, v, bf16);
    memcpy(p, part, (size_t)n * sizeof *p);
}

#endif

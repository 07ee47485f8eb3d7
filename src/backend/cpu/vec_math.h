/* Functions of vectors: exponential, logarithm, square root, maxima, and sums and maxima over the elements. */
#ifndef TWI_CPU_VEC_MATH_H
#define TWI_CPU_VEC_MATH_H

#include "vec_test.h"
#include <math.h>

typedef uint32_t vec_word __attribute__((vector_size(4 * VEC_WIDTH)));

/* ln2 in two parts: a whole number of up to 11 bits times the first is exact. */
#define VEC_LN2_HIGH 0x1.62ep-1f
#define VEC_LN2_LOW 0x1.0bfbe8p-15f

/* exp(x) for x <= 0 within 2 units in the last place; 0 where it would be below the normal numbers; keeps not-a-number.
 * x = n ln2 + r with |r| <= ln2/2; the series to r^7 is exact to 2^-27 there, and 2^n goes into the exponent. */
VEC_INLINE vec vec_exp(vec x) {
    const vec least = vec_splat(-87.3365448f),
              magic = vec_splat(0x1.8p23f); /* added, the magic number rounds to a whole */
    vec_test normal = vec_not_less(x, least);
    x = vec_choose(normal, x, least);
    vec shifted = x * vec_splat(0x1.715476p0f) + magic, n = shifted - magic;
    vec r = x - n * vec_splat(VEC_LN2_HIGH) - n * vec_splat(VEC_LN2_LOW);
    vec p = vec_splat(1.0f / 5040);
    p = p * r + vec_splat(1.0f / 720);
    p = p * r + vec_splat(1.0f / 120);
    p = p * r + vec_splat(1.0f / 24);
    p = p * r + vec_splat(1.0f / 6);
    p = p * r + vec_splat(0.5f);
    p = p * r + vec_splat(1.0f);
    p = p * r + vec_splat(1.0f);
    vec power = (vec)(((vec_word)shifted - (vec_word)magic + 127) << 23);
    return vec_keep(normal, p * power);
}

/* log(x) for normal x > 0 within 1 unit in the last place; not-a-number of one, and of infinity.
 * x = 2^n (1 + f) with 1 + f from sqrt(1/2) to sqrt(2), where f is exact. Of s = f / (2 + f), which is 0.172 at most,
 * log(1 + f) is 2s + 2s^3/3 + 2s^5/5 + ..., to s^9 exact to 2^-28; and 2s = f - s f, so that the rounding of s hardly
 * counts. */
VEC_INLINE vec vec_log(vec x) {
    const vec_mask n = (vec_mask)((vec_word)x - 0x3f3504f3u) >> 23; /* counted from sqrt(1/2) */
    vec f = (vec)((vec_word)x - ((vec_word)n << 23)) - vec_splat(1) + (x - x);
    vec s = f / (vec_splat(2) + f), square = s * s;
    vec rest = vec_splat(2.0f / 9);
    rest = rest * square + vec_splat(2.0f / 7);
    rest = rest * square + vec_splat(2.0f / 5);
    rest = rest * square + vec_splat(2.0f / 3);
    rest = rest * square;
    vec whole = __builtin_convertvector(n, vec);
    return whole * vec_splat(VEC_LN2_HIGH) + (f + (whole * vec_splat(VEC_LN2_LOW) - s * (f - rest)));
}

VEC_INLINE vec vec_sqrt(vec x) {
#if VEC_WIDTH == 16 && defined(__AVX512F__)
    return (vec)_mm512_sqrt_ps((__m512)x);
#elif VEC_WIDTH == 8 && defined(__AVX2__)
    return (vec)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < VEC_WIDTH; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* a > b ? a : b, so b where either is not a number. */
VEC_INLINE vec vec_larger(vec a, vec b) {
#if VEC_WIDTH == 16 && defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif VEC_WIDTH == 8 && defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    const vec_mask beats = a > b;
    return (vec)(((vec_mask)a & beats) | ((vec_mask)b & ~beats));
#endif
}

/* The elements' sum by halves, and the largest; not-a-number is passed over by the latter, or not. */
VEC_INLINE float vec_sum(vec v) {
#if VEC_WIDTH == 16
    typedef float half __attribute__((vector_size(32)));
    half h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
             __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    vec h = v;
#endif
#if VEC_WIDTH == 4
    quad q = h;
#else
    quad q = VEC_QUAD(h, 0) + VEC_QUAD(h, 1);
#endif
    q += __builtin_shufflevector(q, q, 2, 3, 2, 3);
    return q[0] + q[1];
}
VEC_INLINE quad quad_larger(quad a, quad b) {
    const quad_mask beats = a > b;
    return (quad)(((quad_mask)a & beats) | ((quad_mask)b & ~beats));
}
VEC_INLINE float vec_largest(vec v) {
    quad q = VEC_QUAD(v, 0);
#if VEC_WIDTH >= 8
    q = quad_larger(VEC_QUAD(v, 1), q);
#endif
#if VEC_WIDTH == 16
    q = quad_larger(quad_larger(VEC_QUAD(v, 3), VEC_QUAD(v, 2)), q);
#endif
    q = quad_larger(__builtin_shufflevector(q, q, 2, 3, 2, 3), q);
    return q[1] > q[0] ? q[1] : q[0];
}

#endif

/* Vectors of floats as wide as the instruction set the including file is compiled for, in the compilers' own vector
 * arithmetic: one source serves every width. The unit of shuffling is the quad, four neighbouring floats. */
#ifndef TWI_CPU_VEC_H
#define TWI_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#ifndef VEC_WIDTH
#if defined(__AVX512F__)
#define VEC_WIDTH 16
#elif defined(__AVX2__)
#define VEC_WIDTH 8
#else
#define VEC_WIDTH 4
#endif
#endif
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
/* Vector registers there are. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define VEC_REGISTERS 32
#else
#define VEC_REGISTERS 16
#endif

/* Before a loop of constant count over an array of vectors: unrolled, the array lives in registers. */
#if defined(__clang__)
#define VEC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VEC_UNROLL _Pragma("GCC unroll 40")
#endif
#define VEC_INLINE static inline __attribute__((always_inline, unused))

typedef float vec __attribute__((vector_size(4 * VEC_WIDTH)));
typedef float vec_in_memory __attribute__((vector_size(4 * VEC_WIDTH), aligned(4), may_alias));
typedef int32_t vec_mask __attribute__((vector_size(4 * VEC_WIDTH)));
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_mask __attribute__((vector_size(16)));
typedef float quad_in_memory __attribute__((vector_size(16), aligned(4), may_alias));

VEC_INLINE vec vec_load(const float *p) { return *(const vec_in_memory *)p; }
VEC_INLINE void vec_store(float *p, vec v) { *(vec_in_memory *)p = v; }
VEC_INLINE quad quad_load(const float *p) { return *(const quad_in_memory *)p; }
VEC_INLINE void quad_store(float *p, quad v) { *(quad_in_memory *)p = v; }
VEC_INLINE vec vec_splat(float x) { return x - (vec){0}; } /* the difference, since it keeps the sign of zero */

/* Keeps a vector that is used more than once in a register: compilers would rather load it again with every use, and
 * loads are then what a loop waits for. */
#if defined(__AVX512F__)
#define VEC_HELD(v) __asm__("" : "+v"(v))
#elif defined(__x86_64__)
#define VEC_HELD(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define VEC_HELD(v) __asm__("" : "+w"(v))
#else
#define VEC_HELD(v) ((void)(v))
#endif

/* Ends a step of a loop on a tile of sums. Compilers that move loads from one step to the next one run out of
 * registers, and sums then go through memory. */
#if defined(__GNUC__)
#define VEC_STEP_END() __asm__ volatile("" ::: "memory")
#else
#define VEC_STEP_END() ((void)0)
#endif

/* a * b + c, rounded once where the instruction set can, so that no compiler's choice changes bits. */
VEC_INLINE vec vec_fma(vec a, vec b, vec c) {
#if defined(__AVX512F__) && VEC_WIDTH == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && VEC_WIDTH == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__) && VEC_WIDTH == 4
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

#if defined(__AVX2__) && VEC_WIDTH == 8
/* Which of a vector's elements are among the first n <= 8. */
VEC_INLINE __m256i vec_edge(int n) {
    static const int32_t edge[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(edge + 8 - n));
}
#endif

/* The first n < VEC_WIDTH floats, then zeros; touches no memory past them. */
VEC_INLINE vec vec_load_part(const float *p, int n) {
#if defined(__AVX512F__) && VEC_WIDTH == 16
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif defined(__AVX2__) && VEC_WIDTH == 8
    return (vec)_mm256_maskload_ps(p, vec_edge(n));
#else
    vec v = {0};
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
#endif
}

/* The first n <= VEC_WIDTH floats, then zeros; and stores as many. */
VEC_INLINE vec vec_load_some(const float *p, int n) { return n == VEC_WIDTH ? vec_load(p) : vec_load_part(p, n); }
VEC_INLINE void vec_store_some(float *p, vec v, int n) {
#if defined(__AVX512F__) && VEC_WIDTH == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#elif defined(__AVX2__) && VEC_WIDTH == 8
    if (n == VEC_WIDTH)
        vec_store(p, v);
    else
        _mm256_maskstore_ps(p, vec_edge(n), (__m256)v);
#else
    for (int i = 0; i < n; i++) p[i] = v[i];
#endif
}

/* x < 0 ? 0 : x, which keeps not-a-number. */
VEC_INLINE vec vec_relu(vec x) {
#if defined(__AVX512F__) && VEC_WIDTH == 16
    return (vec)_mm512_max_ps(_mm512_setzero_ps(), (__m512)x); /* the second if either is not a number */
#else
    return (vec)((vec_mask)x & ~(vec_mask)(x < (vec){0}));
#endif
}
VEC_INLINE quad quad_relu(quad x) {
#if defined(__AVX2__)
    return (quad)_mm_max_ps(_mm_setzero_ps(), (__m128)x);
#else
    return (quad)((quad_mask)x & ~(quad_mask)(x < (quad){0}));
#endif
}

/* Joins the quads at p[0], p[1], ... into one vector, and takes one apart. */
VEC_INLINE vec vec_from_quads(const float *const p[VEC_WIDTH / 4]) {
#if VEC_WIDTH == 4
    return quad_load(p[0]);
#else
    typedef float pair __attribute__((vector_size(32)));
    pair low = __builtin_shufflevector(quad_load(p[0]), quad_load(p[1]), 0, 1, 2, 3, 4, 5, 6, 7);
#if VEC_WIDTH == 8
    return low;
#else
    pair high = __builtin_shufflevector(quad_load(p[2]), quad_load(p[3]), 0, 1, 2, 3, 4, 5, 6, 7);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
#endif
}
#define VEC_QUAD(v, q) __builtin_shufflevector(v, v, 4 * (q), 4 * (q) + 1, 4 * (q) + 2, 4 * (q) + 3)
VEC_INLINE void vec_to_quads(float *const p[VEC_WIDTH / 4], vec v) {
    quad_store(p[0], VEC_QUAD(v, 0));
#if VEC_WIDTH >= 8
    quad_store(p[1], VEC_QUAD(v, 1));
#endif
#if VEC_WIDTH >= 16
    quad_store(p[2], VEC_QUAD(v, 2));
    quad_store(p[3], VEC_QUAD(v, 3));
#endif
}

/* The same choice within every quad of a and b: 0..3 is an element of a, 4..7 one of b. */
#define VEC_PICK(i, q) (4 * (q) + (i) + ((i) < 4 ? 0 : VEC_WIDTH - 4))
#define VEC_PICK4(q, i, j, k, l) VEC_PICK(i, q), VEC_PICK(j, q), VEC_PICK(k, q), VEC_PICK(l, q)
#if VEC_WIDTH == 4
#define VEC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, VEC_PICK4(0, __VA_ARGS__))
#elif VEC_WIDTH == 8
#define VEC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, VEC_PICK4(0, __VA_ARGS__), VEC_PICK4(1, __VA_ARGS__))
#else
#define VEC_SHUFFLE(a, b, ...)                                                                                     \
    __builtin_shufflevector(a, b, VEC_PICK4(0, __VA_ARGS__), VEC_PICK4(1, __VA_ARGS__), VEC_PICK4(2, __VA_ARGS__), \
                            VEC_PICK4(3, __VA_ARGS__))
#endif

/* Transposes every 4x4 block: afterwards quad q of v[i] holds element i of the four quads q. */
VEC_INLINE void vec_transpose4(vec v[4]) {
    vec a = VEC_SHUFFLE(v[0], v[1], 0, 4, 1, 5), b = VEC_SHUFFLE(v[2], v[3], 0, 4, 1, 5);
    vec c = VEC_SHUFFLE(v[0], v[1], 2, 6, 3, 7), d = VEC_SHUFFLE(v[2], v[3], 2, 6, 3, 7);
    v[0] = VEC_SHUFFLE(a, b, 0, 1, 4, 5);
    v[1] = VEC_SHUFFLE(a, b, 2, 3, 6, 7);
    v[2] = VEC_SHUFFLE(c, d, 0, 1, 4, 5);
    v[3] = VEC_SHUFFLE(c, d, 2, 3, 6, 7);
}

/* v[k][r] = p[r * row + k]: four columns of as many rows as a vector has elements; and back. */
VEC_INLINE void vec_load_columns(vec v[4], const float *p, int64_t row) {
    VEC_UNROLL
    for (int r = 0; r < 4; r++) {
        const float *quads[VEC_WIDTH / 4];
        VEC_UNROLL
        for (int q = 0; q < VEC_WIDTH / 4; q++) quads[q] = p + (4 * q + r) * row;
        v[r] = vec_from_quads(quads);
    }
    vec_transpose4(v);
}
VEC_INLINE void vec_store_columns(float *p, int64_t row, vec v[4]) {
    vec_transpose4(v);
    VEC_UNROLL
    for (int r = 0; r < 4; r++) {
        float *quads[VEC_WIDTH / 4];
        VEC_UNROLL
        for (int q = 0; q < VEC_WIDTH / 4; q++) quads[q] = p + (4 * q + r) * row;
        vec_to_quads(quads, v[r]);
    }
}

/* The sums over the elements of four vectors, in an order of their own that is always the same. */
VEC_INLINE quad vec_sum4(const vec v[4]) {
    vec a = VEC_SHUFFLE(v[0], v[1], 0, 4, 1, 5) + VEC_SHUFFLE(v[0], v[1], 2, 6, 3, 7);
    vec b = VEC_SHUFFLE(v[2], v[3], 0, 4, 1, 5) + VEC_SHUFFLE(v[2], v[3], 2, 6, 3, 7);
    vec s = VEC_SHUFFLE(a, b, 0, 1, 4, 5) + VEC_SHUFFLE(a, b, 2, 3, 6, 7);
#if VEC_WIDTH == 4
    return s;
#elif VEC_WIDTH == 8
    return VEC_QUAD(s, 0) + VEC_QUAD(s, 1);
#else
    typedef float half __attribute__((vector_size(32)));
    half h = __builtin_shufflevector(s, s, 0, 1, 2, 3, 4, 5, 6, 7) +
             __builtin_shufflevector(s, s, 8, 9, 10, 11, 12, 13, 14, 15);
    return VEC_QUAD(h, 0) + VEC_QUAD(h, 1);
#endif
}

#endif

/* Between samples one after the other and samples in the lanes of vectors: what was a float of one sample becomes a
 * vector of the same float of VEC_WIDTH samples, a block. Operands may lie either way (twi_lanes_tensor). */
#ifndef TWI_CPU_LANES_TURN_KERNEL_H
#define TWI_CPU_LANES_TURN_KERNEL_H

#include "conv_lanes.h"
#include "parts.h"
#include "vec_test.h"

enum { QUADS = VEC_WIDTH / 4 };

/* count neighbouring floats of `live` images, `image` floats apart, into lanes; lanes without an image become 0. */
static void to_lanes(const float *from, int64_t image, int live, int64_t count, float *to) {
    int64_t i = 0;
    if (live == VEC_WIDTH) {
        for (; i + 4 <= count; i += 4) {
            vec v[4];
            vec_load_columns(v, from + i, image);
            VEC_UNROLL
            for (int r = 0; r < 4; r++) vec_store(to + (i + r) * VEC_WIDTH, v[r]);
        }
    }
    for (; i < count; i++) {
        for (int lane = 0; lane < VEC_WIDTH; lane++)
            to[i * VEC_WIDTH + lane] = lane < live ? from[lane * image + i] : 0;
    }
}

/* And back. */
static void from_lanes(const float *from, int64_t count, int live, float *to, int64_t image) {
    int64_t i = 0;
    if (live == VEC_WIDTH) {
        for (; i + 4 <= count; i += 4) {
            vec v[4];
            VEC_UNROLL
            for (int r = 0; r < 4; r++) v[r] = vec_load(from + (i + r) * VEC_WIDTH);
            vec_store_columns(to + i, image, v);
        }
    }
    for (; i < count; i++) {
        for (int lane = 0; lane < live; lane++) to[lane * image + i] = from[i * VEC_WIDTH + lane];
    }
}

/* to[i] = the sum over the lanes of vector i; add: on top of what it holds. */
static void sum_lanes(const float *vectors, int64_t count, bool add, float *to) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4, vectors += 4 * VEC_WIDTH) {
        vec v[4] = {vec_load(vectors), vec_load(vectors + VEC_WIDTH), vec_load(vectors + 2 * VEC_WIDTH),
                    vec_load(vectors + 3 * VEC_WIDTH)};
        quad sum = vec_sum4(v);
        quad_store(to + i, add ? sum + quad_load(to + i) : sum);
    }
    if (i == count) return;
    vec v[4] = {{0}};
    for (int j = 0; j < count - i; j++) v[j] = vec_load(vectors + j * VEC_WIDTH);
    quad sum = vec_sum4(v);
    for (int j = 0; j < count - i; j++) to[i + j] = sum[j] + (add ? to[i + j] : 0);
}

/* Yes for the lanes that hold one of `live` samples. */
VEC_INLINE vec_test live_lanes(int live) {
    return vec_test_from(live >= VEC_WIDTH ? (1u << (VEC_WIDTH - 1)) * 2 - 1 : (1u << live) - 1);
}

/* Vectors of a block whose last lanes may hold anything, with 0 there. */
static void copy_live(const float *from, int live, int64_t count, float *to) {
    const vec_test yes = live_lanes(live);
    for (int64_t i = 0; i < count * VEC_WIDTH; i += VEC_WIDTH) vec_store(to + i, vec_keep(yes, vec_load(from + i)));
}

/* `count` floats of the samples from n on in lanes: where they are, or in scratch; 0 in lanes without a sample. */
static const float *floats_in_lanes(twi_lanes_tensor t, int64_t n, int live, int64_t count, float *scratch) {
    const float *from = (const float *)t.data + n * count;
    if (t.turned && live == VEC_WIDTH) return from;
    if (t.turned)
        copy_live(from, live, count, scratch);
    else
        to_lanes(from, count, live, count, scratch);
    return scratch;
}

/* The same of bytes, but anything in lanes without a sample. */
static const uint8_t *bytes_in_lanes(twi_lanes_tensor t, int64_t n, int live, int64_t count, uint8_t *scratch) {
    const uint8_t *from = (const uint8_t *)t.data + n * count;
    if (t.turned) return from;
    for (int64_t i = 0; i < count; i++) {
        for (int lane = 0; lane < VEC_WIDTH; lane++)
            scratch[i * VEC_WIDTH + lane] = lane < live ? from[lane * count + i] : 0;
    }
    return scratch;
}
static void bytes_from_lanes(const uint8_t *from, int64_t count, int live, uint8_t *to, int64_t image) {
    for (int64_t i = 0; i < count; i++) {
        for (int lane = 0; lane < live; lane++) to[lane * image + i] = from[i * VEC_WIDTH + lane];
    }
}

#endif

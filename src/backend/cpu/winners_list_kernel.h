/* Lists of the elements that won: their gradients, and a place that each stands for. */
#ifndef TWI_CPU_WINNERS_LIST_KERNEL_H
#define TWI_CPU_WINNERS_LIST_KERNEL_H

#include "lanes_pool_kernel.h"
#include "lanes_steps_kernel.h"
#include "lanes_tiling_kernel.h"
#include "vec_list.h"

/* Sums of a tile, which leave registers for a gradient and what it is multiplied with; and vectors of a row in one. */
enum { WINNERS_REGISTERS = VEC_REGISTERS == 32 ? 24 : 12, WINNERS_VECTORS = 4 };

/* Vectors that a row of the kernel fills. */
static int64_t kernel_vectors(const twi_conv_shape *s) { return twi_part_count(s->kernel_w * s->in_c, VEC_WIDTH); }
static int64_t kernel_row_floats(const twi_conv_shape *s) { return kernel_vectors(s) * VEC_WIDTH; }
static int64_t whole_vectors(int64_t floats) { return twi_part_count(floats, VEC_WIDTH) * VEC_WIDTH; }

/* What the index of a winner adds to its place, and what the window's row, column and channel add. */
typedef struct winner_places {
    int32_t of_index[TWI_WINNERS_WINDOW], origin, row, column, channel;
} winner_places;

/* table[number], of numbers below TWI_WINNERS_WINDOW; of others anything. */
VEC_INLINE vec_mask look_up(const int32_t table[TWI_WINNERS_WINDOW], vec_mask number) {
#if VEC_WIDTH == 16
    return (vec_mask)_mm512_permutexvar_epi32((__m512i)number, _mm512_loadu_si512(table));
#elif VEC_WIDTH == 8 && defined(__AVX2__)
    const __m256i *const halves = (const __m256i *)table;
    const __m256i low = _mm256_loadu_si256(halves), high = _mm256_loadu_si256(halves + 1);
    return vec_choose_int(number > 7, (vec_mask)_mm256_permutevar8x32_epi32(high, (__m256i)number),
                          (vec_mask)_mm256_permutevar8x32_epi32(low, (__m256i)number));
#else
    vec_mask found;
    for (int i = 0; i < VEC_WIDTH; i++) found[i] = table[number[i] & (TWI_WINNERS_WINDOW - 1)];
    return found;
#endif
}

/* The place of every winner of a block whose indices are in lanes: in lanes as well. */
static void places_in_lanes(const twi_lanes_pool *pool, int64_t channels, const winner_places *places,
                            const uint8_t *index, int32_t *to) {
    for (int64_t p = 0; p < pool->rows; p++) {
        for (int64_t q = 0; q < pool->columns; q++) {
            int32_t base = places->origin + (int32_t)p * places->row + (int32_t)q * places->column;
            for (int64_t c = 0; c < channels; c++, base += places->channel, index += VEC_WIDTH, to += VEC_WIDTH) {
                const vec_mask place = look_up(places->of_index, load_numbers(index)) + vec_splat_int(base);
                memcpy(to, &place, sizeof place);
            }
        }
    }
}

VEC_INLINE vec_mask load_places(const int32_t *from, int64_t count) {
    const vec bits = vec_load_some((const float *)from, (int)twi_smaller(count, VEC_WIDTH));
    return (vec_mask)bits;
}

/* A block's gradients and places, one sample after the other. */
typedef struct winners_block {
    float *gradients;
    int32_t *places;
} winners_block;

static int64_t winners_count(const twi_lanes_pool *pool, int64_t channels) {
    return pool->rows * pool->columns * channels;
}

/* Scratch of the function below: gradients and places turned, the same in lanes, and indices. */
static int64_t winners_block_floats(const twi_lanes_pool *pool, int64_t channels) {
    return (4 * VEC_WIDTH + VEC_WIDTH / 4) * winners_count(pool, channels);
}

/* Of the `live` samples from n on; by_channel: a channel's windows follow one another, else a window's channels. */
static winners_block winners_of_block(const twi_lanes_pool *pool, twi_lanes_tensor dy, int64_t channels, int64_t n,
                                      int live, const winner_places *places, bool by_channel, float *scratch) {
    const int64_t windows = pool->rows * pool->columns, count = winners_count(pool, channels);
    const int64_t block = count * VEC_WIDTH;
    float *in_lanes = scratch + 2 * block;
    int32_t *lane_places = (int32_t *)(in_lanes + block);
    winners_block turned = {scratch, (int32_t *)(scratch + block)};
    const float *gradients = floats_in_lanes(dy, n, live, count, in_lanes);
    const uint8_t *index = bytes_in_lanes(pool->index, n, live, count, (uint8_t *)(lane_places + block));
    places_in_lanes(pool, channels, places, index, lane_places);
    if (by_channel) {
        image_to_rows(live, windows, channels, gradients, turned.gradients);
        image_to_rows(live, windows, channels, (const float *)lane_places, (float *)turned.places);
    } else {
        from_lanes(gradients, count, live, turned.gradients, count);
        from_lanes((const float *)lane_places, count, live, (float *)turned.places, count);
    }
    return turned;
}

#endif

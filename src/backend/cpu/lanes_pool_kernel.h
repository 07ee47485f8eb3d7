/* Max pooling of rows in lanes, and its backward, which gives every gradient to the element that won. A vector is the
 * same element of VEC_WIDTH images, so windows of any size and place are walked one by one. */
#ifndef TWI_CPU_LANES_POOL_KERNEL_H
#define TWI_CPU_LANES_POOL_KERNEL_H

#include "lanes_turn_kernel.h"

typedef uint8_t lane_bytes __attribute__((vector_size(VEC_WIDTH)));
VEC_INLINE void store_bytes(uint8_t *to, vec_mask values) {
    lane_bytes bytes = __builtin_convertvector(values, lane_bytes);
    memcpy(to, &bytes, sizeof bytes);
}

/* ---- forward ---- */

/* Rows of a convolution's result; row r is at kept + r % kernel_h * row_floats. */
typedef struct pool_source {
    int64_t channels, columns, row_floats;
    const float *kept;
} pool_source;

/* One window in one channel: rows x columns of it are in the image, the first with this number. */
VEC_INLINE void pool_window_max(const int64_t rows, const int64_t columns, const float *const *row, int64_t at,
                                int64_t pixel, int32_t number, int32_t number_row, bool relu, float *y,
                                uint8_t *index) {
    vec largest = vec_load(row[0] + at);
    vec_mask winner = vec_splat_int(number);
    for (int64_t h = 0; h < rows; h++) {
        for (int64_t w = 0; w < columns; w++) {
            if (h == 0 && w == 0) continue;
            vec value = vec_load(row[h] + at + w * pixel);
            vec_test better = vec_beats(value, largest);
            largest = vec_choose(better, value, largest);
            winner = vec_choose_int(better, vec_splat_int(number + (int32_t)h * number_row + (int32_t)w), winner);
        }
    }
    vec_store(y, relu ? vec_relu(largest) : largest);
    store_bytes(index, winner);
}

/* A row of windows in lanes. */
static void pool_row_max(const twi_lanes_pool *pool, const pool_source *source, int64_t p, int64_t first, int64_t end,
                         bool relu, float *y, uint8_t *index) {
    const twi_pool_attrs *a = pool->attrs;
    const int64_t pixel = source->channels * VEC_WIDTH, rows = end - first;
    const int32_t skipped = (int32_t)(first - (p * a->stride_h - a->pad_top)) * a->kernel_w;
    const float *row[UINT8_MAX];
    for (int64_t h = 0; h < rows; h++) row[h] = source->kept + (first + h) % a->kernel_h * source->row_floats;
    for (int64_t q = 0; q < pool->columns; q++) {
        int64_t left = q * a->stride_w - a->pad_left, x = twi_larger(left, 0);
        int64_t columns = twi_smaller(left + a->kernel_w, source->columns) - x;
        int32_t number = skipped + (int32_t)(x - left);
        for (int64_t c = 0; c < pixel; c += VEC_WIDTH, y += VEC_WIDTH, index += VEC_WIDTH) {
            if (rows == 2 && columns == 2) /* known sizes are unrolled */
                pool_window_max(2, 2, row, x * pixel + c, pixel, number, a->kernel_w, relu, y, index);
            else
                pool_window_max(rows, columns, row, x * pixel + c, pixel, number, a->kernel_w, relu, y, index);
        }
    }
}

/* Scratch of a row of results that have to be turned, and of their indices. */
static int64_t pool_row_floats(const twi_lanes_pool *pool, int64_t channels) {
    return pool ? pool->columns * channels * (VEC_WIDTH + VEC_WIDTH / 4) : 0;
}

/* Where a row of windows goes in lanes: to y and to the pool's index, or to scratch. */
typedef struct pool_place {
    float *y;
    uint8_t *index;
} pool_place;

/* Row p of windows of the samples from n on. */
static pool_place pool_row_place(const twi_lanes_pool *pool, int64_t channels, int64_t p, twi_lanes_tensor y, int64_t n,
                                 float *scratch) {
    const int64_t count = pool->columns * channels, first = n * pool->rows * count + p * count * VEC_WIDTH;
    return (pool_place){y.turned ? (float *)y.data + first : scratch,
                        pool->index.turned ? (uint8_t *)pool->index.data + first : (uint8_t *)(scratch + count * VEC_WIDTH)};
}

/* Turns it, where it is wanted so. */
static void pool_row_turn(const twi_lanes_pool *pool, int64_t channels, int64_t p, const pool_place *place,
                          twi_lanes_tensor y, int64_t n, int live) {
    const int64_t count = pool->columns * channels, sample = pool->rows * count, first = n * sample + p * count;
    if (!y.turned) from_lanes(place->y, count, live, (float *)y.data + first, sample);
    if (!pool->index.turned) bytes_from_lanes(place->index, count, live, (uint8_t *)pool->index.data + first, sample);
}

/* ---- backward ---- */

/* A block of gradients and indices in lanes. */
typedef struct pool_block {
    const float *dy;
    const uint8_t *index;
} pool_block;

static int64_t pool_block_floats(const twi_lanes_pool *pool, int64_t channels) {
    return pool ? pool->rows * pool->columns * channels * (VEC_WIDTH + VEC_WIDTH / 4) : 0;
}

static pool_block pool_block_in_lanes(const twi_lanes_pool *pool, twi_lanes_tensor dy, int64_t channels, int64_t n,
                                      int live, float *scratch) {
    const int64_t count = pool->rows * pool->columns * channels;
    return (pool_block){floats_in_lanes(dy, n, live, count, scratch),
                        bytes_in_lanes(pool->index, n, live, count, (uint8_t *)(scratch + count * VEC_WIDTH))};
}

/* Does every element of such an image lie in exactly one window? Then it is written once, and nothing must be cleared. */
static bool pool_is_exact(const twi_lanes_pool *pool, int64_t height, int64_t width) {
    const twi_pool_attrs *a = pool->attrs;
    return a->stride_h == a->kernel_h && a->stride_w == a->kernel_w && a->pad_top == 0 && a->pad_left == 0 &&
           pool->rows * a->stride_h == height && pool->columns * a->stride_w == width;
}

/* Where gradients go: rows of an image, of which those columns and `some` channels from first_channel on are kept; `at`
 * is column 0 of the first row wanted. */
typedef struct pool_target {
    int64_t height, width, channels, first_channel, some, first_column, end_column, row, column;
    float *at;
} pool_target;

/* A vector of bytes as integers. */
VEC_INLINE vec_mask load_numbers(const uint8_t *from) {
#if VEC_WIDTH == 16
    return (vec_mask)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif VEC_WIDTH == 8 && defined(__AVX2__)
    return (vec_mask)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    lane_bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, vec_mask);
#endif
}

/* A vector of indices, where one is a number, and where one has a bit. */
#if VEC_WIDTH == 16 && defined(__AVX512BW__) && defined(__AVX512VL__)
typedef __m128i lane_indices;
VEC_INLINE lane_indices load_indices(const uint8_t *from) { return _mm_loadu_si128((const __m128i *)from); }
VEC_INLINE vec_test indices_same(lane_indices index, int32_t number) {
    return _mm_cmpeq_epi8_mask(index, _mm_set1_epi8((char)number));
}
VEC_INLINE vec_test indices_have(lane_indices index, int32_t bit) {
    return _mm_test_epi8_mask(index, _mm_set1_epi8((char)bit));
}
#else
typedef vec_mask lane_indices;
VEC_INLINE lane_indices load_indices(const uint8_t *from) { return load_numbers(from); }
VEC_INLINE vec_test indices_same(lane_indices index, int32_t number) { return vec_same(index, vec_splat_int(number)); }
VEC_INLINE vec_test indices_have(lane_indices index, int32_t bit) {
    return vec_same(index & vec_splat_int(bit), vec_splat_int(bit));
}
#endif

/* A run of windows one above the other in `count` channels: rows x columns of each are wanted. */
VEC_INLINE void unpool_window(const int64_t rows, const int64_t columns, int64_t count, const float *dy,
                              const uint8_t *index, int32_t number, int32_t number_row, const bool exact, float *to,
                              int64_t row, int64_t column) {
    for (int64_t c = 0; c < count; c += VEC_WIDTH) {
        const vec gradient = vec_load(dy + c);
        const lane_indices winner = load_indices(index + c);
        for (int64_t h = 0; h < rows; h++) {
            for (int64_t w = 0; w < columns; w++) {
                vec won = vec_keep(indices_same(winner, number + (int32_t)h * number_row + (int32_t)w), gradient);
                float *dx = to + c + h * row + w * column;
                vec_store(dx, exact ? won : vec_load(dx) + won);
            }
        }
    }
}

/* Rows begin .. end-1 of the image. Unless the pool is exact for it, they must be 0. */
static void unpool_rows(const twi_lanes_pool *pool, const pool_block *block, const pool_target *t, int64_t begin,
                        int64_t end) {
    const twi_pool_attrs *a = pool->attrs;
    const bool exact = pool_is_exact(pool, t->height, t->width);
    const int64_t count = t->channels * VEC_WIDTH, some = t->some * VEC_WIDTH;
    int64_t p = twi_larger(0, begin + a->pad_top - a->kernel_h + a->stride_h) / a->stride_h;
    for (; p < pool->rows && p * a->stride_h - a->pad_top < end; p++) {
        int64_t top = p * a->stride_h - a->pad_top, y = twi_larger(top, begin);
        int64_t rows = twi_smaller(top + a->kernel_h, twi_smaller(end, t->height)) - y;
        for (int64_t q = 0; q < pool->columns && rows > 0; q++) {
            int64_t left = q * a->stride_w - a->pad_left, x = twi_larger(left, t->first_column);
            int64_t columns = twi_smaller(left + a->kernel_w, t->end_column) - x;
            int32_t number = (int32_t)((y - top) * a->kernel_w + x - left);
            int64_t from = (p * pool->columns + q) * count + t->first_channel * VEC_WIDTH;
            const float *dy = block->dy + from;
            const uint8_t *index = block->index + from;
            float *to = t->at + (y - begin) * t->row + x * t->column;
            if (exact && rows == 2 && columns == 2) /* known sizes are unrolled */
                unpool_window(2, 2, some, dy, index, number, a->kernel_w, true, to, t->row, t->column);
            else if (exact)
                unpool_window(rows, columns, some, dy, index, number, a->kernel_w, true, to, t->row, t->column);
            else
                unpool_window(rows, columns, some, dy, index, number, a->kernel_w, false, to, t->row, t->column);
        }
    }
}

#endif

/* The convolutions of conv_pixels.h, written once; conv_pixels_<isa>.c compiles them as PIXELS_RECORD.
 *
 * An image is copied to scratch first, channel by channel within each row, with its padding. Then neighbouring pixels
 * of a channel are neighbours in memory, and a tile, some pixels of a row by a vector of output channels, takes one
 * vector of weights and one number a pixel for every tap, from addresses that differ by constants. Weights lie in the
 * order in which tiles take them, the last vector of channels filled up with zeros. */
#include "conv_pixels.h"
#include "parts.h"
#include "vec_test.h"

#if VEC_REGISTERS == 32
enum { TILE_MOST = 16 };
#else
enum { TILE_MOST = 12 };
#endif

static int64_t blocks_of(const twi_conv_shape *s) { return twi_part_count(s->out_c, VEC_WIDTH); }
static int64_t taps_of(const twi_conv_shape *s) { return s->kernel_h * s->in_c * s->kernel_w; }

/* ---- weights: for every block of channels the bias, then row, channel and column of the kernel ---- */

static int64_t packed_floats(const twi_conv_shape *s) { return blocks_of(s) * (1 + taps_of(s)) * VEC_WIDTH; }

static void pack(const twi_conv_shape *s, const float *w, const float *bias, float *to) {
    const int64_t in_c = s->in_c, kernel = s->kernel_h * s->kernel_w * in_c;
    for (int64_t first = 0; first < s->out_c; first += VEC_WIDTH) {
        for (int64_t tap = -1; tap < kernel; tap++) {
            const int64_t row = tap / (in_c * s->kernel_w), channel = tap / s->kernel_w % in_c;
            const int64_t from = (row * s->kernel_w + tap % s->kernel_w) * in_c + channel;
            for (int64_t o = first; o < first + VEC_WIDTH; o++) {
                const bool there = o < s->out_c;
                *to++ = !there ? 0 : tap >= 0 ? w[o * kernel + from] : bias ? bias[o] : 0;
            }
        }
    }
}

/* ---- images ---- */

/* As many rows and columns as the kernel walks over. */
static int64_t image_rows(const twi_conv_shape *s) { return (s->out_h - 1) * s->stride_h + s->kernel_h; }
static int64_t image_columns(const twi_conv_shape *s) { return (s->out_w - 1) * s->stride_w + s->kernel_w; }

static void copy_row(const twi_conv_shape *s, const float *from, int64_t columns, float *to) {
    const int64_t left = s->left, first = left < 0 ? -left : 0, end = twi_smaller(s->in_w, columns - left);
    if (s->in_c == 1) {
        if (end > first) memcpy(to + left + first, from + first, (size_t)(end - first) * sizeof(float));
        return;
    }
    for (int64_t c = 0; c < s->in_c; c++, to += columns) {
        for (int64_t x = first; x < end; x++) to[left + x] = from[x * s->in_c + c];
    }
}

static void copy_image(const twi_conv_shape *s, const float *x, float *to) {
    const int64_t rows = image_rows(s), columns = image_columns(s), row = s->in_c * columns;
    const bool whole = s->left <= 0 && s->in_w + s->left >= columns;
    for (int64_t y = 0; y < rows; y++, to += row) {
        const int64_t in_y = y - s->top;
        const bool inside = in_y >= 0 && in_y < s->in_h;
        if (!inside || !whole) memset(to, 0, (size_t)row * sizeof(float));
        if (inside) copy_row(s, x + in_y * s->in_w * s->in_c, columns, to);
    }
}

/* ---- tiles ---- */

/* What a tile runs over: planes of the image, of a channel in a row, and the taps of each. */
typedef struct tile_walk {
    const float *image, *weights;
    int64_t planes, plane, taps;
    bool relu;
    float *to;
    int64_t to_pixel;
    int lanes; /* channels that there are */
} tile_walk;

VEC_INLINE void store_lanes(float *to, vec v, int lanes) {
#if VEC_WIDTH == 16 && defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << lanes) - 1), (__m512)v);
#else
    if (lanes == VEC_WIDTH) {
        vec_store(to, v);
        return;
    }
    for (int i = 0; i < lanes; i++) to[i] = v[i];
#endif
}

VEC_INLINE void tile(const int cells, const int step, const tile_walk *walk) {
    const float *weights = walk->weights, *image = walk->image;
    vec s[TILE_MOST];
    VEC_UNROLL
    for (int c = 0; c < cells; c++) s[c] = vec_load(weights);
    weights += VEC_WIDTH;
    for (int64_t plane = walk->planes; plane > 0; plane--, image += walk->plane) {
        const float *x = image;
        for (int64_t tap = walk->taps; tap > 0; tap--, x++, weights += VEC_WIDTH) {
            vec weight = vec_load(weights);
            VEC_HELD(weight);
            __asm__("" : "+r"(x)); /* or compilers carry numbers on from tap to tap, which takes more than to load
                                      them */
            VEC_UNROLL
            for (int c = 0; c < cells; c++) s[c] = vec_fma(weight, vec_splat(x[c * step]), s[c]);
        }
    }
    VEC_UNROLL
    for (int c = 0; c < cells; c++)
        store_lanes(walk->to + c * walk->to_pixel, walk->relu ? vec_relu(s[c]) : s[c], walk->lanes);
}

#define EACH_TILE_NARROW(make, step)                                                                              \
    make(1, step) make(2, step) make(3, step) make(4, step) make(5, step) make(6, step) make(7, step) make(8, step) \
        make(9, step) make(10, step) make(11, step) make(12, step)
#if VEC_REGISTERS == 32
#define EACH_TILE(make, step) \
    EACH_TILE_NARROW(make, step) make(13, step) make(14, step) make(15, step) make(16, step)
#else
#define EACH_TILE(make, step) EACH_TILE_NARROW(make, step)
#endif
#define TILE(cells, step) \
    static void tile_##cells##_##step(const tile_walk *walk) { tile(cells, step, walk); }
EACH_TILE(TILE, 1)
EACH_TILE(TILE, 2)
#define TILE_ENTRY(cells, step) [step - 1][cells] = tile_##cells##_##step,
static void (*const tiles[2][TILE_MOST + 1])(const tile_walk *) = {EACH_TILE(TILE_ENTRY, 1) EACH_TILE(TILE_ENTRY, 2)};

/* One row of the result: pixels of `pixel` floats each, of which `channels` are written. */
static void forward_row(const twi_conv_shape *s, const float *image, const float *packed, int64_t out_y, bool relu,
                        int64_t channels, float *to, int64_t pixel) {
    const int64_t columns = image_columns(s), row = s->in_c * columns, parts = twi_part_count(s->out_w, TILE_MOST);
    const float *from = image + out_y * s->stride_h * row;
    tile_walk walk = {.planes = s->kernel_h * s->in_c, .plane = columns, .taps = s->kernel_w, .relu = relu};
    walk.to_pixel = pixel;
    for (int64_t part = 0; part < parts; part++) {
        const int64_t x = twi_part_begin(s->out_w, parts, part), end = twi_part_begin(s->out_w, parts, part + 1);
        walk.image = from + x * s->stride_w;
        walk.weights = packed;
        for (int64_t o = 0; o < channels; o += VEC_WIDTH) {
            walk.to = to + x * pixel + o;
            walk.lanes = (int)twi_smaller(VEC_WIDTH, channels - o);
            tiles[s->stride_w - 1][end - x](&walk);
            walk.weights += (1 + taps_of(s)) * VEC_WIDTH;
        }
    }
}

/* ---- pooling ---- */

VEC_INLINE void store_numbers(uint8_t *to, vec_mask numbers, int lanes) {
#if VEC_WIDTH == 16 && defined(__AVX512F__)
    _mm512_mask_cvtepi32_storeu_epi8(to, (__mmask16)((1u << lanes) - 1), (__m512i)numbers);
#else
    for (int i = 0; i < lanes; i++) to[i] = (uint8_t)numbers[i];
#endif
}

/* One window in a vector of channels: rows x columns of it are in the image, the first with this number. */
VEC_INLINE void pool_window(const int64_t rows, const int64_t columns, const float *const *row, int64_t at, int64_t pixel,
                            int32_t number, int32_t number_row, bool relu, float *y, uint8_t *index, int lanes) {
    vec largest = vec_load(row[0] + at);
    vec_mask winner = (vec_mask){0} + number;
    for (int64_t h = 0; h < rows; h++) {
        for (int64_t w = 0; w < columns; w++) {
            if (h == 0 && w == 0) continue;
            const vec value = vec_load(row[h] + at + w * pixel);
            const vec_test better = vec_beats(value, largest);
            largest = vec_choose(better, value, largest);
            winner = vec_choose_int(better, (vec_mask){0} + (number + (int32_t)h * number_row + (int32_t)w), winner);
        }
    }
    store_lanes(y, relu ? vec_relu(largest) : largest, lanes);
    store_numbers(index, winner, lanes);
}

/* Row p of windows, which covers rows first .. end-1 of the result; row r is at kept + r % kernel_h * row_floats. */
static void pool_row(const twi_conv_shape *s, const twi_pixels_pool *pool, int64_t p, int64_t first, int64_t end,
                     const float *kept, bool relu, float *y, uint8_t *index) {
    const twi_pool_attrs *a = pool->attrs;
    const int64_t pixel = blocks_of(s) * VEC_WIDTH, row_floats = s->out_w * pixel, rows = end - first;
    const int32_t skipped = (int32_t)(first - (p * a->stride_h - a->pad_top)) * a->kernel_w;
    const float *row[UINT8_MAX];
    for (int64_t h = 0; h < rows; h++) row[h] = kept + (first + h) % a->kernel_h * row_floats;
    for (int64_t q = 0; q < pool->columns; q++) {
        const int64_t left = q * a->stride_w - a->pad_left, x = twi_larger(left, 0);
        const int64_t columns = twi_smaller(left + a->kernel_w, s->out_w) - x;
        const int32_t number = skipped + (int32_t)(x - left);
        for (int64_t o = 0; o < s->out_c; o += VEC_WIDTH) {
            const int lanes = (int)twi_smaller(VEC_WIDTH, s->out_c - o);
            float *to = y + q * s->out_c + o;
            uint8_t *winner = index + q * s->out_c + o;
            if (rows == 2 && columns == 2) /* known sizes are unrolled */
                pool_window(2, 2, row, x * pixel + o, pixel, number, a->kernel_w, relu, to, winner, lanes);
            else
                pool_window(rows, columns, row, x * pixel + o, pixel, number, a->kernel_w, relu, to, winner, lanes);
        }
    }
}

static void forward_pooled(const twi_conv_shape *s, const float *image, const float *packed,
                           const twi_pixels_pool *pool, bool relu, float *y, uint8_t *index, float *kept) {
    const int64_t pixel = blocks_of(s) * VEC_WIDTH, most = pool->attrs->kernel_h;
    int64_t done = 0;
    for (int64_t p = 0; p < pool->rows; p++) {
        const int64_t top = p * pool->attrs->stride_h - pool->attrs->pad_top;
        const int64_t first = twi_larger(top, 0), end = twi_smaller(top + most, s->out_h);
        for (done = twi_larger(done, first); done < end; done++)
            forward_row(s, image, packed, done, false, pixel, kept + done % most * s->out_w * pixel, pixel);
        const int64_t at = p * pool->columns * s->out_c;
        pool_row(s, pool, p, first, end, kept, relu, y + at, index + at);
    }
}

/* ---- all ---- */

static int64_t scratch_floats(const twi_conv_shape *s, const twi_pixels_pool *pool) {
    const int64_t kept = pool ? pool->attrs->kernel_h * s->out_w * blocks_of(s) * VEC_WIDTH : 0;
    return (image_rows(s) * image_columns(s) * s->in_c + VEC_WIDTH - 1) / VEC_WIDTH * VEC_WIDTH + kept;
}

static void forward(const twi_conv_shape *s, const float *x, const float *packed, const twi_pixels_pool *pool,
                    bool relu, float *y, float *scratch) {
    float *kept = scratch + scratch_floats(s, NULL);
    for (int64_t n = 0; n < s->samples; n++, x += s->in_h * s->in_w * s->in_c) {
        copy_image(s, x, scratch);
        if (pool) {
            const int64_t sample = n * pool->rows * pool->columns * s->out_c;
            forward_pooled(s, scratch, packed, pool, relu, y + sample, pool->index + sample, kept);
            continue;
        }
        for (int64_t out_y = 0; out_y < s->out_h; out_y++, y += s->out_w * s->out_c)
            forward_row(s, scratch, packed, out_y, relu, s->out_c, y, s->out_c);
    }
}

const twi_pixels PIXELS_RECORD = {
    .width = VEC_WIDTH,
    .packed = packed_floats,
    .scratch = scratch_floats,
    .pack = pack,
    .forward = forward,
};

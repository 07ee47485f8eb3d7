/* Convolutions in lanes that pool their result in windows of 2x2, by fewer products (twi_windows in conv_lanes.h): a row
 * of the kernel is cut into pieces of three and two taps, and each gives two neighbouring results by Winograd's minimal
 * filtering. Of d, what a piece lies on, and g, its taps,
 *     three taps:  y0 = (d0 - d2) g0 + s + t       s = (d1 + d2) (g0 + g1 + g2) / 2
 *                  y1 = (d3 - d1) g2 + s - t       t = (d2 - d1) (g0 - g1 + g2) / 2
 *     two taps:    y0 = (d0 - d1) g0 + s           s = d1 (g0 + g1)
 *                  y1 = (d2 - d1) g1 + s
 * 4 products instead of 6, and 3 instead of 4. What they add to is one of four sums, whatever the piece, the input
 * channel and the row of the kernel: of y0, of y1, of both, of their difference. So a tile keeps four sums for each
 * pair of results in registers, and what is left at the end is y0 = first + both + difference. */
#ifndef TWI_CPU_WINDOWS_PAIRS_KERNEL_H
#define TWI_CPU_WINDOWS_PAIRS_KERNEL_H

#include "lanes_image_kernel.h"
#include "lanes_tile_kernel.h"

enum { SUM_FIRST, SUM_BOTH, SUM_DIFFERENCE, SUM_SECOND, PAIR_SUMS };
enum { THREE_POINTS = 4, TWO_POINTS = 3, PAIR_OUTS = TILE_SUMS / (2 * PAIR_SUMS) };

/* ---- pieces of a row of the kernel ---- */

/* Those of three taps come first, then those of two. */
typedef struct row_pieces {
    int64_t threes, twos;
} row_pieces;

static row_pieces pieces_of(int64_t taps) {
    const int64_t twos = taps % 3 == 0 ? 0 : taps % 3 == 2 ? 1 : 2;
    return (row_pieces){(taps - 2 * twos) / 3, twos};
}

/* Numbers that stand for a row of the kernel, or for what it lies on. */
static int64_t pair_points(const twi_conv_shape *s) {
    const row_pieces p = pieces_of(s->kernel_w);
    return (p.threes * THREE_POINTS + p.twos * TWO_POINTS) * s->in_c;
}

/* ---- weights: of an output channel and a row of the kernel, pieces x input channels x points ---- */

static int64_t pairs_packed(const twi_conv_shape *s) { return s->out_c * s->kernel_h * pair_points(s); }

static void pairs_pack(const twi_conv_shape *s, const float *w, float *to) {
    const row_pieces pieces = pieces_of(s->kernel_w);
    const int64_t c = s->in_c;
    for (int64_t row = 0; row < s->out_c * s->kernel_h; row++) {
        for (int64_t piece = 0; piece < pieces.threes; piece++, w += 3 * c) {
            for (int64_t i = 0; i < c; i++, to += THREE_POINTS) {
                const float g0 = w[i], g1 = w[c + i], g2 = w[2 * c + i];
                to[0] = g0, to[1] = 0.5f * (g0 + g2 + g1), to[2] = 0.5f * (g0 + g2 - g1), to[3] = g2;
            }
        }
        for (int64_t piece = 0; piece < pieces.twos; piece++, w += 2 * c) {
            for (int64_t i = 0; i < c; i++, to += TWO_POINTS) to[0] = w[i], to[1] = w[i] + w[c + i], to[2] = w[c + i];
        }
    }
}

/* ---- the input: of a row of it and a pair of columns of the result the same, in lanes ---- */

static int64_t pair_columns(const twi_conv_shape *s) { return s->out_w / 2; }
static int64_t pair_row_floats(const twi_conv_shape *s) { return pair_columns(s) * pair_points(s) * VEC_WIDTH; }

/* Of a row with its borders. */
static void pairs_of_row(const twi_conv_shape *s, const float *row, float *to) {
    const row_pieces pieces = pieces_of(s->kernel_w);
    const int64_t pixel = s->in_c * VEC_WIDTH;
    for (int64_t q = 0; q < pair_columns(s); q++, row += 2 * pixel) {
        const float *from = row;
        for (int64_t piece = 0; piece < pieces.threes; piece++, from += 2 * pixel) {
            for (int64_t i = 0; i < s->in_c; i++, from += VEC_WIDTH, to += THREE_POINTS * VEC_WIDTH) {
                const vec d0 = vec_load(from), d1 = vec_load(from + pixel), d2 = vec_load(from + 2 * pixel),
                          d3 = vec_load(from + 3 * pixel);
                vec_store(to, d0 - d2);
                vec_store(to + VEC_WIDTH, d1 + d2);
                vec_store(to + 2 * VEC_WIDTH, d2 - d1);
                vec_store(to + 3 * VEC_WIDTH, d3 - d1);
            }
        }
        for (int64_t piece = 0; piece < pieces.twos; piece++, from += pixel) {
            for (int64_t i = 0; i < s->in_c; i++, from += VEC_WIDTH, to += TWO_POINTS * VEC_WIDTH) {
                const vec d0 = vec_load(from), d1 = vec_load(from + pixel), d2 = vec_load(from + 2 * pixel);
                vec_store(to, d0 - d1);
                vec_store(to + VEC_WIDTH, d1);
                vec_store(to + 2 * VEC_WIDTH, d2 - d1);
            }
        }
    }
}

static int64_t bordered_lanes(const twi_conv_shape *s) { return image_columns(s) * s->in_c * VEC_WIDTH; }

/* Row y of the input of the samples from n on, which is one of zeros outside of it; `bordered` holds zeros where there
 * are borders. */
static void pairs_of_input_row(const twi_conv_shape *s, twi_lanes_tensor x, int64_t n, int live, int64_t y,
                               float *bordered, float *to) {
    if (y < 0 || y >= s->in_h) {
        memset(to, 0, (size_t)pair_row_floats(s) * sizeof(float));
        return;
    }
    const int64_t row = s->in_w * s->in_c, sample = s->in_h * row;
    const float *from = (const float *)x.data + n * sample + y * row * (x.turned ? VEC_WIDTH : 1);
    float *at = bordered + s->left * s->in_c * VEC_WIDTH;
    const bool ready = x.turned && live == VEC_WIDTH && image_columns(s) == s->in_w;
    if (!x.turned)
        to_lanes(from, sample, live, row, at);
    else if (!ready)
        copy_live(from, live, row, at);
    pairs_of_row(s, ready ? from : bordered, to);
}

/* ---- tiles: a window in some output channels ---- */

/* Two rows of the result, on `rows` rows of the kernel, in each of them so many pieces of both kinds in all input
 * channels. Of the input's rows one more than those is kept, in a ring: `first` is where the uppermost lies. Steps are
 * in floats. */
typedef struct pairs_walk {
    int64_t rows, threes, twos, first;
    const float *image, *weight, *bias;
    int64_t image_row, weight_out;
    bool relu;
    float *to;
    uint8_t *index;
} pairs_walk;

/* What the points of a piece in an input channel add to the sums. */
VEC_INLINE void pairs_step(const int outs, const int points, const float *w, int64_t out, const float *upper_at,
                           const float *lower_at, vec s[PAIR_OUTS][2][PAIR_SUMS]) {
    VEC_UNROLL
    for (int p = 0; p < points; p++) {
        const int sum = p < points - 1 ? p : SUM_SECOND; /* a piece of two taps has no difference */
        vec upper = vec_load(upper_at + p * VEC_WIDTH), lower = vec_load(lower_at + p * VEC_WIDTH);
        VEC_HELD(upper);
        VEC_HELD(lower);
        VEC_UNROLL
        for (int o = 0; o < outs; o++) {
            vec weight = vec_splat(w[o * out + p]);
            VEC_HELD(weight);
            s[o][0][sum] = vec_fma(weight, upper, s[o][0][sum]);
            s[o][1][sum] = vec_fma(weight, lower, s[o][1][sum]);
        }
    }
    VEC_STEP_END();
}

VEC_INLINE void pairs_tile(const int outs, const pairs_walk *walk) {
    const int64_t out = walk->weight_out, threes = walk->threes, twos = walk->twos, last = walk->rows;
    const float *w = walk->weight;
    vec s[PAIR_OUTS][2][PAIR_SUMS];
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int r = 0; r < 2; r++) {
            s[o][r][SUM_FIRST] = s[o][r][SUM_DIFFERENCE] = s[o][r][SUM_SECOND] = vec_splat(0);
            s[o][r][SUM_BOTH] = vec_splat(walk->bias[o]);
        }
    }
    int64_t at = walk->first;
    for (int64_t rows = walk->rows; rows > 0; rows--) {
        const float *upper = walk->image + at * walk->image_row;
        at = at == last ? 0 : at + 1;
        const float *lower = walk->image + at * walk->image_row;
        for (int64_t t = threes; t > 0; t--, w += THREE_POINTS) {
            pairs_step(outs, THREE_POINTS, w, out, upper, lower, s);
            upper += THREE_POINTS * VEC_WIDTH, lower += THREE_POINTS * VEC_WIDTH;
        }
        for (int64_t t = twos; t > 0; t--, w += TWO_POINTS) {
            pairs_step(outs, TWO_POINTS, w, out, upper, lower, s);
            upper += TWO_POINTS * VEC_WIDTH, lower += TWO_POINTS * VEC_WIDTH;
        }
    }
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        vec window[WINDOW];
        VEC_UNROLL
        for (int r = 0; r < 2; r++) {
            window[2 * r] = s[o][r][SUM_FIRST] + (s[o][r][SUM_BOTH] + s[o][r][SUM_DIFFERENCE]);
            window[2 * r + 1] = s[o][r][SUM_SECOND] + (s[o][r][SUM_BOTH] - s[o][r][SUM_DIFFERENCE]);
        }
        window_store(window, walk->relu, walk->to + o * VEC_WIDTH, walk->index + o * VEC_WIDTH);
    }
}

#if VEC_WIDTH == 16
#define EACH_PAIRS_TILE(make) make(1) make(2) make(3)
#else
#define EACH_PAIRS_TILE(make) make(1)
#endif
#define PAIRS_TILE(outs) \
    static void pairs_tile_##outs(const pairs_walk *walk) { pairs_tile(outs, walk); }
EACH_PAIRS_TILE(PAIRS_TILE)
#define PAIRS_ENTRY(outs) [outs] = pairs_tile_##outs,
static void (*const pairs_tiles[PAIR_OUTS + 1])(const pairs_walk *) = {EACH_PAIRS_TILE(PAIRS_ENTRY)};

/* ---- all of it ---- */

/* Those that a row of windows lies on. */
static int64_t ring_rows(const twi_conv_shape *s) { return s->kernel_h + 1; }

static int64_t pairs_scratch(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return ring_rows(s) * pair_row_floats(s) + bordered_lanes(s) + pool_row_floats(pool, s->out_c);
}

/* A row of windows. */
static void pairs_window_row(const twi_conv_shape *s, const cut *outs, pairs_walk walk, const float *w,
                             const float *bias) {
    for (int64_t q = 0; q < pair_columns(s); q++, walk.image += pair_points(s) * VEC_WIDTH) {
        walk.weight = w;
        for (int64_t part = 0, o = 0, some; part < outs->parts; part++, o += some) {
            some = part_of(outs, part);
            walk.bias = bias + o;
            pairs_tiles[some](&walk);
            walk.weight += some * walk.weight_out, walk.to += some * VEC_WIDTH, walk.index += some * VEC_WIDTH;
        }
    }
}

static void pairs_forward(const twi_conv_shape *s, twi_lanes_tensor x, const float *w, const float *bias,
                          const twi_lanes_pool *pool, bool relu, twi_lanes_tensor y, float *scratch) {
    const row_pieces pieces = pieces_of(s->kernel_w);
    float *image = scratch, *bordered = image + ring_rows(s) * pair_row_floats(s), *row = bordered + bordered_lanes(s);
    const cut outs = cut_of(s->out_c, twi_part_count(s->out_c, PAIR_OUTS));
    pairs_walk walk = {.image = image,
                       .rows = s->kernel_h,
                       .threes = pieces.threes * s->in_c,
                       .twos = pieces.twos * s->in_c,
                       .image_row = pair_row_floats(s),
                       .weight_out = s->kernel_h * pair_points(s),
                       .relu = relu};
    memset(bordered, 0, (size_t)bordered_lanes(s) * sizeof(float));
    for (int64_t n = 0; n < s->samples; n += VEC_WIDTH) {
        const int live = (int)twi_smaller(VEC_WIDTH, s->samples - n);
        int64_t done = 0;
        for (int64_t p = 0; p < pool->rows; p++) {
            const pool_place place = pool_row_place(pool, s->out_c, p, y, n, row);
            for (; done < 2 * p + ring_rows(s); done++)
                pairs_of_input_row(s, x, n, live, done - s->top, bordered,
                                   image + done % ring_rows(s) * pair_row_floats(s));
            walk.first = 2 * p % ring_rows(s), walk.to = place.y, walk.index = place.index;
            pairs_window_row(s, &outs, walk, w, bias);
            pool_row_turn(pool, s->out_c, p, &place, y, n, live);
        }
    }
}

#endif

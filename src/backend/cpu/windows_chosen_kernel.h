/* Gradients of a convolution's weights through windows of 2x2 of which one element won: in every lane another one, and
 * what it lay on is chosen before it is multiplied, rows first, then columns. A tile of h x w taps takes
 *     h (w + 1) + h w choices and h w products
 * for a window, where its four elements would take 4 h w products. */
#ifndef TWI_CPU_WINDOWS_CHOSEN_KERNEL_H
#define TWI_CPU_WINDOWS_CHOSEN_KERNEL_H

#include "lanes_image_kernel.h"
#include "lanes_tiling_kernel.h"

/* Of a tile, whose sums registers hold beside what the choices are made of. */
enum { CHOSEN_ROWS = VEC_WIDTH == 16 ? 3 : 1, CHOSEN_COLUMNS = 5 };

/* ---- tiles: rows x columns of the kernel, which run over windows ---- */

typedef struct chosen_walk {
    int64_t rows, columns; /* of windows */
    const float *dy;
    const uint8_t *index;
    int64_t dy_pixel; /* to the next window's, of which the next row's follow */
    const float *image;
    int64_t image_row, image_pixel;
    float *sums; /* of the tile, one behind the other */
    bool begins;
} chosen_walk;

VEC_INLINE void chosen_tile(const int rows, const int columns, const chosen_walk *walk) {
    vec s[CHOSEN_ROWS][CHOSEN_COLUMNS];
    VEC_UNROLL
    for (int i = 0; i < rows * columns; i++)
        s[i / columns][i % columns] = walk->begins ? vec_splat(0) : vec_load(walk->sums + i * VEC_WIDTH);
    const int64_t row = walk->image_row, pixel = walk->image_pixel, dy_pixel = walk->dy_pixel;
    const float *dy = walk->dy, *image = walk->image;
    const uint8_t *index = walk->index;
    for (int64_t p = walk->rows; p > 0; p--, image += 2 * row) {
        const float *x = image;
        for (int64_t q = walk->columns; q > 0; q--, x += 2 * pixel, dy += dy_pixel, index += dy_pixel) {
            const lane_indices winner = load_indices(index);
            const vec_test lower = indices_have(winner, 2), right = indices_have(winner, 1);
            vec gradient = vec_load(dy), before[CHOSEN_ROWS];
            VEC_HELD(gradient);
            VEC_UNROLL
            for (int c = 0; c <= columns; c++) {
                vec upper = vec_load(x + c * pixel);
                VEC_UNROLL
                for (int r = 0; r < rows; r++) {
                    vec next = vec_load(x + (r + 1) * row + c * pixel);
                    VEC_HELD(next);
                    vec at = vec_choose(lower, next, upper);
                    if (c > 0) s[r][c - 1] = vec_fma(gradient, vec_choose(right, at, before[r]), s[r][c - 1]);
                    before[r] = at, upper = next;
                }
            }
            VEC_STEP_END();
        }
    }
    VEC_UNROLL
    for (int i = 0; i < rows * columns; i++) vec_store(walk->sums + i * VEC_WIDTH, s[i / columns][i % columns]);
}

#define EACH_CHOSEN_COLUMNS(make, rows) make(rows, 1) make(rows, 2) make(rows, 3) make(rows, 4) make(rows, 5)
#if VEC_WIDTH == 16
#define EACH_CHOSEN_TILE(make) EACH_CHOSEN_COLUMNS(make, 1) EACH_CHOSEN_COLUMNS(make, 2) EACH_CHOSEN_COLUMNS(make, 3)
#else
#define EACH_CHOSEN_TILE(make) EACH_CHOSEN_COLUMNS(make, 1)
#endif
#define CHOSEN_TILE(rows, columns) \
    static void chosen_tile_##rows##_##columns(const chosen_walk *walk) { chosen_tile(rows, columns, walk); }
EACH_CHOSEN_TILE(CHOSEN_TILE)
#define CHOSEN_ENTRY(rows, columns) [rows][columns] = chosen_tile_##rows##_##columns,
static void (*const chosen_tiles[CHOSEN_ROWS + 1][CHOSEN_COLUMNS + 1])(const chosen_walk *) = {
    EACH_CHOSEN_TILE(CHOSEN_ENTRY)};

/* ---- all of it ---- */

enum { CHOSEN_PART_FLOATS = 4096 }; /* of the image at a time: half of a first-level cache of 32 KB */

static int64_t chosen_row(const twi_conv_shape *s) { return image_columns(s) * s->in_c * VEC_WIDTH; }

/* Rows of windows that are gone through at a time. */
static int64_t chosen_rows(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    const int64_t rows = CHOSEN_PART_FLOATS / chosen_row(s) - (s->kernel_h - 1);
    return twi_smaller(twi_larger(rows / 2, 1), pool->rows);
}

static int64_t chosen_sums(const twi_conv_shape *s) {
    return s->out_c * s->kernel_h * s->kernel_w * s->in_c * VEC_WIDTH;
}

static int64_t chosen_scratch(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return chosen_sums(s) + reached_rows(s) * chosen_row(s) + pool_block_floats(pool, s->out_c);
}

/* All taps of an output and an input channel; gives where the next sums begin. */
static float *chosen_taps(const cut *rows, const cut *columns, chosen_walk walk) {
    const float *image = walk.image;
    for (int64_t rp = 0, some; rp < rows->parts; rp++, image += some * walk.image_row) {
        some = part_of(rows, rp);
        walk.image = image;
        for (int64_t cp = 0, taps; cp < columns->parts; cp++, walk.image += taps * walk.image_pixel) {
            taps = part_of(columns, cp);
            chosen_tiles[some][taps](&walk);
            walk.sums += some * taps * VEC_WIDTH;
        }
    }
    return walk.sums;
}

/* dw from sums in the order in which chosen_taps makes them. */
static void chosen_end(const twi_conv_shape *s, const cut *rows, const cut *columns, const float *sums, bool add,
                       float *dw) {
    for (int64_t channel = 0; channel < s->out_c * s->in_c; channel++) {
        for (int64_t rp = 0, y = 0, some; rp < rows->parts; rp++, y += some) {
            some = part_of(rows, rp);
            for (int64_t cp = 0, x = 0, taps; cp < columns->parts; cp++, x += taps) {
                taps = part_of(columns, cp);
                float sum[CHOSEN_ROWS * CHOSEN_COLUMNS];
                sum_lanes(sums, some * taps, false, sum);
                sums += some * taps * VEC_WIDTH;
                for (int64_t i = 0; i < some * taps; i++) {
                    const int64_t tap = (y + i / taps) * s->kernel_w + x + i % taps;
                    float *to =
                        dw + (channel / s->in_c * s->kernel_h * s->kernel_w + tap) * s->in_c + channel % s->in_c;
                    *to = sum[i] + (add ? *to : 0);
                }
            }
        }
    }
}

static void chosen_weights(const twi_conv_shape *s, twi_lanes_tensor x, twi_lanes_tensor dy, const twi_lanes_pool *pool,
                           bool add, float *dw, float *scratch) {
    const int64_t row = chosen_row(s), rows = reached_rows(s);
    float *sums = scratch, *own = sums + chosen_sums(s), *inside = own + s->top * row,
          *block_scratch = own + rows * row;
    const cut kernel_rows = cut_of(s->kernel_h, twi_part_count(s->kernel_h, CHOSEN_ROWS));
    const cut kernel_columns = cut_of(s->kernel_w, twi_part_count(s->kernel_w, CHOSEN_COLUMNS));
    const int64_t parts = twi_part_count(pool->rows, chosen_rows(s, pool));
    memset(own, 0, (size_t)(rows * row) * sizeof(float));
    chosen_walk walk = {.columns = pool->columns,
                        .dy_pixel = s->out_c * VEC_WIDTH,
                        .image_row = row,
                        .image_pixel = s->in_c * VEC_WIDTH};
    for (int64_t n = 0; n < s->samples; n += VEC_WIDTH) {
        const int live = (int)twi_smaller(VEC_WIDTH, s->samples - n);
        const float *image = image_in_lanes(s, all_columns(s), x, n, live, inside);
        if (image != inside && rows > s->in_h) memcpy(inside, image, (size_t)(s->in_h * row) * sizeof(float));
        if (rows > s->in_h) image = own;
        const pool_block block = pool_block_in_lanes(pool, dy, s->out_c, n, live, block_scratch);
        for (int64_t p = 0; p < parts; p++) {
            const int64_t begin = twi_part_begin(pool->rows, parts, p);
            const int64_t at = begin * pool->columns * walk.dy_pixel;
            walk.rows = twi_part_begin(pool->rows, parts, p + 1) - begin;
            walk.begins = n == 0 && p == 0;
            walk.sums = sums;
            for (int64_t o = 0; o < s->out_c; o++) {
                walk.dy = block.dy + at + o * VEC_WIDTH, walk.index = block.index + at + o * VEC_WIDTH;
                walk.image = image + 2 * begin * row;
                for (int64_t i = 0; i < s->in_c; i++, walk.image += VEC_WIDTH)
                    walk.sums = chosen_taps(&kernel_rows, &kernel_columns, walk);
            }
        }
    }
    chosen_end(s, &kernel_rows, &kernel_columns, sums, add, dw);
}

#endif

/* Gradients of a convolution's weights: tiles of output channels x cells of the kernel, which run over positions. */
#ifndef TWI_CPU_LANES_WEIGHTS_KERNEL_H
#define TWI_CPU_LANES_WEIGHTS_KERNEL_H

#include "lanes_image_kernel.h"
#include "lanes_tiling_kernel.h"

enum { PART_FLOATS = 6400 }; /* of dy at a time, in a tile's channels: half a first-level cache */

/* A row of the kernel as two directions: `cells` of which a tile takes several, and `others` that it is walked over.
 * Where the kernel is wide, tiles take columns: the next position reads all of its columns but one again, from the first
 * level of the cache, and a tile of channels reads every vector of the image but once. Steps are in floats of the image
 * and of the weights. */
typedef struct kernel_walk {
    int64_t cells, image_cell, weight_cell, others, image_other, weight_other;
} kernel_walk;

enum { WIDE_KERNEL = 3 };

static kernel_walk kernel_walk_of(const twi_conv_shape *s) {
    const int64_t column = s->dilation_w * s->in_c * VEC_WIDTH;
    if (s->kernel_w >= WIDE_KERNEL) return (kernel_walk){s->kernel_w, column, s->in_c, s->in_c, VEC_WIDTH, 1};
    return (kernel_walk){s->in_c, VEC_WIDTH, 1, s->kernel_w, column, s->in_c};
}

/* What a tile of output channels x cells runs over: rows and columns of positions, which follow one another in dy. Sums
 * are kept in `sums`, if they begin earlier or end later; where they end they go over the lanes to dw. */
typedef struct weights_walk {
    int64_t rows, image_row, columns, image_pixel, image_cell, dy_pixel;
    const float *image, *dy;
    float *sums, *dw;
    int64_t weight_out, weight_cell;
    bool begins, ends, add;
} weights_walk;

/* The sums over the lanes, four of a tile at a time, to where they belong. */
VEC_INLINE void weights_end(const int outs, const int cells, vec s[TILE_OUTS][TILE_MOST], const weights_walk *walk) {
    const int64_t weight_out = walk->weight_out, weight_cell = walk->weight_cell;
    float *const dw = walk->dw;
    VEC_UNROLL
    for (int first = 0; first < outs * cells; first += 4) {
        const int count = outs * cells - first < 4 ? outs * cells - first : 4;
        vec four[4] = {{0}};
        VEC_UNROLL
        for (int i = 0; i < count; i++) four[i] = s[(first + i) / cells][(first + i) % cells];
        const quad sum = vec_sum4(four);
        VEC_UNROLL
        for (int i = 0; i < count; i++) {
            float *to = dw + (first + i) / cells * weight_out + (first + i) % cells * weight_cell;
            *to = sum[i] + (walk->add ? *to : 0);
        }
    }
}

VEC_INLINE void weights_step(const int outs, const int cells, const float *dy, const float *x, int64_t image_cell,
                             vec s[TILE_OUTS][TILE_MOST]) {
    if (outs <= cells) {
        vec d[TILE_OUTS];
        VEC_UNROLL
        for (int o = 0; o < outs; o++) d[o] = vec_load(dy + o * VEC_WIDTH);
        VEC_UNROLL
        for (int c = 0; c < cells; c++) {
            vec at = vec_load(x + c * image_cell);
            VEC_HELD(at);
            VEC_UNROLL
            for (int o = 0; o < outs; o++) s[o][c] = vec_fma(d[o], at, s[o][c]);
        }
    } else {
        vec at[TILE_MOST];
        VEC_UNROLL
        for (int c = 0; c < cells; c++) at[c] = vec_load(x + c * image_cell);
        VEC_UNROLL
        for (int o = 0; o < outs; o++) {
            vec d = vec_load(dy + o * VEC_WIDTH);
            VEC_HELD(d);
            VEC_UNROLL
            for (int c = 0; c < cells; c++) s[o][c] = vec_fma(d, at[c], s[o][c]);
        }
    }
}

/* `count` times `cells` positions of a row, each one cell behind the other: what lies under a position stays in registers while the window
 * moves on, and each vector of the image is loaded once. */
VEC_INLINE void weights_slide(const int outs, const int cells, int64_t count, const float *dy, int64_t dy_pixel,
                              const float *x, int64_t image_cell, vec s[TILE_OUTS][TILE_MOST]) {
    vec at[TILE_MOST];
    VEC_UNROLL
    for (int c = 0; c + 1 < cells; c++, x += image_cell) at[c] = vec_load(x);
    for (; count > 0; count--) {
        VEC_UNROLL
        for (int first = 0; first < cells; first++, x += image_cell, dy += dy_pixel) {
            vec *const newest = &at[(first + cells - 1) % cells];
            *newest = vec_load(x);
            VEC_HELD(*newest);
            VEC_UNROLL
            for (int o = 0; o < outs; o++) {
                vec d = vec_load(dy + o * VEC_WIDTH);
                VEC_HELD(d);
                VEC_UNROLL
                for (int c = 0; c < cells; c++) s[o][c] = vec_fma(d, at[(first + c) % cells], s[o][c]);
            }
            VEC_STEP_END();
        }
    }
}

VEC_INLINE void weights_tile(const int outs, const int cells, const weights_walk *walk) {
    const int64_t image_cell = walk->image_cell, image_pixel = walk->image_pixel, dy_pixel = walk->dy_pixel;
    const int64_t columns = walk->columns, row_end = walk->image_row - columns * image_pixel;
    const float *dy = walk->dy, *x = walk->image;
    float *sums = walk->sums;
    vec s[TILE_OUTS][TILE_MOST];
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int c = 0; c < cells; c++)
            s[o][c] = walk->begins ? vec_splat(0) : vec_load(sums + (o * cells + c) * VEC_WIDTH);
    }
    const bool slides = outs * cells + cells + 2 <= VEC_REGISTERS && image_cell == image_pixel;
    for (int64_t rows = walk->rows; rows > 0; rows--, x += row_end) {
        int64_t left = columns;
        if (slides) {
            weights_slide(outs, cells, left / cells, dy, dy_pixel, x, image_cell, s);
            const int64_t done = left - left % cells;
            dy += done * dy_pixel, x += done * image_pixel, left -= done;
        }
        for (; left > 0; left--, dy += dy_pixel, x += image_pixel) weights_step(outs, cells, dy, x, image_cell, s);
    }
    if (walk->ends) {
        weights_end(outs, cells, s, walk);
        return;
    }
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int c = 0; c < cells; c++) vec_store(sums + (o * cells + c) * VEC_WIDTH, s[o][c]);
    }
}

#define WEIGHTS_TILE(outs, cells) \
    static void weights_tile_##outs##_##cells(const weights_walk *walk) { weights_tile(outs, cells, walk); }
EACH_TILE(WEIGHTS_TILE)
#define WEIGHTS_ENTRY(outs, cells) [outs][cells] = weights_tile_##outs##_##cells,
static void (*const weights_tiles[TILE_OUTS + 1][TILE_MOST + 1])(const weights_walk *) = {EACH_TILE(WEIGHTS_ENTRY)};

/* The gradient of the result in the channels of a tile: `count` of them from `first` on, in rows y .. y+rows-1. */
typedef struct weights_part {
    int64_t first, count, y, rows;
    const float *dy;
    int64_t dy_pixel;
    bool begins, ends; /* the first rows of the first block of images; the last ones of the last block */
} weights_part;

/* What such a part adds to the weights of its output channels; sums: of those. */
static void weights_of_part(const twi_conv_shape *s, const cut *cells, const weights_part *part, const float *image,
                            bool add, float *dw, float *sums) {
    const int64_t pixel = s->in_c * VEC_WIDTH, columns = image_columns(s), kernel_row = s->kernel_w * s->in_c;
    const kernel_walk kernel = kernel_walk_of(s);
    weights_walk walk = {
        .image_row = s->stride_h * columns * pixel,
        .columns = s->out_w,
        .image_pixel = s->stride_w * pixel,
        .image_cell = kernel.image_cell,
        .dy_pixel = part->dy_pixel,
        .sums = sums,
        .weight_out = s->kernel_h * kernel_row,
        .weight_cell = kernel.weight_cell,
        .begins = part->begins,
        .ends = part->ends,
        .add = add,
    };
    dw += part->first * walk.weight_out;
    for (int64_t other = 0; other < kernel.others; other++) {
        for (int64_t k = 0; k < s->kernel_h; k++) {
            /* Rows of dy whose input row, at this row of the kernel, is inside the image. */
            const int64_t shift = k * s->dilation_h - s->top;
            int64_t first = part->y, end = part->y + part->rows;
            while (first < end && first * s->stride_h + shift < 0) first++;
            while (first < end && (end - 1) * s->stride_h + shift >= s->in_h) end--;
            if (first == end && !part->begins && !part->ends) {
                walk.sums += part->count * kernel.cells * VEC_WIDTH;
                continue;
            }
            const float *row = image + other * kernel.image_other;
            if (first < end) row += (first * s->stride_h + shift) * columns * pixel;
            walk.rows = end - first;
            walk.dy = part->dy + (first - part->y) * s->out_w * part->dy_pixel;
            for (int64_t cp = 0, c = 0, some; cp < cells->parts; cp++, c += some) {
                some = part_of(cells, cp);
                walk.image = row + c * kernel.image_cell;
                walk.dw = dw + k * kernel_row + other * kernel.weight_other + c * kernel.weight_cell;
                weights_tiles[part->count][some](&walk);
                walk.sums += part->count * some * VEC_WIDTH;
            }
        }
    }
}

static int64_t weights_count(const twi_conv_shape *s) { return s->out_c * s->kernel_h * s->kernel_w * s->in_c; }

static twi_lanes_tiling weights_tiling(const twi_conv_shape *s) {
    return best_tiling(NULL, s->out_c, kernel_walk_of(s).cells, s->out_h * s->out_w);
}

/* Rows of dy that are gone through at a time. */
static int64_t part_rows(const twi_conv_shape *s, twi_lanes_tiling t) {
    const int64_t rows = PART_FLOATS / (s->out_w * VEC_WIDTH * twi_part_count(s->out_c, t.outs));
    return twi_smaller(twi_larger(rows, 1), s->out_h);
}

static int64_t tile_floats(const twi_conv_shape *s, twi_lanes_tiling t) {
    return part_rows(s, t) * s->out_w * twi_part_count(s->out_c, t.outs) * VEC_WIDTH;
}

static int64_t backward_weights_scratch(const twi_conv_shape *s, const twi_lanes_pool *unpool) {
    const twi_lanes_tiling t = weights_tiling(s);
    return image_floats(s) + weights_count(s) * VEC_WIDTH + tile_floats(s, t) +
           (unpool ? pool_block_floats(unpool, s->out_c) : part_rows(s, t) * s->out_w * s->out_c * VEC_WIDTH);
}

/* Rows y .. y+rows-1 of a block's dy in lanes: where they are, or in scratch. */
static const float *rows_in_lanes(const twi_conv_shape *s, twi_lanes_tensor dy, int64_t n, int live, int64_t y,
                                  int64_t rows, float *scratch) {
    const int64_t row = s->out_w * s->out_c, out = s->out_h * row;
    const float *from = (const float *)dy.data + n * out;
    if (dy.turned && live == VEC_WIDTH) return from + y * row * VEC_WIDTH;
    if (dy.turned)
        copy_live(from + y * row * VEC_WIDTH, live, rows * row, scratch);
    else
        to_lanes(from + y * row, out, live, rows * row, scratch);
    return scratch;
}

/* The channels of a part alone, one position after the other: a first-level cache holds them only so, since vectors as
 * far apart as all channels share few of its places. */
static void unpool_part(const twi_conv_shape *s, const twi_lanes_pool *pool, const pool_block *block,
                        const weights_part *part, float *to) {
    const int64_t column = part->count * VEC_WIDTH, row = s->out_w * column;
    if (!pool_is_exact(pool, s->out_h, s->out_w)) memset(to, 0, (size_t)(part->rows * row) * sizeof(float));
    unpool_rows(pool, block,
                &(pool_target){.height = s->out_h,
                               .width = s->out_w,
                               .channels = s->out_c,
                               .first_channel = part->first,
                               .some = part->count,
                               .end_column = s->out_w,
                               .row = row,
                               .column = column,
                               .at = to},
                part->y, part->y + part->rows);
}
static void copy_part(const twi_conv_shape *s, const float *lanes, const weights_part *part, float *to) {
    const float *from = lanes + part->first * VEC_WIDTH;
    for (int64_t left = part->rows * s->out_w; left > 0; left--, from += s->out_c * VEC_WIDTH)
        for (int64_t c = 0; c < part->count; c++, to += VEC_WIDTH) vec_store(to, vec_load(from + c * VEC_WIDTH));
}

static void backward_weights(const twi_conv_shape *s, twi_lanes_tiling t, twi_lanes_tensor x, twi_lanes_tensor dy,
                             const twi_lanes_pool *unpool, bool add, float *dw, float *scratch) {
    const tile_cuts tiles = tile_cuts_of(&t, s->out_c, kernel_walk_of(s).cells);
    const int64_t parts = twi_part_count(s->out_h, part_rows(s, t)), weights = weights_count(s) / s->out_c;
    float *sums = scratch + image_floats(s), *tile = sums + weights_count(s) * VEC_WIDTH,
          *all = tile + tile_floats(s, t);
    for (int64_t n = 0; n < s->samples; n += VEC_WIDTH) {
        const int live = (int)twi_smaller(VEC_WIDTH, s->samples - n);
        const float *image = image_in_lanes(s, all_columns(s), x, n, live, scratch), *lanes = NULL;
        pool_block block;
        if (unpool) block = pool_block_in_lanes(unpool, dy, s->out_c, n, live, all);
        for (int64_t p = 0; p < parts; p++) {
            weights_part part = {
                .y = twi_part_begin(s->out_h, parts, p),
                .begins = n == 0 && p == 0,
                .ends = n + VEC_WIDTH >= s->samples && p == parts - 1,
            };
            part.rows = twi_part_begin(s->out_h, parts, p + 1) - part.y;
            if (!unpool) lanes = rows_in_lanes(s, dy, n, live, part.y, part.rows, all);
            for (int64_t op = 0; op < tiles.outs.parts; op++, part.first += part.count) {
                part.count = part_of(&tiles.outs, op);
                part.dy = tile, part.dy_pixel = part.count * VEC_WIDTH;
                if (unpool)
                    unpool_part(s, unpool, &block, &part, tile);
                else if (tiles.outs.parts == 1)
                    part.dy = lanes;
                else
                    copy_part(s, lanes, &part, tile);
                weights_of_part(s, &tiles.cells, &part, image, add, dw, sums + part.first * weights * VEC_WIDTH);
            }
        }
    }
}

#endif

/* Convolutions forward, which gradients of the input are as well: tiles of output channels x positions, pooled
 * (lanes_pool_kernel.h) or turned back row by row, while they are in the first-level cache. */
#ifndef TWI_CPU_LANES_FORWARD_KERNEL_H
#define TWI_CPU_LANES_FORWARD_KERNEL_H

#include "lanes_image_kernel.h"
#include "lanes_tiling_kernel.h"

/* The kernel rows that lie on input rows at one output row: `count` of them from `first`, `step` apart, the first of
 * them on input row `row`, each next one `advance` further. */
typedef struct row_taps {
    int64_t count, first, step, row, advance;
} row_taps;

static row_taps row_taps_at(const twi_conv_shape *s, int64_t out_y) {
    row_taps t = {0, 0, 1, 0, 0};
    for (int64_t k = 0; k < s->kernel_h; k++) {
        int64_t y = out_y * s->stride_h + k * s->dilation_h - s->top;
        if (s->spread_h > 1) { /* divisions take as long as many products */
            if (y % s->spread_h) continue;
            y /= s->spread_h;
        }
        if (y < 0 || y >= s->in_h) continue;
        if (t.count == 0) t.first = k, t.row = y;
        if (t.count == 1) t.step = k - t.first, t.advance = y - t.row;
        t.count++;
    }
    return t;
}

/* What a tile of output channels x positions runs over: kernel rows, in them runs of taps that are neighbours in the
 * image and in the kernel, in them single floats (vectors, in the image). Steps are in floats. */
typedef struct forward_walk {
    int64_t rows, image_row, weight_row;
    int64_t runs, image_run, run;
    const float *image, *weight, *bias;
    int64_t image_pixel, weight_out;
    bool relu;
    float *to;
    int64_t to_pixel;
} forward_walk;

/* What one float of the kernel, for every output channel, adds to the sums. */
VEC_INLINE void forward_step(const int outs, const int cells, const float *w, int64_t out, const float *x,
                             int64_t pixel, vec s[TILE_OUTS][TILE_MOST]) {
    if (outs <= cells) { /* the shorter side stays in registers */
        vec weight[TILE_OUTS];
        VEC_UNROLL
        for (int o = 0; o < outs; o++) weight[o] = vec_splat(w[o * out]);
        VEC_UNROLL
        for (int c = 0; c < cells; c++) {
            vec at = vec_load(x + c * pixel);
            VEC_HELD(at);
            VEC_UNROLL
            for (int o = 0; o < outs; o++) s[o][c] = vec_fma(weight[o], at, s[o][c]);
        }
    } else {
        vec at[TILE_MOST];
        VEC_UNROLL
        for (int c = 0; c < cells; c++) at[c] = vec_load(x + c * pixel);
        VEC_UNROLL
        for (int o = 0; o < outs; o++) {
            vec weight = vec_splat(w[o * out]);
            VEC_UNROLL
            for (int c = 0; c < cells; c++) s[o][c] = vec_fma(weight, at[c], s[o][c]);
        }
    }
    VEC_STEP_END();
}

VEC_INLINE void forward_tile(const int outs, const int cells, const forward_walk *walk) {
    const int64_t pixel = walk->image_pixel, out = walk->weight_out, weight_row = walk->weight_row;
    const int64_t image_row = walk->image_row, image_run = walk->image_run, run = walk->run, runs = walk->runs;
    const float *weights = walk->weight, *image = walk->image;
    vec s[TILE_OUTS][TILE_MOST];
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int c = 0; c < cells; c++) s[o][c] = vec_splat(walk->bias[o]);
    }
    for (int64_t row = walk->rows; row > 0; row--, weights += weight_row, image += image_row) {
        const float *w = weights, *from = image;
        for (int64_t r = runs; r > 0; r--, from += image_run) {
            const float *x = from;
            for (int64_t t = run; t > 0; t--, w++, x += VEC_WIDTH) forward_step(outs, cells, w, out, x, pixel, s);
        }
    }
    if (walk->relu) {
        VEC_UNROLL
        for (int o = 0; o < outs; o++) {
            VEC_UNROLL
            for (int c = 0; c < cells; c++) s[o][c] = vec_relu(s[o][c]);
        }
    }
    const int64_t to_pixel = walk->to_pixel;
    float *to = walk->to;
    VEC_UNROLL
    for (int c = 0; c < cells; c++, to += to_pixel) {
        VEC_UNROLL
        for (int o = 0; o < outs; o++) vec_store(to + o * VEC_WIDTH, s[o][c]);
    }
}

#define FORWARD_TILE(outs, cells) \
    static void forward_tile_##outs##_##cells(const forward_walk *walk) { forward_tile(outs, cells, walk); }
EACH_TILE(FORWARD_TILE)
#define FORWARD_ENTRY(outs, cells) [outs][cells] = forward_tile_##outs##_##cells,
static void (*const forward_tiles[TILE_OUTS + 1][TILE_MOST + 1])(const forward_walk *) = {EACH_TILE(FORWARD_ENTRY)};

/* One row of the output in lanes: pixels of out_c vectors. */
static void forward_row(const twi_conv_shape *s, const tile_cuts *tiles, int64_t out_y, const float *image,
                        const float *w, const float *bias, bool relu, float *to) {
    const int64_t pixel = s->in_c * VEC_WIDTH, columns = image_columns(s), kernel_row = s->kernel_w * s->in_c;
    row_taps rows = row_taps_at(s, out_y);
    forward_walk walk = {
        .rows = rows.count,
        .image_row = rows.advance * columns * pixel,
        .weight_row = rows.step * kernel_row,
        .image_run = s->dilation_w * pixel,
        .image_pixel = s->stride_w * pixel,
        .weight_out = s->kernel_h * kernel_row,
        .relu = relu,
        .to_pixel = s->out_c * VEC_WIDTH,
    };
    static const float zeros[TILE_OUTS];
    for (int64_t cp = 0, x = 0, cells; cp < tiles->cells.parts; cp++, x += cells) {
        int64_t first, end;
        cells = part_of(&tiles->cells, cp);
        column_taps(s, x, cells, &first, &end);
        walk.runs = s->dilation_w == 1 ? 1 : end - first;
        walk.run = s->dilation_w == 1 ? (end - first) * s->in_c : s->in_c;
        walk.image = image + (rows.row * columns + x * s->stride_w + first * s->dilation_w) * pixel;
        for (int64_t op = 0, o = 0, outs; op < tiles->outs.parts; op++, o += outs) {
            outs = part_of(&tiles->outs, op);
            walk.bias = bias ? bias + o : zeros;
            walk.weight = w + o * walk.weight_out + rows.first * kernel_row + first * s->in_c;
            walk.to = to + x * walk.to_pixel + o * VEC_WIDTH;
            forward_tiles[outs][cells](&walk);
        }
    }
}

/* Rows of the result that are kept: those a row of windows covers. */
static int64_t kept_rows(const twi_lanes_pool *pool) { return pool ? pool->attrs->kernel_h : 1; }

static int64_t forward_scratch(const twi_conv_shape *s, const twi_lanes_pool *unpool, const twi_lanes_pool *pool) {
    return image_floats(s) + kept_rows(pool) * s->out_w * s->out_c * VEC_WIDTH + pool_block_floats(unpool, s->in_c) +
           pool_row_floats(pool, s->out_c);
}

/* One image block after its convolution, row of windows by row of windows: only those rows that windows cover. */
static void forward_pooled(const twi_conv_shape *s, const tile_cuts *tiles, const float *image, const float *w,
                           const float *bias, const twi_lanes_pool *pool, bool relu, twi_lanes_tensor y, int64_t n,
                           int live, float *kept, float *row) {
    const int64_t floats = s->out_w * s->out_c * VEC_WIDTH, most = pool->attrs->kernel_h;
    int64_t done = 0;
    for (int64_t p = 0; p < pool->rows; p++) {
        int64_t top = p * pool->attrs->stride_h - pool->attrs->pad_top;
        int64_t first = twi_larger(top, 0), end = twi_smaller(top + most, s->out_h);
        for (done = twi_larger(done, first); done < end; done++)
            forward_row(s, tiles, done, image, w, bias, false, kept + done % most * floats);
        pool_row(pool, &(pool_source){s->out_c, s->out_w, floats, kept}, p, first, end, relu, y, n, live, row);
    }
}

static twi_lanes_tiling forward_tiling(const twi_conv_shape *s) {
    return best_tiling(s, s->out_c, s->out_w, s->kernel_h * s->in_c);
}

static void forward(const twi_conv_shape *s, twi_lanes_tiling t, twi_lanes_tensor x, const twi_lanes_pool *unpool,
                    const float *w, const float *bias, const twi_lanes_pool *pool, bool relu, twi_lanes_tensor y,
                    float *scratch) {
    const int64_t row = s->out_w * s->out_c, out = s->out_h * row;
    float *lanes = scratch + image_floats(s), *turned = lanes + kept_rows(pool) * row * VEC_WIDTH,
          *pooled = turned + pool_block_floats(unpool, s->in_c);
    const tile_cuts tiles = {cut_of(s->out_c, t.out_parts), cut_of(s->out_w, t.cell_parts)};
    for (int64_t n = 0; n < s->samples; n += VEC_WIDTH) {
        int live = (int)twi_smaller(VEC_WIDTH, s->samples - n);
        const float *image =
            unpool ? unpooled_image(s, x, unpool, n, live, scratch, turned) : image_in_lanes(s, x, n, live, scratch);
        if (pool) {
            forward_pooled(s, &tiles, image, w, bias, pool, relu, y, n, live, lanes, pooled);
            continue;
        }
        float *to = (float *)y.data + n * out;
        for (int64_t out_y = 0; out_y < s->out_h; out_y++) {
            forward_row(s, &tiles, out_y, image, w, bias, relu, y.turned ? to + out_y * row * VEC_WIDTH : lanes);
            if (!y.turned) from_lanes(lanes, row, live, to + out_y * row, out);
        }
    }
}

#endif

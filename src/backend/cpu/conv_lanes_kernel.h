/* The convolutions of conv_lanes.h, written once; conv_lanes_<isa>.c compiles them as LANES_RECORD.
 *
 * A group of VEC_WIDTH images is turned into lanes (lanes_turn_kernel.h), unless it lies so. Then loops over output
 * channels, positions and kernel taps multiply vectors by weights, or vectors by vectors, on tiles of sums that stay in
 * registers. Results are pooled (lanes_pool_kernel.h) or turned back row by row, while they are in the first-level
 * cache. */
#include "lanes_pool_kernel.h"
#include "lanes_steps_kernel.h"
#include "lanes_tiling_kernel.h"

enum {
    PART_FLOATS = 6400,   /* of dy at a time, in a tile's channels, as large as half a first-level cache */
    BLOCK_FLOATS = 32768, /* and in all channels */
};

/* ---- images ---- */

/* The input of a group in lanes: rows as they are, each in `columns` pixels with the zeros left and right, and between
 * pixels that are spread, in place. Rows of zeros are left out: who walks over rows skips them. */
static int64_t image_columns(const twi_conv_shape *s) {
    return (s->out_w - 1) * s->stride_w + (s->kernel_w - 1) * s->dilation_w + 1;
}
static int64_t image_floats(const twi_conv_shape *s) { return s->in_h * image_columns(s) * s->in_c * VEC_WIDTH; }

/* Input columns that lie on the image's columns: first .. end-1. */
static void used_columns(const twi_conv_shape *s, int64_t *first, int64_t *end) {
    *first = s->left < 0 ? (-s->left + s->spread_w - 1) / s->spread_w : 0;
    *end = twi_smaller(s->in_w, (image_columns(s) - s->left + s->spread_w - 1) / s->spread_w);
}

/* Zeros where no input lies. */
static void clear_borders(const twi_conv_shape *s, float *image) {
    const int64_t pixel = s->in_c * VEC_WIDTH, columns = image_columns(s);
    int64_t left = twi_smaller(twi_larger(s->left, 0), columns), right = twi_larger(s->left + s->in_w, left);
    if (s->spread_w > 1) left = right = columns;
    for (int64_t row = 0; row < s->in_h; row++, image += columns * pixel) {
        memset(image, 0, (size_t)(left * pixel) * sizeof(float));
        if (right < columns) memset(image + right * pixel, 0, (size_t)((columns - right) * pixel) * sizeof(float));
    }
}

/* The image of the samples from n on: in scratch, with its borders, or where it is. */
static const float *image_in_lanes(const twi_conv_shape *s, twi_lanes_tensor x, int64_t n, int live, float *scratch) {
    const int64_t columns = image_columns(s), sample = s->in_h * s->in_w * s->in_c;
    const float *from = (const float *)x.data + n * sample;
    int64_t first, end;
    used_columns(s, &first, &end);
    if (x.turned && live == VEC_WIDTH && s->left == 0 && s->spread_w == 1 && columns == s->in_w) return from;
    if (n == 0) clear_borders(s, scratch);
    int64_t run = s->spread_w == 1 ? twi_larger(end - first, 1) : 1;
    for (int64_t row = 0; row < s->in_h; row++) {
        for (int64_t x_at = first; x_at < end; x_at += run) {
            int64_t at = (row * s->in_w + x_at) * s->in_c;
            float *to = scratch + (row * columns + x_at * s->spread_w + s->left) * s->in_c * VEC_WIDTH;
            if (x.turned)
                copy_live(from + at * VEC_WIDTH, live, run * s->in_c, to);
            else
                to_lanes(from + at, sample, live, run * s->in_c, to);
        }
    }
    return scratch;
}

/* The same of an image that is the gradient of what was pooled to x. */
static const float *unpooled_image(const twi_conv_shape *s, twi_lanes_tensor x, const twi_lanes_pool *pool, int64_t n,
                                   int live, float *scratch, float *turned) {
    const int64_t pixel = s->in_c * VEC_WIDTH, columns = image_columns(s);
    pool_block block = pool_block_in_lanes(pool, x, s->in_c, n, live, turned);
    int64_t first, end;
    used_columns(s, &first, &end);
    if (!pool_is_exact(pool, s->in_h, s->in_w))
        memset(scratch, 0, (size_t)image_floats(s) * sizeof(float));
    else if (n == 0)
        clear_borders(s, scratch);
    unpool_rows(pool, &block,
                &(pool_target){.height = s->in_h,
                               .width = s->in_w,
                               .channels = s->in_c,
                               .first_column = first,
                               .end_column = end,
                               .row = columns * pixel,
                               .column = s->spread_w * pixel,
                               .at = scratch + s->left * pixel},
                0, s->in_h);
    return scratch;
}

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

/* ---- tiles ---- */

/* For every size of tile. */
#define EACH_TILE_NARROW(make, outs) make(outs, 1) make(outs, 2) make(outs, 3) make(outs, 4)
#define EACH_TILE_WIDE(make, outs) EACH_TILE_NARROW(make, outs) make(outs, 5) make(outs, 6)
#define EACH_TILE(make)     \
    EACH_TILE_WIDE(make, 1) \
    EACH_TILE_WIDE(make, 2) \
    EACH_TILE_WIDE(make, 3) EACH_TILE_WIDE(make, 4) EACH_TILE_NARROW(make, 5) EACH_TILE_NARROW(make, 6)

/* ---- forward ---- */

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

VEC_INLINE void forward_tile(const int outs, const int cells, const forward_walk *walk) {
    const int64_t pixel = walk->image_pixel, out = walk->weight_out;
    vec s[TILE_OUTS][TILE_MOST];
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int c = 0; c < cells; c++) s[o][c] = vec_splat(walk->bias[o]);
    }
    for (int64_t row = 0; row < walk->rows; row++) {
        const float *w = walk->weight + row * walk->weight_row;
        for (int64_t run = 0; run < walk->runs; run++) {
            const float *x = walk->image + row * walk->image_row + run * walk->image_run;
            for (int64_t t = walk->run; t > 0; t--, w++, x += VEC_WIDTH) {
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
            }
        }
    }
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int c = 0; c < cells; c++)
            vec_store(walk->to + c * walk->to_pixel + o * VEC_WIDTH, walk->relu ? vec_relu(s[o][c]) : s[o][c]);
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

/* ---- backward of the weights ---- */

/* What a tile of output channels x taps runs over: rows and columns of positions. */
typedef struct weights_walk {
    int64_t rows, image_row, columns, image_pixel, dy_pixel; /* rows of dy follow one another */
    const float *image, *dy;
    float *sums;
    int64_t sums_out;
} weights_walk;

VEC_INLINE void weights_tile(const int outs, const int cells, const weights_walk *walk) {
    vec s[TILE_OUTS][TILE_MOST];
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int c = 0; c < cells; c++) s[o][c] = vec_load(walk->sums + o * walk->sums_out + c * VEC_WIDTH);
    }
    const float *dy = walk->dy;
    for (int64_t row = 0; row < walk->rows; row++) {
        const float *x = walk->image + row * walk->image_row;
        for (int64_t column = walk->columns; column > 0; column--, dy += walk->dy_pixel, x += walk->image_pixel) {
            if (outs <= cells) {
                vec d[TILE_OUTS];
                VEC_UNROLL
                for (int o = 0; o < outs; o++) d[o] = vec_load(dy + o * VEC_WIDTH);
                VEC_UNROLL
                for (int c = 0; c < cells; c++) {
                    vec at = vec_load(x + c * VEC_WIDTH);
                    VEC_HELD(at);
                    VEC_UNROLL
                    for (int o = 0; o < outs; o++) s[o][c] = vec_fma(d[o], at, s[o][c]);
                }
            } else {
                vec at[TILE_MOST];
                VEC_UNROLL
                for (int c = 0; c < cells; c++) at[c] = vec_load(x + c * VEC_WIDTH);
                VEC_UNROLL
                for (int o = 0; o < outs; o++) {
                    vec d = vec_load(dy + o * VEC_WIDTH);
                    VEC_HELD(d);
                    VEC_UNROLL
                    for (int c = 0; c < cells; c++) s[o][c] = vec_fma(d, at[c], s[o][c]);
                }
            }
        }
    }
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int c = 0; c < cells; c++) vec_store(walk->sums + o * walk->sums_out + c * VEC_WIDTH, s[o][c]);
    }
}

#define WEIGHTS_TILE(outs, cells) \
    static void weights_tile_##outs##_##cells(const weights_walk *walk) { weights_tile(outs, cells, walk); }
EACH_TILE(WEIGHTS_TILE)
#define WEIGHTS_ENTRY(outs, cells) [outs][cells] = weights_tile_##outs##_##cells,
static void (*const weights_tiles[TILE_OUTS + 1][TILE_MOST + 1])(const weights_walk *) = {EACH_TILE(WEIGHTS_ENTRY)};

/* What rows y .. y+rows-1 of dy, in lanes, add to the sums of one row of the kernel, in output channels o .. o+outs-1. */
static void weights_kernel_row(const twi_conv_shape *s, const tile_cuts *tiles, int64_t run, int64_t k, int64_t o,
                               int64_t outs, int64_t y, int64_t rows, const float *image, const float *dy,
                               float *sums) {
    const int64_t pixel = s->in_c * VEC_WIDTH, columns = image_columns(s), kernel_row = s->kernel_w * s->in_c;
    /* Rows of dy whose input row, at this row of the kernel, is inside the image. */
    int64_t first = y, end = y + rows, shift = k * s->dilation_h - s->top;
    while (first < end && first * s->stride_h + shift < 0) first++;
    while (first < end && (end - 1) * s->stride_h + shift >= s->in_h) end--;
    if (first == end) return;
    weights_walk walk = {
        .rows = end - first,
        .image_row = s->stride_h * columns * pixel,
        .columns = s->out_w,
        .image_pixel = s->stride_w * pixel,
        .dy = dy + ((first - y) * s->out_w * s->out_c + o) * VEC_WIDTH,
        .dy_pixel = s->out_c * VEC_WIDTH,
        .sums_out = s->kernel_h * kernel_row * VEC_WIDTH,
    };
    for (int64_t tap = 0; tap < kernel_row; tap += run) {
        const float *tap_image =
            image + ((first * s->stride_h + shift) * columns + tap / s->in_c * s->dilation_w) * pixel;
        for (int64_t cp = 0, c = 0, cells; cp < tiles->cells.parts; cp++, c += cells) {
            cells = part_of(&tiles->cells, cp);
            walk.image = tap_image + c * VEC_WIDTH;
            walk.sums = sums + o * walk.sums_out + (k * kernel_row + tap + c) * VEC_WIDTH;
            weights_tiles[outs][cells](&walk);
        }
    }
}

/* The same of every weight. Output channels outermost: their part of dy then stays in the first-level cache. */
static void weights_rows(const twi_conv_shape *s, const tile_cuts *tiles, int64_t run, int64_t y, int64_t rows,
                         const float *image, const float *dy, float *sums) {
    for (int64_t op = 0, o = 0, outs; op < tiles->outs.parts; op++, o += outs) {
        outs = part_of(&tiles->outs, op);
        for (int64_t k = 0; k < s->kernel_h; k++)
            weights_kernel_row(s, tiles, run, k, o, outs, y, rows, image, dy, sums);
    }
}

static int64_t weights_count(const twi_conv_shape *s) { return s->out_c * s->kernel_h * s->kernel_w * s->in_c; }

/* Taps that are neighbours in the image and in the kernel: a row of the kernel, or its channels. */
static int64_t tap_run(const twi_conv_shape *s) { return s->dilation_w == 1 ? s->kernel_w * s->in_c : s->in_c; }

static twi_lanes_tiling weights_tiling(const twi_conv_shape *s) {
    return best_tiling(NULL, s->out_c, tap_run(s), s->out_h * s->out_w);
}

/* Rows of dy that are gone through at a time. */
static int64_t block_rows(const twi_conv_shape *s, twi_lanes_tiling t) {
    const int64_t row = s->out_w * VEC_WIDTH, part = twi_part_count(s->out_c, t.out_parts);
    const int64_t rows = twi_smaller(PART_FLOATS / (row * part), BLOCK_FLOATS / (row * s->out_c));
    return twi_smaller(twi_larger(rows, 1), s->out_h);
}

static int64_t backward_weights_scratch(const twi_conv_shape *s, const twi_lanes_pool *unpool) {
    return image_floats(s) + (block_rows(s, weights_tiling(s)) * s->out_w * s->out_c + weights_count(s)) * VEC_WIDTH +
           pool_block_floats(unpool, s->out_c);
}

/* What one block of images adds to the sums of all weights: dy comes in lanes, some rows at a time. */
static void weights_of_block(const twi_conv_shape *s, const tile_cuts *tiles, int64_t rows, const float *image,
                             twi_lanes_tensor dy, const twi_lanes_pool *unpool, int64_t n, int live, float *sums,
                             float *scratch) {
    const int64_t row = s->out_w * s->out_c, out = s->out_h * row;
    const int64_t parts = twi_part_count(s->out_h, rows);
    const bool exact = !unpool || pool_is_exact(unpool, s->out_h, s->out_w), direct = dy.turned && live == VEC_WIDTH;
    const float *from = (const float *)dy.data + n * out;
    pool_block block;
    if (unpool) block = pool_block_in_lanes(unpool, dy, s->out_c, n, live, scratch + rows * row * VEC_WIDTH);
    for (int64_t part = 0; part < parts; part++) {
        const int64_t y = twi_part_begin(s->out_h, parts, part), some = twi_part_begin(s->out_h, parts, part + 1) - y;
        const float *lanes = scratch;
        if (unpool) {
            if (!exact) memset(scratch, 0, (size_t)(some * row * VEC_WIDTH) * sizeof(float));
            unpool_rows(unpool, &block,
                        &(pool_target){.height = s->out_h,
                                       .width = s->out_w,
                                       .channels = s->out_c,
                                       .end_column = s->out_w,
                                       .row = row * VEC_WIDTH,
                                       .column = s->out_c * VEC_WIDTH,
                                       .at = scratch},
                        y, y + some);
        } else if (direct) {
            lanes = from + y * row * VEC_WIDTH;
        } else if (dy.turned) {
            copy_live(from + y * row * VEC_WIDTH, live, some * row, scratch);
        } else {
            to_lanes(from + y * row, out, live, some * row, scratch);
        }
        weights_rows(s, tiles, tap_run(s), y, some, image, lanes, sums);
    }
}

static void backward_weights(const twi_conv_shape *s, twi_lanes_tiling t, twi_lanes_tensor x, twi_lanes_tensor dy,
                             const twi_lanes_pool *unpool, bool add, float *dw, float *scratch) {
    const int64_t count = weights_count(s);
    const tile_cuts tiles = {cut_of(s->out_c, t.out_parts), cut_of(tap_run(s), t.cell_parts)};
    float *sums = scratch + image_floats(s), *lanes = sums + count * VEC_WIDTH;
    memset(sums, 0, (size_t)(count * VEC_WIDTH) * sizeof(float));
    for (int64_t n = 0; n < s->samples; n += VEC_WIDTH) {
        int live = (int)twi_smaller(VEC_WIDTH, s->samples - n);
        const float *image = image_in_lanes(s, x, n, live, scratch);
        weights_of_block(s, &tiles, block_rows(s, t), image, dy, unpool, n, live, sums, lanes);
    }
    sum_lanes(sums, count, add, dw);
}

const twi_lanes LANES_RECORD = {
    .width = VEC_WIDTH,
    .forward_tiling = forward_tiling,
    .weights_tiling = weights_tiling,
    .forward_scratch = forward_scratch,
    .backward_weights_scratch = backward_weights_scratch,
    .forward = forward,
    .backward_weights = backward_weights,
    .bias_relu_scratch = bias_relu_scratch,
    .bias_relu = bias_relu,
    .rows_to_image = rows_to_image,
    .image_to_rows = image_to_rows,
};

/* Convolutions forward, which gradients of the input are as well: tiles of output channels x positions, pooled
 * (lanes_pool_kernel.h) or turned back row by row, while they are in the first-level cache. */
#ifndef TWI_CPU_LANES_FORWARD_KERNEL_H
#define TWI_CPU_LANES_FORWARD_KERNEL_H

#include "lanes_image_kernel.h"
#include "lanes_tile_kernel.h"

/* The kernel rows that lie on input rows at one output row: `count` of them from `first`, `step` apart, the first of
 * them on input row `row`, each next one `advance` further. */
typedef struct row_taps {
    int64_t count, first, step, row, advance;
} row_taps;

static row_taps row_taps_at(const twi_conv_shape *s, int64_t out_y) {
    row_taps t = {0, 0, 1, 0, 0};
    const int64_t top = out_y * s->stride_h - s->top;
    if (s->spread_h == 1 && s->dilation_h == 1) { /* nothing to search, as it is with most */
        t.first = twi_larger(-top, 0);
        t.count = twi_larger(twi_smaller(s->kernel_h, s->in_h - top) - t.first, 0);
        t.row = top + t.first, t.advance = 1;
        return t;
    }
    for (int64_t k = 0; k < s->kernel_h; k++) {
        int64_t y = top + k * s->dilation_h;
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

/* A column of tiles: `cells` positions from x on, and taps first .. end-1 of the kernel, which touch more than zeros there. */
typedef struct tile_column {
    int32_t x, cells, first, end;
} tile_column;

/* How the output is cut into tiles, and which columns of the image those read. */
typedef struct forward_cuts {
    cut outs;
    int64_t count;
    const tile_column *column;
    span read;
} forward_cuts;

enum { TILE_COLUMN_FLOATS = sizeof(tile_column) / sizeof(float) };

static forward_cuts cut_forward(const twi_conv_shape *s, const tile_cuts *tiles, tile_column *column) {
    span read = {image_columns(s), 0};
    for (int64_t p = 0, x = 0, cells; p < tiles->cells.parts; p++, x += cells) {
        int64_t first, end;
        cells = part_of(&tiles->cells, p);
        column_taps(s, x, cells, &first, &end);
        column[p] = (tile_column){(int32_t)x, (int32_t)cells, (int32_t)first, (int32_t)end};
        if (first == end) continue;
        read.first = twi_smaller(read.first, x * s->stride_w + first * s->dilation_w);
        read.end = twi_larger(read.end, (x + cells - 1) * s->stride_w + (end - 1) * s->dilation_w + 1);
    }
    return (forward_cuts){tiles->outs, tiles->cells.parts, column, read.first < read.end ? read : (span){0, 0}};
}

/* ---- rows of tiles ---- */

static forward_walk walk_over(const twi_conv_shape *s, bool relu) {
    const int64_t pixel = s->in_c * VEC_WIDTH;
    return (forward_walk){.image_run = s->dilation_w * pixel,
                          .image_pixel = s->stride_w * pixel,
                          .weight_out = s->kernel_h * s->kernel_w * s->in_c,
                          .relu = relu,
                          .to_pixel = s->out_c * VEC_WIDTH,
                          .window_row = s->stride_h * image_columns(s) * pixel};
}

/* A convolution's image, weights and bias. */
typedef struct forward_data {
    const float *image, *w, *bias;
} forward_data;

/* Has the walk go over the taps of a column of tiles in a row; where output channel 0 begins. */
static void aim(const twi_conv_shape *s, const row_taps *rows, const tile_column *c, const forward_data *data,
                forward_walk *walk) {
    const int64_t pixel = s->in_c * VEC_WIDTH, columns = image_columns(s), kernel_row = s->kernel_w * s->in_c;
    const int64_t taps = c->end - c->first;
    walk->runs = s->dilation_w == 1 ? 1 : taps;
    walk->run = s->dilation_w == 1 ? taps * s->in_c : s->in_c;
    walk->rows = rows->count;
    walk->image_row = rows->advance * columns * pixel;
    walk->weight_row = rows->step * kernel_row;
    walk->image = data->image + (rows->row * columns + c->x * s->stride_w + c->first * s->dilation_w) * pixel;
    walk->weight = data->w + rows->first * kernel_row + c->first * s->in_c;
}

/* Rows begin .. end-1 of the output in lanes, pixels of out_c vectors, the first at `to`. A column of tiles from top to bottom reads every
 * row of the input that it lies on but one again, from the first level of the cache. */
static void forward_rows(const twi_conv_shape *s, const forward_cuts *tiles, int64_t begin, int64_t end,
                         const forward_data *data, bool relu, float *to) {
    static const float zeros[TILE_OUTS];
    const int64_t out_row = s->out_w * s->out_c * VEC_WIDTH;
    forward_walk walk = walk_over(s, relu);
    for (const tile_column *c = tiles->column, *last = c + tiles->count; c < last; c++) {
        for (int64_t out_y = begin; out_y < end; out_y++) {
            const row_taps rows = row_taps_at(s, out_y);
            aim(s, &rows, c, data, &walk);
            walk.to = to + (out_y - begin) * out_row + c->x * walk.to_pixel;
            for (int64_t op = 0, o = 0, outs; op < tiles->outs.parts; op++, o += outs) {
                outs = part_of(&tiles->outs, op);
                walk.bias = data->bias ? data->bias + o : zeros;
                forward_tiles[outs][c->cells](&walk);
                walk.weight += outs * walk.weight_out, walk.to += outs * VEC_WIDTH;
            }
        }
    }
}

/* A row of windows from output row `top` on, and their indices; both rows lie on all rows of the kernel. */
static void window_row(const twi_conv_shape *s, const forward_cuts *windows, int64_t top, const forward_data *data,
                       bool relu, float *to, uint8_t *index) {
    static const float zeros[WINDOW_OUTS];
    const row_taps rows = row_taps_at(s, top);
    forward_walk walk = walk_over(s, relu);
    walk.to = to, walk.index = index;
    for (const tile_column *c = windows->column, *last = c + windows->count; c < last; c++) {
        aim(s, &rows, c, data, &walk);
        for (int64_t op = 0, o = 0, outs; op < windows->outs.parts; op++, o += outs) {
            outs = part_of(&windows->outs, op);
            walk.bias = data->bias ? data->bias + o : zeros;
            window_tiles[outs](&walk);
            walk.weight += outs * walk.weight_out, walk.to += outs * VEC_WIDTH, walk.index += outs * VEC_WIDTH;
        }
    }
}

/* ---- with a pooling ---- */

/* Rows of the result that are kept: those a row of windows covers. */
static int64_t kept_rows(const twi_lanes_pool *pool) { return pool ? pool->attrs->kernel_h : 1; }

/* Can a window be a tile? */
static bool pools_in_tiles(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return pool->attrs->kernel_h == 2 && pool->attrs->kernel_w == 2 && pool_is_exact(pool, s->out_h, s->out_w) &&
           s->dilation_h == 1 && s->spread_h == 1;
}

static bool lies_on_all_rows(const twi_conv_shape *s, int64_t out_y) {
    return row_taps_at(s, out_y).count == s->kernel_h;
}

/* One image block after its convolution, row of windows by row of windows: only those rows that windows cover. */
static void forward_pooled(const twi_conv_shape *s, const forward_cuts *tiles, const forward_cuts *windows,
                           const forward_data *data, const twi_lanes_pool *pool, bool relu, twi_lanes_tensor y,
                           int64_t n, int live, float *kept, float *row) {
    const int64_t floats = s->out_w * s->out_c * VEC_WIDTH, most = pool->attrs->kernel_h;
    int64_t done = 0;
    for (int64_t p = 0; p < pool->rows; p++) {
        const pool_place place = pool_row_place(pool, s->out_c, p, y, n, row);
        int64_t top = p * pool->attrs->stride_h - pool->attrs->pad_top;
        if (windows->count && lies_on_all_rows(s, top) && lies_on_all_rows(s, top + 1)) {
            window_row(s, windows, top, data, relu, place.y, place.index);
        } else {
            int64_t first = twi_larger(top, 0), end = twi_smaller(top + most, s->out_h);
            for (done = twi_larger(done, first); done < end; done++)
                forward_rows(s, tiles, done, done + 1, data, false, kept + done % most * floats);
            pool_row_max(pool, &(pool_source){s->out_c, s->out_w, floats, kept}, p, first, end, relu, place.y,
                         place.index);
        }
        pool_row_turn(pool, s->out_c, p, &place, y, n, live);
    }
}

/* ---- the convolution ---- */

static int64_t forward_scratch(const twi_conv_shape *s, const twi_lanes_pool *unpool, const twi_lanes_pool *pool) {
    return image_floats(s) + kept_rows(pool) * s->out_w * s->out_c * VEC_WIDTH + pool_block_floats(unpool, s->in_c) +
           pool_row_floats(pool, s->out_c) + 2 * s->out_w * TILE_COLUMN_FLOATS;
}

static twi_lanes_tiling forward_tiling(const twi_conv_shape *s) {
    return best_tiling(s, s->out_c, s->out_w, s->kernel_h * s->in_c);
}

static span span_of_both(span a, span b) {
    return (span){twi_smaller(a.first, b.first), twi_larger(a.end, b.end)};
}

static void forward(const twi_conv_shape *s, twi_lanes_tiling t, twi_lanes_tensor x, const twi_lanes_pool *unpool,
                    const float *w, const float *bias, const twi_lanes_pool *pool, bool relu, twi_lanes_tensor y,
                    float *scratch) {
    const int64_t row = s->out_w * s->out_c, out = s->out_h * row;
    float *lanes = scratch + image_floats(s), *turned = lanes + kept_rows(pool) * row * VEC_WIDTH,
          *pooled = turned + pool_block_floats(unpool, s->in_c);
    tile_column *columns = (tile_column *)(void *)(pooled + pool_row_floats(pool, s->out_c));
    const tile_cuts cuts = tile_cuts_of(&t, s->out_c, s->out_w);
    const forward_cuts tiles = cut_forward(s, &cuts, columns);
    forward_cuts windows = {.read = tiles.read};
    if (pool && pools_in_tiles(s, pool)) {
        const tile_cuts pairs = {cut_of(s->out_c, twi_part_count(s->out_c, WINDOW_OUTS)),
                                 cut_of(s->out_w, s->out_w / 2)};
        windows = cut_forward(s, &pairs, columns + s->out_w);
    }
    const span read = span_of_both(tiles.read, windows.read);
    for (int64_t n = 0; n < s->samples; n += VEC_WIDTH) {
        int live = (int)twi_smaller(VEC_WIDTH, s->samples - n);
        const forward_data data = {unpool ? unpooled_image(s, read, x, unpool, n, live, scratch, turned)
                                          : image_in_lanes(s, read, x, n, live, scratch),
                                   w, bias};
        if (pool) {
            forward_pooled(s, &tiles, &windows, &data, pool, relu, y, n, live, lanes, pooled);
            continue;
        }
        float *to = (float *)y.data + n * out;
        if (y.turned) forward_rows(s, &tiles, 0, s->out_h, &data, relu, to);
        for (int64_t out_y = 0; !y.turned && out_y < s->out_h; out_y++) {
            forward_rows(s, &tiles, out_y, out_y + 1, &data, relu, lanes);
            from_lanes(lanes, row, live, to + out_y * row, out);
        }
    }
}

#endif

/* Gradients of a convolution's weights by winners. What the kernel's rows lie on is laid out first, a row of the image
 * and a column of the result after the other, in whole vectors: every winner reads vectors of its own then, and none
 * lies across two lines of the cache. */
#ifndef TWI_CPU_WINNERS_WEIGHTS_KERNEL_H
#define TWI_CPU_WINNERS_WEIGHTS_KERNEL_H

#include "lanes_image_kernel.h"
#include "winners_list_kernel.h"

enum { WEIGHTS_TILE_ROWS = 5 };

/* ---- tiles: rows of the kernel x vectors of a row, which run over a list ---- */

typedef struct winners_walk {
    int64_t count;
    const float *gradients;
    const int32_t *places;
    const float *image;
    float *sums;
    int64_t image_row, sums_row;
} winners_walk;

VEC_INLINE void winners_tile(const int rows, const int vectors, const winners_walk *walk) {
    vec s[WEIGHTS_TILE_ROWS][WINNERS_VECTORS];
    VEC_UNROLL
    for (int r = 0; r < rows; r++) {
        VEC_UNROLL
        for (int v = 0; v < vectors; v++) s[r][v] = vec_splat(0);
    }
    const int64_t image_row = walk->image_row;
    for (int64_t e = 0; e < walk->count; e++) {
        const float *at = walk->image + walk->places[e];
        vec gradient = vec_splat(walk->gradients[e]);
        VEC_HELD(gradient);
        VEC_UNROLL
        for (int r = 0; r < rows; r++, at += image_row) {
            VEC_UNROLL
            for (int v = 0; v < vectors; v++) s[r][v] = vec_fma(gradient, vec_load(at + v * VEC_WIDTH), s[r][v]);
        }
    }
    VEC_UNROLL
    for (int r = 0; r < rows; r++) {
        VEC_UNROLL
        for (int v = 0; v < vectors; v++) {
            float *to = walk->sums + r * walk->sums_row + v * VEC_WIDTH;
            vec_store(to, vec_load(to) + s[r][v]);
        }
    }
}

#define EACH_WINNERS_ROWS(make, vectors) \
    make(1, vectors) make(2, vectors) make(3, vectors) make(4, vectors) make(5, vectors)
#define EACH_WINNERS_TILE(make) \
    EACH_WINNERS_ROWS(make, 1)  \
    EACH_WINNERS_ROWS(make, 2)  \
    EACH_WINNERS_ROWS(make, 3)  \
    EACH_WINNERS_ROWS(make, 4)
#define WINNERS_TILE(rows, vectors) \
    static void winners_tile_##rows##_##vectors(const winners_walk *walk) { winners_tile(rows, vectors, walk); }
EACH_WINNERS_TILE(WINNERS_TILE)
#define WINNERS_TILE_ENTRY(rows, vectors) [rows][vectors] = winners_tile_##rows##_##vectors,
static void (*const winners_tiles[WEIGHTS_TILE_ROWS + 1][WINNERS_VECTORS + 1])(const winners_walk *) = {
    EACH_WINNERS_TILE(WINNERS_TILE_ENTRY)};

/* How the rows of a kernel are cut into tiles. */
typedef struct winners_cuts {
    cut rows, vectors;
} winners_cuts;

static winners_cuts winners_cuts_of(const twi_conv_shape *s) {
    const cut vectors = cut_of(kernel_vectors(s), twi_part_count(kernel_vectors(s), WINNERS_VECTORS));
    const int64_t widest = vectors.size + (vectors.larger > 0);
    const int64_t most = twi_smaller(WEIGHTS_TILE_ROWS, WINNERS_REGISTERS / widest);
    return (winners_cuts){cut_of(s->kernel_h, twi_part_count(s->kernel_h, most)), vectors};
}

/* All rows of the kernel, of one output channel: the walk is at its first row. */
static void winners_of_channel(const winners_cuts *cuts, winners_walk walk) {
    const float *image = walk.image;
    float *sums = walk.sums;
    for (int64_t d = 0; d < cuts->rows.parts; d++) {
        const int64_t rows = part_of(&cuts->rows, d);
        walk.image = image, walk.sums = sums;
        for (int64_t a = 0; a < cuts->vectors.parts; a++) {
            const int64_t vectors = part_of(&cuts->vectors, a);
            winners_tiles[rows][vectors](&walk);
            walk.image += vectors * VEC_WIDTH, walk.sums += vectors * VEC_WIDTH;
        }
        image += rows * walk.image_row, sums += rows * walk.sums_row;
    }
}

/* ---- the image, as the kernel's rows lie on it ---- */

static int64_t laid_row(const twi_conv_shape *s) { return s->out_w * kernel_row_floats(s); }
/* Zeros before it: elements of windows that lie before the result win nothing, but a trial may name them. */
static int64_t laid_before(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return pool->attrs->pad_top * s->stride_h * laid_row(s) + pool->attrs->pad_left * kernel_row_floats(s);
}

/* Images with their borders left and right, behind which a vector can be read. */
static int64_t bordered_row(const twi_conv_shape *s) { return image_columns(s) * s->in_c; }
static int64_t bordered_floats(const twi_conv_shape *s) { return s->in_h * bordered_row(s); }

/* The images of a block, into whose borders nothing is written. */
static void bordered_block(const twi_conv_shape *s, twi_lanes_tensor x, int64_t n, int live, float *to) {
    const int64_t row = s->in_w * s->in_c, left = s->left * s->in_c;
    const int64_t used = twi_smaller(row, bordered_row(s) - left);
    for (int64_t y = 0; y < s->in_h && used > 0; y++) {
        float *at = to + y * bordered_row(s) + left;
        if (x.turned) {
            const float *from = (const float *)x.data + n * s->in_h * row + y * row * VEC_WIDTH;
            from_lanes(from, used, live, at, bordered_floats(s));
            continue;
        }
        for (int sample = 0; sample < live; sample++)
            memcpy(at + sample * bordered_floats(s), (const float *)x.data + ((n + sample) * s->in_h + y) * row,
                   (size_t)used * sizeof(float));
    }
}

VEC_INLINE void lay_row(const int64_t vectors, int64_t columns, int64_t step, const float *from, float *to) {
    for (int64_t x = 0; x < columns; x++, from += step)
        for (int64_t v = 0; v < vectors; v++, to += VEC_WIDTH) vec_store(to, vec_load(from + v * VEC_WIDTH));
}

static void lay_image(const twi_conv_shape *s, const float *bordered, float *to) {
    const int64_t vectors = kernel_vectors(s), step = s->stride_w * s->in_c;
    for (int64_t y = -s->top; y < reached_rows(s) - s->top; y++, to += laid_row(s)) {
        if (y < 0 || y >= s->in_h)
            memset(to, 0, (size_t)laid_row(s) * sizeof(float));
        else if (vectors == 2) /* known sizes are unrolled */
            lay_row(2, s->out_w, step, bordered + y * bordered_row(s), to);
        else
            lay_row(vectors, s->out_w, step, bordered + y * bordered_row(s), to);
    }
}

/* ---- all of it ---- */

static int64_t winners_sums(const twi_conv_shape *s) { return s->out_c * s->kernel_h * kernel_row_floats(s); }
static int64_t bordered_block_floats(const twi_conv_shape *s) {
    return VEC_WIDTH * bordered_floats(s) + kernel_row_floats(s); /* which is read behind the last */
}
static int64_t list_floats(int64_t most) { return whole_vectors(most) + VEC_WIDTH; }

static int64_t winners_weights_scratch(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return winners_sums(s) + laid_before(s, pool) + reached_rows(s) * laid_row(s) + bordered_block_floats(s) +
           2 * list_floats(pool->rows * pool->columns) + winners_block_floats(pool, s->out_c);
}

/* Where what a winner is multiplied with is laid. */
static winner_places laid_places(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    const twi_pool_attrs *a = pool->attrs;
    const int64_t column = kernel_row_floats(s), row = s->stride_h * laid_row(s);
    winner_places places = {.origin = (int32_t)-laid_before(s, pool),
                            .row = (int32_t)(a->stride_h * row),
                            .column = (int32_t)(a->stride_w * column)};
    for (int i = 0; i < a->kernel_h * a->kernel_w; i++)
        places.of_index[i] = (int32_t)(i / a->kernel_w * row + i % a->kernel_w * column);
    return places;
}

static void winners_weights(const twi_conv_shape *s, twi_lanes_tensor x, twi_lanes_tensor dy,
                            const twi_lanes_pool *pool, bool add, float *dw, float *scratch) {
    const int64_t windows = pool->rows * pool->columns, row = kernel_row_floats(s);
    float *sums = scratch, *laid = sums + winners_sums(s) + laid_before(s, pool);
    float *bordered = laid + reached_rows(s) * laid_row(s), *gradients = bordered + bordered_block_floats(s);
    float *rest = gradients + 2 * list_floats(windows);
    int32_t *list = (int32_t *)(gradients + list_floats(windows));
    const winner_places places = laid_places(s, pool);
    const winners_cuts cuts = winners_cuts_of(s);
    memset(sums, 0, (size_t)(winners_sums(s) + laid_before(s, pool)) * sizeof(float));
    memset(bordered, 0, (size_t)bordered_block_floats(s) * sizeof(float));
    winners_walk walk = {
        .gradients = gradients, .places = list, .image = laid, .image_row = laid_row(s), .sums_row = row};
    for (int64_t n = 0; n < s->samples; n += VEC_WIDTH) {
        const int live = (int)twi_smaller(VEC_WIDTH, s->samples - n);
        winners_block block = winners_of_block(pool, dy, s->out_c, n, live, &places, true, rest);
        bordered_block(s, x, n, live, bordered);
        for (int sample = 0; sample < live; sample++) {
            lay_image(s, bordered + sample * bordered_floats(s), laid);
            for (int64_t o = 0; o < s->out_c; o++, block.gradients += windows, block.places += windows) {
                walk.count = 0;
                for (int64_t i = 0; i < windows; i += VEC_WIDTH) {
                    const vec g = vec_load_some(block.gradients + i, (int)twi_smaller(windows - i, VEC_WIDTH));
                    walk.count = vec_append_pairs(vec_nonzero(g), g, load_places(block.places + i, windows - i),
                                                  gradients, list, walk.count);
                }
                walk.sums = sums + o * s->kernel_h * row;
                winners_of_channel(&cuts, walk);
            }
        }
    }
    const int64_t weights = s->kernel_w * s->in_c;
    for (int64_t r = 0; r < s->out_c * s->kernel_h; r++, sums += row) {
        for (int64_t i = 0; i < weights; i++, dw++) *dw = sums[i] + (add ? *dw : 0);
    }
}

#endif

/* The convolutions of winograd.h, written once; winograd_<isa>.c compiles them as WINOGRAD_RECORD for one instruction
 * set.
 *
 * A block of tiles at a time, counted through all samples: their transforms go to scratch, one matrix a point, each
 * cut into columns of one vector of channels, [channels / width][tiles][width]. So a product reads the numbers it
 * spreads over vectors at constant distances, and all of a block's matrices stay in cache. What is done to weights is
 * in winograd_weights_kernel.h. */
#include "winograd_weights_kernel.h"
#include "base/memory.h"

/* Sums of a product that are held in registers. */
#if VEC_REGISTERS == 32
enum { HELD = 24, HELD_OUTER = 16 };
#else
enum { HELD = 12, HELD_OUTER = 8 };
#endif
/* Tiles of a block: the fewer, the nearer their transforms; the more, the less often weights are read. Others brought
 * nothing where docs/tuning.md measured. */
enum { BLOCK_TILES = 48 };

/* ---- blocks ---- */

typedef struct block_plan {
    int64_t rows, columns; /* tiles of a sample */
    int64_t tiles;         /* of all samples */
    int64_t block;         /* tiles at a time, a multiple of HELD */
    int64_t in, out;       /* floats from one point's matrix to the next: a line more, so that they do not share the
                              cache's sets */
    int points;
} block_plan;

static block_plan plan_of(const twi_winograd_shape *shape) {
    const twi_conv_shape *s = &shape->conv;
    block_plan p = {.rows = (s->out_h + shape->tile - 1) / shape->tile,
                    .columns = (s->out_w + shape->tile - 1) / shape->tile,
                    .points = (int)twi_winograd_points(shape->tile)};
    p.tiles = s->samples * p.rows * p.columns;
    p.block = twi_smaller(BLOCK_TILES, (p.tiles + HELD - 1) / HELD * HELD);
    p.in = p.block * s->in_c + 16;
    p.out = p.block * s->out_c + 16;
    return p;
}

static tw_status scratch(const twi_winograd_shape *shape, size_t *bytes) {
    const block_plan p = plan_of(shape);
    size_t channels, floats;
    TWI_TRY(twi_add_size(&channels, (size_t)shape->conv.in_c, (size_t)shape->conv.out_c, "channels of a convolution"));
    TWI_TRY(twi_mul_size(&floats, channels, (size_t)p.block, "Winograd transforms"));
    TWI_TRY(twi_add_size(&floats, floats, 2 * 16, "Winograd transforms"));
    return twi_mul_size(bytes, floats, (size_t)p.points * sizeof(float), "Winograd transforms");
}

/* A run of neighbouring tiles in one row of one sample: `count` of them from column `column` on, which are tile `at`
 * and following of the block. */
typedef struct tile_run {
    int64_t sample, row, column, count, at;
} tile_run;

/* The run that begins at tile `at` of the block whose first tile is `from` and which has `count` tiles. */
static tile_run run_at(const block_plan *p, int64_t from, int64_t count, int64_t at) {
    int64_t tile = from + at;
    tile_run r = {tile / p->columns / p->rows, tile / p->columns % p->rows, tile % p->columns, 0, at};
    r.count = twi_smaller(p->columns - r.column, count - at);
    return r;
}

/* ---- pixels ---- */

/* Some rows of an image, read from left to right, one vector of channels of a pixel after the other; outside of the
 * image there are zeros. */
typedef struct pixel_rows {
    const unsigned char *at[MOST_LINE]; /* the pixel of column x, or the one next to it that is inside */
    int64_t next[MOST_LINE];            /* bytes to the next one */
    int64_t x, width;
} pixel_rows;

VEC_INLINE pixel_rows rows_from(const tw_dtype dtype, const unsigned char *image, int64_t y, int64_t x, const int count,
                                int64_t height, int64_t width, int64_t channels) {
    static const float zeros[VEC_WIDTH];
    const int64_t pixel = channels * bytes_of(dtype), column = twi_smaller(twi_larger(x, 0), width);
    pixel_rows p = {.x = x, .width = width};
    VEC_UNROLL
    for (int i = 0; i < count; i++) {
        bool inside = y + i >= 0 && y + i < height;
        p.next[i] = inside ? pixel : 0;
        p.at[i] = inside ? image + ((y + i) * width + column) * pixel : (const unsigned char *)zeros;
    }
    return p;
}

VEC_INLINE void next_pixels(const tw_dtype dtype, pixel_rows *p, const int count, vec *to) {
    if (p->x >= 0 && p->x < p->width) {
        VEC_UNROLL
        for (int i = 0; i < count; i++) {
            to[i] = load_real(dtype, p->at[i]);
            p->at[i] += p->next[i];
        }
    } else {
        VEC_UNROLL
        for (int i = 0; i < count; i++) to[i] = (vec){0};
    }
    p->x++;
}

/* Keeps a compiler from preparing all addresses that are multiples of a number: there are not enough registers for
 * them. */
#define NOT_PREPARED(number) __asm__("" : "+r"(number))

/* ---- transforms of a run ---- */

VEC_INLINE void input_column(const int m, const tw_dtype dtype, pixel_rows *p, vec *to) {
    vec d[MOST_LINE];
    next_pixels(dtype, p, m + 2, d);
    input_line(m, d, to);
}

/* v[point][in_c / width][block][width] = B^T d B of a run's tiles. The last two columns of a tile are the first of the
 * next. */
VEC_INLINE void transform_input(const int m, const tw_dtype dtype, const twi_conv_shape *s, const block_plan *p,
                                const tile_run *r, const unsigned char *x, float *v) {
    const unsigned char *image = x + r->sample * s->in_h * s->in_w * s->in_c * bytes_of(dtype);
    for (int64_t c = 0; c < s->in_c; c += VEC_WIDTH) {
        pixel_rows rows = rows_from(dtype, image + c * bytes_of(dtype), m * r->row - s->top, m * r->column - s->left,
                                    m + 2, s->in_h, s->in_w, s->in_c);
        float *to = v + c * p->block + r->at * VEC_WIDTH;
        vec column[MOST_LINE][MOST_LINE];
        input_column(m, dtype, &rows, column[0]);
        input_column(m, dtype, &rows, column[1]);
        for (int64_t t = 0; t < r->count; t++, to += VEC_WIDTH) {
            int64_t distance = p->in;
            NOT_PREPARED(distance);
            VEC_UNROLL
            for (int j = 2; j < m + 2; j++) input_column(m, dtype, &rows, column[j]);
            VEC_UNROLL
            for (int i = 0; i < m + 2; i++) {
                vec line[MOST_LINE], d[MOST_LINE];
                VEC_UNROLL
                for (int j = 0; j < m + 2; j++) d[j] = column[j][i];
                input_line(m, d, line);
                VEC_UNROLL
                for (int j = 0; j < m + 2; j++) vec_store(to + ((m + 2) * i + j) * distance, line[j]);
                column[0][i] = column[m][i];
                column[1][i] = column[m + 1][i];
            }
        }
    }
}

/* d[point][out_c / width][block][width] = A dy A^T */
VEC_INLINE void transform_gradient(const int m, const tw_dtype dtype, const twi_conv_shape *s, const block_plan *p,
                                   const tile_run *r, const unsigned char *dy, float *d) {
    const unsigned char *image = dy + r->sample * s->out_h * s->out_w * s->out_c * bytes_of(dtype);
    for (int64_t c = 0; c < s->out_c; c += VEC_WIDTH) {
        pixel_rows rows = rows_from(dtype, image + c * bytes_of(dtype), m * r->row, m * r->column, m, s->out_h,
                                    s->out_w, s->out_c);
        float *to = d + c * p->block + r->at * VEC_WIDTH;
        for (int64_t t = 0; t < r->count; t++, to += VEC_WIDTH) {
            int64_t distance = p->out;
            NOT_PREPARED(distance);
            vec column[MOST_TILE][MOST_LINE];
            VEC_UNROLL
            for (int j = 0; j < m; j++) {
                vec pixels[MOST_TILE];
                next_pixels(dtype, &rows, m, pixels);
                gradient_line(m, pixels, column[j]);
            }
            VEC_UNROLL
            for (int i = 0; i < m + 2; i++) {
                vec line[MOST_LINE], across[MOST_TILE];
                VEC_UNROLL
                for (int j = 0; j < m; j++) across[j] = column[j][i];
                gradient_line(m, across, line);
                VEC_UNROLL
                for (int j = 0; j < m + 2; j++) vec_store(to + ((m + 2) * i + j) * distance, line[j]);
            }
        }
    }
}

/* y = A^T p A [+ bias], [relu], of prod[point][out_c / width][block][width] */
VEC_INLINE void transform_output(const int m, const tw_dtype dtype, const twi_conv_shape *s, const block_plan *p,
                                 const tile_run *r, const float *prod, const unsigned char *bias, bool relu,
                                 unsigned char *y) {
    const int64_t pixel = s->out_c * bytes_of(dtype), rows = twi_smaller(m, s->out_h - m * r->row);
    y += (r->sample * s->out_h + m * r->row) * s->out_w * pixel;
    for (int64_t c = 0; c < s->out_c; c += VEC_WIDTH) {
        const vec add = bias ? load_real(dtype, bias + c * bytes_of(dtype)) : (vec){0};
        const float *from = prod + c * p->block + r->at * VEC_WIDTH;
        int64_t left = m * r->column;
        for (int64_t t = 0; t < r->count; t++, left += m, from += VEC_WIDTH) {
            int64_t distance = p->out;
            NOT_PREPARED(distance);
            vec column[MOST_LINE][MOST_TILE];
            VEC_UNROLL
            for (int j = 0; j < m + 2; j++) {
                vec line[MOST_LINE];
                VEC_UNROLL
                for (int i = 0; i < m + 2; i++) line[i] = vec_load(from + ((m + 2) * i + j) * distance);
                output_line(m, line, column[j]);
            }
            const int64_t columns = twi_smaller(m, s->out_w - left);
            VEC_UNROLL
            for (int i = 0; i < m; i++) {
                vec line[MOST_LINE], results[MOST_TILE];
                unsigned char *to = y + (i * s->out_w + left) * pixel + c * bytes_of(dtype);
                if (i >= rows) continue;
                VEC_UNROLL
                for (int j = 0; j < m + 2; j++) line[j] = column[j][i];
                output_line(m, line, results);
                VEC_UNROLL
                for (int j = 0; j < m; j++) {
                    vec result = results[j] + add;
                    if (j < columns) store_real(dtype, to + j * pixel, relu ? vec_relu(result) : result);
                }
            }
        }
    }
}

/* ---- products ---- */

/* HELD / panel tiles by `panel` vectors of output channels, kept in registers over all input channels. */
VEC_INLINE void product(const int panel, int64_t in_c, const float *v, int64_t v_column, const float *u, float *to,
                        int64_t to_column) {
    vec sum[HELD];
    const int tiles = HELD / panel;
    VEC_UNROLL
    for (int i = 0; i < HELD; i++) sum[i] = (vec){0};
    for (int64_t c = 0; c < in_c; c += VEC_WIDTH, v += v_column) {
        for (const float *a = v; a < v + VEC_WIDTH; a++, u += panel * VEC_WIDTH) {
            vec b[2] = {vec_load(u), panel == 2 ? vec_load(u + VEC_WIDTH) : (vec){0}};
            VEC_UNROLL
            for (int t = 0; t < tiles; t++) {
                vec x = vec_splat(a[t * VEC_WIDTH]);
                for (int k = 0; k < panel; k++) sum[t * panel + k] = vec_fma(x, b[k], sum[t * panel + k]);
            }
        }
    }
    VEC_UNROLL
    for (int t = 0; t < tiles; t++)
        for (int k = 0; k < panel; k++) vec_store(to + k * to_column + t * VEC_WIDTH, sum[t * panel + k]);
}
static void product_1(int64_t in_c, const float *v, int64_t v_column, const float *u, float *m, int64_t m_column) {
    product(1, in_c, v, v_column, u, m, m_column);
}
static void product_2(int64_t in_c, const float *v, int64_t v_column, const float *u, float *m, int64_t m_column) {
    product(2, in_c, v, v_column, u, m, m_column);
}

/* to = v * u for one point; tiles are rounded up, and what the last ones give is not looked at. */
static void multiply(const twi_conv_shape *s, const block_plan *p, int64_t count, const float *v, const float *u,
                     float *to) {
    const int64_t column = p->block * VEC_WIDTH;
    for (int64_t k = 0; k < s->out_c; k += WINOGRAD_PANEL) {
        const bool two = k + VEC_WIDTH < s->out_c;
        const int64_t tiles = two ? HELD / 2 : HELD;
        for (int64_t t = 0; t < count; t += tiles)
            (two ? product_2 : product_1)(s->in_c, v + t * VEC_WIDTH, column, u + k * s->in_c,
                                          to + k * p->block + t * VEC_WIDTH, column);
    }
}

VEC_INLINE void convolve_as(const int m, const tw_dtype dtype, const twi_winograd_shape *shape, const void *x,
                            const float *weights, const void *bias, bool relu, void *y, float *scratch_floats) {
    const twi_conv_shape *s = &shape->conv;
    const block_plan p = plan_of(shape);
    float *v = scratch_floats, *prod = v + p.points * p.in;
    for (int64_t from = 0; from < p.tiles; from += p.block) {
        const int64_t count = twi_smaller(p.block, p.tiles - from);
        tile_run r;
        for (int64_t at = 0; at < count; at += r.count) {
            r = run_at(&p, from, count, at);
            transform_input(m, dtype, s, &p, &r, x, v);
        }
        for (int i = 0; i < p.points; i++)
            multiply(s, &p, count, v + i * p.in, weights + i * s->in_c * s->out_c, prod + i * p.out);
        for (int64_t at = 0; at < count; at += r.count) {
            r = run_at(&p, from, count, at);
            transform_output(m, dtype, s, &p, &r, prod, bias, relu, y);
        }
    }
}

/* ---- the gradient of the weights ---- */

/* `rows` input channels by `panel` vectors of output channels, kept in registers over all tiles. */
VEC_INLINE void outer(const int panel, const int rows, int64_t tiles, const float *v, const float *d, int64_t d_column,
                      bool add, float *sums, int64_t sums_row) {
    vec sum[HELD_OUTER];
    VEC_UNROLL
    for (int i = 0; i < HELD_OUTER; i++) sum[i] = (vec){0};
    for (int64_t t = 0; t < tiles; t++, v += VEC_WIDTH, d += VEC_WIDTH) {
        vec b[2] = {vec_load(d), panel == 2 ? vec_load(d + d_column) : (vec){0}};
        VEC_UNROLL
        for (int r = 0; r < rows; r++) {
            vec x = vec_splat(v[r]);
            for (int k = 0; k < panel; k++) sum[r * panel + k] = vec_fma(x, b[k], sum[r * panel + k]);
        }
    }
    VEC_UNROLL
    for (int r = 0; r < rows; r++) {
        for (int k = 0; k < panel; k++) {
            float *to = sums + r * sums_row + k * VEC_WIDTH;
            vec_store(to, add ? vec_load(to) + sum[r * panel + k] : sum[r * panel + k]);
        }
    }
}
enum {
    OUTER_ROWS_1 = HELD_OUTER < VEC_WIDTH ? HELD_OUTER : VEC_WIDTH,
    OUTER_ROWS_2 = HELD_OUTER / 2 < VEC_WIDTH ? HELD_OUTER / 2 : VEC_WIDTH
};
static void outer_1(int64_t tiles, const float *v, const float *d, int64_t d_column, bool add, float *sums,
                    int64_t sums_row) {
    outer(1, OUTER_ROWS_1, tiles, v, d, d_column, add, sums, sums_row);
}
static void outer_2(int64_t tiles, const float *v, const float *d, int64_t d_column, bool add, float *sums,
                    int64_t sums_row) {
    outer(2, OUTER_ROWS_2, tiles, v, d, d_column, add, sums, sums_row);
}

/* sums[in_c][out_c] = [sums +] v^T d for one point. */
static void multiply_outer(const twi_conv_shape *s, const block_plan *p, int64_t count, const float *v, const float *d,
                           bool add, float *sums) {
    for (int64_t k = 0; k < s->out_c; k += WINOGRAD_PANEL) {
        const bool two = k + VEC_WIDTH < s->out_c;
        const int64_t rows = two ? OUTER_ROWS_2 : OUTER_ROWS_1;
        for (int64_t c = 0; c < s->in_c; c += rows)
            (two ? outer_2 : outer_1)(count, v + c / VEC_WIDTH * p->block * VEC_WIDTH + c % VEC_WIDTH,
                                      d + k * p->block, p->block * VEC_WIDTH, add, sums + c * s->out_c + k, s->out_c);
    }
}

VEC_INLINE void backward_weights_as(const int m, const tw_dtype dtype, const twi_winograd_shape *shape, const void *x,
                                    const void *dy, bool add, float *sums, float *scratch_floats) {
    const twi_conv_shape *s = &shape->conv;
    const block_plan p = plan_of(shape);
    float *v = scratch_floats, *d = v + p.points * p.in;
    for (int64_t from = 0; from < p.tiles; from += p.block) {
        const int64_t count = twi_smaller(p.block, p.tiles - from);
        tile_run r;
        for (int64_t at = 0; at < count; at += r.count) {
            r = run_at(&p, from, count, at);
            transform_input(m, dtype, s, &p, &r, x, v);
            transform_gradient(m, dtype, s, &p, &r, dy, d);
        }
        for (int i = 0; i < p.points; i++)
            multiply_outer(s, &p, count, v + i * p.in, d + i * p.out, add || from > 0, sums + i * s->in_c * s->out_c);
    }
}

/* ---- the record ---- */

/* What is done as a constant kind of tile and type, one of those that winograd_impls.c asks for. */
#define AS(done, tile, type, ...)                           \
    if ((tile) == 4 && (type) == TW_BF16)                   \
        done(4, TW_BF16, __VA_ARGS__);                      \
    else if ((tile) == 4)                                   \
        done(4, TW_F16, __VA_ARGS__);                       \
    else if ((type) == TW_F32)                              \
        done(2, TW_F32, __VA_ARGS__);                       \
    else if ((type) == TW_BF16)                             \
        done(2, TW_BF16, __VA_ARGS__);                      \
    else                                                    \
        done(2, TW_F16, __VA_ARGS__)

static void weights(const twi_winograd_shape *shape, const void *w, bool backward, float *to) {
    AS(weights_as, shape->tile, shape->dtype, &shape->conv, w, backward, to);
}
static void convolve(const twi_winograd_shape *shape, const void *x, const float *u, const void *bias, bool relu,
                     void *y, float *scratch_floats) {
    AS(convolve_as, shape->tile, shape->dtype, shape, x, u, bias, relu, y, scratch_floats);
}
static void backward_weights(const twi_winograd_shape *shape, const void *x, const void *dy, bool add, float *sums,
                             float *scratch_floats) {
    AS(backward_weights_as, shape->tile, shape->dtype, shape, x, dy, add, sums, scratch_floats);
}
static void weights_gradient(const twi_winograd_shape *shape, const float *sums, void *dw, tw_dtype stored) {
    if (shape->tile == 4 && stored == TW_F32)
        weights_gradient_as(4, TW_F32, &shape->conv, sums, dw);
    else
        AS(weights_gradient_as, shape->tile, stored, &shape->conv, sums, dw);
}

const twi_winograd WINOGRAD_RECORD = {
    .width = VEC_WIDTH,
    .scratch = scratch,
    .weights = weights,
    .convolve = convolve,
    .backward_weights = backward_weights,
    .weights_gradient = weights_gradient,
};

/* The loops of winograd.h, written once; winograd_<isa>.c compiles them as WINOGRAD_LOOPS.
 *
 * A block of tiles at a time: rows of images are turned to their 6 combinations, whole rows at once, then columns tile by
 * tile, which gives a matrix [tiles][channels] for each of 36 points; 36 products of matrices; and back. A row of tiles is
 * read through a band of 6 rows with zeros at both sides, so that no tile asks whether it lies at a border. */
#include "parts.h"
#include "vec_half.h"
#include "winograd.h"

enum { OUT = TWI_WINOGRAD_OUT, IN = TWI_WINOGRAD_IN, POINTS = TWI_WINOGRAD_POINTS, TAPS = 3 };
#if VEC_REGISTERS == 32
enum { ROWS = 12 };
#else
enum { ROWS = 6 };
#endif

/* ---- arithmetic ---- */

VEC_INLINE vec times(float k, vec v) { return vec_splat(k) * v; }
VEC_INLINE vec plus(vec a, float k, vec v) { return vec_fma(vec_splat(k), v, a); }

/* ---- one axis: what is read, what the weights become, what comes out ---- */

VEC_INLINE void turn_input(vec t[IN], const vec d[IN]) {
    const vec a = plus(d[4], -4, d[2]), b = plus(d[3], -4, d[1]), c = d[4] - d[2], e = d[3] - d[1];
    t[0] = plus(plus(d[4], -5, d[2]), 4, d[0]);
    t[1] = a + b;
    t[2] = a - b;
    t[3] = plus(c, 2, e);
    t[4] = plus(c, -2, e);
    t[5] = plus(plus(d[5], -5, d[3]), 4, d[1]);
}

VEC_INLINE void turn_weights(vec t[IN], const vec w[TAPS]) {
    const vec outer = w[0] + w[2], far = plus(w[0], 4, w[2]);
    t[0] = times(1.0f / 4, w[0]);
    t[1] = times(-1.0f / 6, outer + w[1]);
    t[2] = times(-1.0f / 6, outer - w[1]);
    t[3] = times(1.0f / 24, plus(far, 2, w[1]));
    t[4] = times(1.0f / 24, plus(far, -2, w[1]));
    t[5] = w[2];
}

VEC_INLINE void turn_back(vec y[OUT], const vec m[IN]) {
    const vec s = m[1] + m[2], d = m[1] - m[2], s2 = m[3] + m[4], d2 = m[3] - m[4];
    y[0] = m[0] + s + s2;
    y[1] = plus(d, 2, d2);
    y[2] = plus(s, 4, s2);
    y[3] = plus(d, 8, d2) + m[5];
}

/* A gradient of results takes the place of the weights, which turn_gradient_back weighs. */
VEC_INLINE void turn_gradient(vec t[IN], const vec y[OUT]) {
    const vec even = y[0] + y[2], odd = y[1] + y[3], far = plus(y[0], 4, y[2]), far_odd = plus(y[1], 4, y[3]);
    t[0] = y[0];
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = plus(far, 2, far_odd);
    t[4] = plus(far, -2, far_odd);
    t[5] = y[3];
}
VEC_INLINE void turn_gradient_back(vec w[TAPS], const vec m[IN]) {
    const vec s = times(-1.0f / 6, m[1] + m[2]), d = times(-1.0f / 6, m[1] - m[2]);
    const vec s2 = m[3] + m[4], d2 = m[3] - m[4];
    w[0] = plus(plus(s, 1.0f / 24, s2), 1.0f / 4, m[0]);
    w[1] = plus(d, 1.0f / 12, d2);
    w[2] = plus(s, 1.0f / 6, s2) + m[5];
}

/* ---- weights ---- */

/* u[point][...] of the taps of VEC_WIDTH pairs of channels. */
VEC_INLINE void store_weights(float *u, int64_t plane, const vec w[TAPS][TAPS]) {
    vec columns[IN][TAPS];
    for (int b = 0; b < TAPS; b++) {
        const vec down[TAPS] = {w[0][b], w[1][b], w[2][b]};
        vec t[IN];
        turn_weights(t, down);
        for (int i = 0; i < IN; i++) columns[i][b] = t[i];
    }
    for (int i = 0; i < IN; i++) {
        vec t[IN];
        turn_weights(t, columns[i]);
        for (int j = 0; j < IN; j++) vec_store(u + (i * IN + j) * plane, t[j]);
    }
}

/* Gradients meet the weights turned by half a circle: w[o][a][b][i] for results i and sums over o. */
static void weights_turned(float *u, const uint16_t *w, bool bf16, int64_t out, int64_t in) {
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i += VEC_WIDTH) {
            vec taps[TAPS][TAPS];
            for (int k = 0; k < TAPS * TAPS; k++)
                taps[TAPS - 1 - k / TAPS][TAPS - 1 - k % TAPS] =
                    vec_from_half(w + (o * TAPS * TAPS + k) * in + i, bf16);
            store_weights(u + o * in + i, out * in, (const vec(*)[TAPS])taps);
        }
}

/* Vectors of output channels, which lie far from each other in w. */
static void weights_forward(float *u, const uint16_t *w, bool bf16, int64_t out, int64_t in) {
    float part[TAPS * TAPS][VEC_WIDTH][VEC_WIDTH]; /* of input channels, of output channels */
    for (int64_t o = 0; o < out; o += VEC_WIDTH)
        for (int64_t i = 0; i < in; i += VEC_WIDTH) {
            for (int q = 0; q < VEC_WIDTH; q++)
                for (int k = 0; k < TAPS * TAPS; k++) {
                    const vec v = vec_from_half(w + ((o + q) * TAPS * TAPS + k) * in + i, bf16);
                    for (int p = 0; p < VEC_WIDTH; p++) part[k][p][q] = v[p];
                }
            for (int p = 0; p < VEC_WIDTH; p++) {
                vec taps[TAPS][TAPS];
                for (int k = 0; k < TAPS * TAPS; k++) taps[k / TAPS][k % TAPS] = vec_load(part[k][p]);
                store_weights(u + (i + p) * out + o, in * out, (const vec(*)[TAPS])taps);
            }
        }
}

static void weights(float *u, const uint16_t *w, bool bf16, int64_t out, int64_t in, bool turned) {
    if (turned)
        weights_turned(u, w, bf16, out, in);
    else
        weights_forward(u, w, bf16, out, in);
}

/* ---- tiles ---- */

/* Rows of tiles are counted over all images. */
typedef struct tiling {
    int64_t rows, columns; /* of tiles, in all */
    int64_t image_rows;    /* of tiles in an image */
    int64_t block;         /* rows at a time */
} tiling;

static tiling tiling_of(const twi_winograd_shape *s) {
    const int64_t rows = twi_winograd_tile_rows(s);
    return (tiling){s->images * rows, twi_winograd_tile_columns(s), rows, twi_winograd_block_rows(s)};
}

/* One row of tiles of an image, as 6 combinations of its rows. */
typedef struct band {
    float *at;      /* [6][columns][channels] */
    const uint16_t *zeros; /* a row of an image */
    int64_t columns, channels;
} band;

/* The rows of an image, height x width, that a row of tiles reads, `count` from `first` on. */
VEC_INLINE void find_rows(const uint16_t *row[IN], const uint16_t *image, int count, int64_t first, int64_t height,
                          int64_t width, const band *b) {
    for (int r = 0; r < count; r++) {
        const int64_t y = first + r;
        row[r] = y < 0 || y >= height ? b->zeros : image + y * width * b->channels;
    }
}

VEC_INLINE void read_band(const twi_winograd_shape *s, const uint16_t *image, int64_t tile_row, const band *b,
                          bool bf16) {
    const uint16_t *row[IN];
    const int64_t plane = b->columns * b->channels, count = s->width * b->channels;
    float *to = b->at + s->left * b->channels;
    find_rows(row, image, IN, tile_row * OUT - s->top, s->height, s->width, b);
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        vec d[IN], t[IN];
        for (int r = 0; r < IN; r++) d[r] = vec_from_half(row[r] + i, bf16);
        turn_input(t, d);
        for (int r = 0; r < IN; r++) vec_store(to + r * plane + i, t[r]);
    }
}

/* v[point][tile][channel] of a band's tiles. */
VEC_INLINE void split_band(const band *b, int64_t tiles, float *v, int64_t v_plane) {
    const int64_t plane = b->columns * b->channels;
    for (int64_t t = 0; t < tiles; t++, v += b->channels)
        for (int r = 0; r < IN; r++) {
            const float *from = b->at + r * plane + t * OUT * b->channels;
            for (int64_t c = 0; c < b->channels; c += VEC_WIDTH) {
                vec d[IN], turned[IN];
                for (int q = 0; q < IN; q++) d[q] = vec_load(from + q * b->channels + c);
                turn_input(turned, d);
                for (int q = 0; q < IN; q++) vec_store(v + (r * IN + q) * v_plane + c, turned[q]);
            }
        }
}

/* The same of gradients of results: tiles of 4 x 4. */
VEC_INLINE void read_gradient_band(const twi_winograd_shape *s, const uint16_t *image, int64_t tile_row, const band *b,
                                   bool bf16) {
    const uint16_t *row[IN];
    const int64_t plane = b->columns * b->channels, count = s->out_width * b->channels;
    find_rows(row, image, OUT, tile_row * OUT, s->out_height, s->out_width, b);
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        vec d[OUT], t[IN];
        for (int r = 0; r < OUT; r++) d[r] = vec_from_half(row[r] + i, bf16);
        turn_gradient(t, d);
        for (int r = 0; r < IN; r++) vec_store(b->at + r * plane + i, t[r]);
    }
}
VEC_INLINE void split_gradient_band(const band *b, int64_t tiles, float *v, int64_t v_plane) {
    const int64_t plane = b->columns * b->channels;
    for (int64_t t = 0; t < tiles; t++, v += b->channels)
        for (int r = 0; r < IN; r++) {
            const float *from = b->at + r * plane + t * OUT * b->channels;
            for (int64_t c = 0; c < b->channels; c += VEC_WIDTH) {
                vec d[OUT], turned[IN];
                for (int q = 0; q < OUT; q++) d[q] = vec_load(from + q * b->channels + c);
                turn_gradient(turned, d);
                for (int q = 0; q < IN; q++) vec_store(v + (r * IN + q) * v_plane + c, turned[q]);
            }
        }
}

/* ---- products ---- */

/* c[i][j] of `rows` rows and `vecs` vectors: sums of a[i*a_row + k*a_step] b[k*b_row + j], on top of c if asked. */
VEC_INLINE void product_tile(const int rows, const int vecs, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                             const float *b, int64_t b_row, bool add, float *c, int64_t c_row) {
    vec s[ROWS][2];
    const float *group[ROWS / 3]; /* every third row: the two behind it are reached from there */
    VEC_UNROLL
    for (int g = 0; g < ROWS / 3; g++) group[g] = a + 3 * g * a_row;
    VEC_UNROLL
    for (int i = 0; i < rows; i++) {
        VEC_UNROLL
        for (int j = 0; j < vecs; j++) s[i][j] = (vec){0};
    }
    for (; k > 0; k--, b += b_row) {
        vec terms[2];
        VEC_UNROLL
        for (int j = 0; j < vecs; j++) {
            terms[j] = vec_load(b + j * VEC_WIDTH);
            VEC_HELD(terms[j]);
        }
        VEC_UNROLL
        for (int i = 0; i < rows; i++) {
            vec x = vec_splat(group[i / 3][i % 3 * a_row]);
            if (vecs > 1) VEC_HELD(x);
            VEC_UNROLL
            for (int j = 0; j < vecs; j++) s[i][j] = vec_fma(x, terms[j], s[i][j]);
        }
        VEC_UNROLL
        for (int g = 0; g < ROWS / 3; g++) group[g] += a_step;
    }
    VEC_UNROLL
    for (int i = 0; i < rows; i++, c += c_row) {
        VEC_UNROLL
        for (int j = 0; j < vecs; j++) {
            float *to = c + j * VEC_WIDTH;
            vec_store(to, add ? s[i][j] + vec_load(to) : s[i][j]);
        }
    }
}

typedef void product_tile_fn(int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row,
                             bool add, float *c, int64_t c_row);
#define PRODUCT_TILE(rows, vecs)                                                                                    \
    static void product_tile_##rows##_##vecs(int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b, \
                                             int64_t b_row, bool add, float *c, int64_t c_row) {                    \
        product_tile(rows, vecs, k, a, a_row, a_step, b, b_row, add, c, c_row);                                     \
    }
#define PRODUCT_TILES(rows) PRODUCT_TILE(rows, 1) PRODUCT_TILE(rows, 2)
#define PRODUCT_ROW(rows) {product_tile_##rows##_1, product_tile_##rows##_2}
PRODUCT_TILES(1)
PRODUCT_TILES(2)
PRODUCT_TILES(3)
PRODUCT_TILES(4)
PRODUCT_TILES(5)
PRODUCT_TILES(6)
#if VEC_REGISTERS == 32
PRODUCT_TILES(7)
PRODUCT_TILES(8)
PRODUCT_TILES(9)
PRODUCT_TILES(10)
PRODUCT_TILES(11)
PRODUCT_TILES(12)
#endif
/* clang-format off */
static product_tile_fn *const product_tiles[ROWS + 1][2] = {
    {NULL, NULL}, PRODUCT_ROW(1), PRODUCT_ROW(2), PRODUCT_ROW(3), PRODUCT_ROW(4), PRODUCT_ROW(5), PRODUCT_ROW(6),
#if VEC_REGISTERS == 32
    PRODUCT_ROW(7), PRODUCT_ROW(8), PRODUCT_ROW(9), PRODUCT_ROW(10), PRODUCT_ROW(11), PRODUCT_ROW(12),
#endif
};
/* clang-format on */

/* c[m][n] (+)= a b; n is a multiple of VEC_WIDTH. */
static void product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                    bool add, float *c) {
    const int64_t parts = twi_part_count(m, ROWS);
    for (int64_t j = 0; j < n; j += 2 * VEC_WIDTH) {
        const int vecs = n - j >= 2 * VEC_WIDTH ? 2 : 1;
        for (int64_t p = 0; p < parts; p++) {
            const int64_t i = twi_part_begin(m, parts, p), rows = twi_part_begin(m, parts, p + 1) - i;
            product_tiles[rows][vecs - 1](k, a + i * a_row, a_row, a_step, b + j, n, add, c + i * n + j, n);
        }
    }
}

/* ---- results ---- */

typedef struct results {
    const twi_winograd_shape *shape;
    const float *bias; /* or NULL */
    bool relu;
} results;

/* The results of one tile, at row oy and column ox of image y, of VEC_WIDTH channels from c on. */
VEC_INLINE void store_tile(const results *r, const float *m, int64_t m_plane, uint16_t *y, int64_t oy, int64_t ox,
                           int64_t c, bool bf16) {
    const twi_winograd_shape *s = r->shape;
    const int64_t rows = twi_smaller(OUT, s->out_height - oy), columns = twi_smaller(OUT, s->out_width - ox);
    vec down[OUT][IN];
    VEC_UNROLL
    for (int j = 0; j < IN; j++) {
        vec d[IN], t[OUT];
        for (int i = 0; i < IN; i++) d[i] = vec_load(m + (i * IN + j) * m_plane);
        turn_back(t, d);
        for (int a = 0; a < OUT; a++) down[a][j] = t[a];
    }
    const vec start = r->bias ? vec_load(r->bias + c) : (vec){0};
    for (int64_t a = 0; a < rows; a++) {
        const int64_t to = ((oy + a) * s->out_width + ox) * s->out + c;
        vec t[OUT];
        turn_back(t, down[a]);
        for (int b = 0; b < OUT; b++) {
            if (b >= columns) break;
            vec v = t[b] + start;
            vec_to_half(y + to + b * s->out, r->relu ? vec_relu(v) : v, bf16);
        }
    }
}

/* ---- the convolution ---- */

/* Takes the next so many floats of scratch, whole lines of the cache. */
static float *take(float **scratch, int64_t count) {
    float *taken = *scratch;
    *scratch += (count + 15) / 16 * 16;
    return taken;
}

static band band_of(float **scratch, int64_t width, int64_t columns, int64_t channels) {
    const int64_t row = width * channels, count = IN * columns * channels;
    uint16_t *zeros = (uint16_t *)take(scratch, (row + 1) / 2);
    band b = {.zeros = zeros, .columns = columns, .channels = channels, .at = take(scratch, count)};
    memset(zeros, 0, (size_t)row * sizeof *zeros);
    memset(b.at, 0, (size_t)count * sizeof(float));
    return b;
}

VEC_INLINE void convolve_as(const twi_winograd_shape *s, const uint16_t *x, const float *u, const float *bias,
                            bool relu, uint16_t *y, float *scratch, bool bf16) {
    const tiling t = tiling_of(s);
    const band b = band_of(&scratch, s->width, t.columns * OUT + TAPS - 1, s->in);
    const results r = {s, bias, relu};
    const int64_t image = s->height * s->width * s->in, result = s->out_height * s->out_width * s->out;
    for (int64_t first = 0; first < t.rows; first += t.block) {
        const int64_t rows = twi_smaller(t.block, t.rows - first), tiles = rows * t.columns;
        const int64_t v_plane = twi_winograd_plane(tiles, s->in), m_plane = twi_winograd_plane(tiles, s->out);
        float *v = scratch, *m = scratch + POINTS * v_plane;
        for (int64_t q = 0; q < rows; q++) {
            const int64_t n = (first + q) / t.image_rows, row = (first + q) % t.image_rows;
            read_band(s, x + n * image, row, &b, bf16);
            split_band(&b, t.columns, v + q * t.columns * s->in, v_plane);
        }
        for (int p = 0; p < POINTS; p++)
            product(tiles, s->out, s->in, v + p * v_plane, s->in, 1, u + p * s->in * s->out, false, m + p * m_plane);
        for (int64_t q = 0; q < rows; q++) {
            const int64_t n = (first + q) / t.image_rows, row = (first + q) % t.image_rows;
            uint16_t *to = y + n * result;
            for (int64_t k = 0; k < t.columns; k++)
                for (int64_t c = 0; c < s->out; c += VEC_WIDTH)
                    store_tile(&r, m + (q * t.columns + k) * s->out + c, m_plane, to, row * OUT, k * OUT, c, bf16);
        }
    }
}

static void convolve(const twi_winograd_shape *s, const uint16_t *x, const float *u, const uint16_t *bias, bool relu,
                     uint16_t *y, float *scratch) {
    float *wide = bias ? take(&scratch, s->out) : NULL;
    for (int64_t c = 0; bias && c < s->out; c += VEC_WIDTH) vec_store(wide + c, vec_from_half(bias + c, s->bf16));
    if (s->bf16)
        convolve_as(s, x, u, wide, relu, y, scratch, true);
    else
        convolve_as(s, x, u, wide, relu, y, scratch, false);
}

/* ---- the gradient of the weights ---- */

/* dw of VEC_WIDTH input channels of one output channel. */
VEC_INLINE void store_gradient(const float *sum, int64_t plane, bool add, float *dw, int64_t in) {
    vec down[TAPS][IN];
    for (int j = 0; j < IN; j++) {
        vec d[IN], t[TAPS];
        for (int i = 0; i < IN; i++) d[i] = vec_load(sum + (i * IN + j) * plane);
        turn_gradient_back(t, d);
        for (int a = 0; a < TAPS; a++) down[a][j] = t[a];
    }
    for (int a = 0; a < TAPS; a++) {
        vec t[TAPS];
        turn_gradient_back(t, down[a]);
        for (int b = 0; b < TAPS; b++) {
            float *to = dw + (a * TAPS + b) * in;
            vec_store(to, add ? vec_load(to) + t[b] : t[b]);
        }
    }
}

VEC_INLINE void gradient_as(const twi_winograd_shape *s, const uint16_t *x, const uint16_t *dy, bool add, float *dw,
                            float *scratch, bool bf16) {
    const tiling t = tiling_of(s);
    const band bx = band_of(&scratch, s->width, t.columns * OUT + TAPS - 1, s->in);
    const band by = band_of(&scratch, s->out_width, t.columns * OUT, s->out);
    const int64_t image = s->height * s->width * s->in, result = s->out_height * s->out_width * s->out;
    const int64_t plane = twi_winograd_plane(s->out, s->in);
    float *sums = take(&scratch, POINTS * plane);
    for (int64_t first = 0; first < t.rows; first += t.block) {
        const int64_t rows = twi_smaller(t.block, t.rows - first), tiles = rows * t.columns;
        const int64_t v_plane = twi_winograd_plane(tiles, s->in), z_plane = twi_winograd_plane(tiles, s->out);
        float *v = scratch, *z = scratch + POINTS * v_plane;
        for (int64_t q = 0; q < rows; q++) {
            const int64_t n = (first + q) / t.image_rows, row = (first + q) % t.image_rows;
            read_band(s, x + n * image, row, &bx, bf16);
            split_band(&bx, t.columns, v + q * t.columns * s->in, v_plane);
            read_gradient_band(s, dy + n * result, row, &by, bf16);
            split_gradient_band(&by, t.columns, z + q * t.columns * s->out, z_plane);
        }
        for (int p = 0; p < POINTS; p++)
            product(s->out, s->in, tiles, z + p * z_plane, 1, s->out, v + p * v_plane, first > 0, sums + p * plane);
    }
    for (int64_t o = 0; o < s->out; o++)
        for (int64_t i = 0; i < s->in; i += VEC_WIDTH)
            store_gradient(sums + o * s->in + i, plane, add, dw + o * TAPS * TAPS * s->in + i, s->in);
}

static void gradient(const twi_winograd_shape *s, const uint16_t *x, const uint16_t *dy, bool add, float *dw,
                     float *scratch) {
    if (s->bf16)
        gradient_as(s, x, dy, add, dw, scratch, true);
    else
        gradient_as(s, x, dy, add, dw, scratch, false);
}

const twi_winograd_loops WINOGRAD_LOOPS = {weights, convolve, gradient};

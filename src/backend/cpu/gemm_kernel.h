/* The products of gemm.h, written once; gemm_<isa>.c compiles them as GEMM_RECORD for one instruction set. Halves are
 * widened as they are copied into working order. */
#include "gemm.h"
#include "parts.h"
#include "vec_half.h"
#include "vec_math.h"

#if VEC_REGISTERS == 32
enum { DOT_ROWS = 6, OUTER_ROWS = 8, OUTER_VECTORS = 3 };
#else
enum { DOT_ROWS = 3, OUTER_ROWS = 6, OUTER_VECTORS = 2 };
#endif
/* DOT_CACHED: floats of b that stay in the second-level cache. PACK_FROM: rows of a for which a copy of a panel of b is worth
 * it; 32 and 48 were 5 to 20 % faster without. */
enum { DOT_DEPTH = 1024, DOT_CACHED = 65536, PANEL = OUTER_VECTORS * VEC_WIDTH, PACK_FROM = 64 };

/* ---- dot ---- */

/* What a tile does with its sums: in the first block of k they start from the bias, in others from c; the last may
 * apply relu. */
typedef struct dot_end {
    const float *start;
    int64_t start_row;
    float *c;
    int64_t c_row;
    int columns; /* of 4 */
    bool relu;
} dot_end;

VEC_INLINE void dot_put(quad sum, int row, const dot_end *end) {
    const float *start = end->start + row * end->start_row;
    float *c = end->c + row * end->c_row;
    if (end->columns == 4) {
        sum += quad_load(start);
        quad_store(c, end->relu ? quad_relu(sum) : sum);
        return;
    }
    for (int j = 0; j < end->columns; j++) sum[j] += start[j];
    if (end->relu) sum = quad_relu(sum);
    for (int j = 0; j < end->columns; j++) c[j] = sum[j];
}

/* rows x 4 sums along k, each in the elements of a vector, which are added up at the end. */
VEC_INLINE void dot_tile(const int rows, int64_t k, const float *a, int64_t a_row, const float *const b[4],
                         const dot_end *end) {
    vec s[DOT_ROWS][4];
    VEC_UNROLL
    for (int i = 0; i < rows; i++) {
        VEC_UNROLL
        for (int j = 0; j < 4; j++) s[i][j] = (vec){0};
    }
    int64_t t = 0;
    for (; t + VEC_WIDTH <= k; t += VEC_WIDTH) {
        vec bt[4] = {vec_load(b[0] + t), vec_load(b[1] + t), vec_load(b[2] + t), vec_load(b[3] + t)};
        VEC_UNROLL
        for (int i = 0; i < rows; i++) {
            vec at = vec_load(a + i * a_row + t);
            VEC_UNROLL
            for (int j = 0; j < 4; j++) s[i][j] = vec_fma(at, bt[j], s[i][j]);
        }
    }
    if (t < k) {
        int rest = (int)(k - t);
        VEC_UNROLL
        for (int i = 0; i < rows; i++) {
            vec at = vec_load_part(a + i * a_row + t, rest);
            VEC_UNROLL
            for (int j = 0; j < 4; j++) s[i][j] = vec_fma(at, vec_load_part(b[j] + t, rest), s[i][j]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < rows; i++) dot_put(vec_sum4(s[i]), i, end);
}

typedef void dot_tile_fn(int64_t k, const float *a, int64_t a_row, const float *const b[4], const dot_end *end);
#define DOT_TILE(rows)                                                                             \
    static void dot_tile_##rows(int64_t k, const float *a, int64_t a_row, const float *const b[4], \
                                const dot_end *end) {                                              \
        dot_tile(rows, k, a, a_row, b, end);                                                       \
    }
DOT_TILE(1)
DOT_TILE(2)
DOT_TILE(3)
#if VEC_REGISTERS == 32
DOT_TILE(4)
DOT_TILE(5)
DOT_TILE(6)
#endif
/* clang-format off */
static dot_tile_fn *const dot_tiles[DOT_ROWS + 1] = {
    NULL, dot_tile_1, dot_tile_2, dot_tile_3,
#if VEC_REGISTERS == 32
    dot_tile_4, dot_tile_5, dot_tile_6,
#endif
};
/* clang-format on */

/* All rows of a by columns begin .. stop-1 of c, along one block of k. A tile's rows of a stay in the first-level cache
 * while b passes. */
static void dot_block(int64_t m, int64_t begin, int64_t stop, int64_t k, const float *a, int64_t a_row, const float *b,
                      int64_t b_row, const float *bias, bool first, bool relu, float *c, int64_t c_row) {
    static const float zeros[4];
    const int64_t tiles = twi_part_count(m, DOT_ROWS);
    for (int64_t p = 0; p < tiles; p++) {
        const int64_t i = twi_part_begin(m, tiles, p), rows = twi_part_begin(m, tiles, p + 1) - i;
        for (int64_t j = begin; j < stop; j += 4) {
            const int columns = (int)twi_smaller(4, stop - j);
            const float *start = bias ? bias + j : zeros, *rows_of_b[4];
            float *to = c + i * c_row + j;
            const dot_end end = {first ? start : to, first ? 0 : c_row, to, c_row, columns, relu};
            for (int q = 0; q < 4; q++) rows_of_b[q] = b + (j + twi_smaller(q, columns - 1)) * b_row;
            dot_tiles[rows](k, a + i * a_row, a_row, rows_of_b, &end);
        }
    }
}

static void dot(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row,
                const float *bias, bool add, bool relu, float *c, int64_t c_row) {
    for (int64_t from = 0; from < k || from == 0; from += DOT_DEPTH) {
        const int64_t depth = twi_smaller(DOT_DEPTH, k - from);
        const int64_t columns = 4 * twi_larger(1, DOT_CACHED / 4 / twi_larger(1, depth)); /* their b: in the cache */
        for (int64_t j = 0; j < n; j += columns)
            dot_block(m, j, twi_smaller(n, j + columns), depth, a + from, a_row, b + from, b_row, bias,
                      from == 0 && !add, relu && from + DOT_DEPTH >= k, c, c_row);
    }
}

/* ---- transpose ---- */

/* Four columns of as many rows as a vector has elements. */
VEC_INLINE void transpose_columns(const float *a, int64_t a_row, float *c, int64_t c_row) {
    vec v[4];
    vec_load_columns(v, a, a_row);
    VEC_UNROLL
    for (int r = 0; r < 4; r++) vec_store(c + r * c_row, v[r]);
}

/* Four rows of as many columns. */
VEC_INLINE void transpose_rows(const float *a, int64_t a_row, float *c, int64_t c_row) {
    vec v[4];
    VEC_UNROLL
    for (int r = 0; r < 4; r++) v[r] = vec_load(a + r * a_row);
    vec_store_columns(c, c_row, v);
}

/* In blocks, of which the last ones may overlap those before. */
static void transpose(int64_t m, int64_t n, const float *a, int64_t a_row, float *c, int64_t c_row) {
    const int64_t high = m >= VEC_WIDTH ? VEC_WIDTH : 4, wide = m >= VEC_WIDTH ? 4 : VEC_WIDTH;
    if (m < high || n < wide) {
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) c[j * c_row + i] = a[i * a_row + j];
        return;
    }
    for (int64_t row = 0; row < m; row += high)
        for (int64_t column = 0; column < n; column += wide) {
            const int64_t i = twi_smaller(row, m - high), j = twi_smaller(column, n - wide);
            (high > wide ? transpose_columns : transpose_rows)(a + i * a_row + j, a_row, c + j * c_row + i, c_row);
        }
}

/* ---- outer ---- */

/* What becomes of sums: they are stored, added to what c holds, or change it as a weight. */
typedef struct outer_end {
    bool add;
    const twi_gemm_update *update; /* NULL: there is none */
    const float *base;             /* the c that its momentum begins at */
    float *squares;                /* of what is stored: a vector of sums for every row of c; NULL: nobody wants them */
} outer_end;

VEC_INLINE void outer_put(vec sum, const outer_end *end, float *c, int lanes) {
    if (!end->update) {
        vec_store_some(c, end->add ? sum + vec_load_some(c, lanes) : sum, lanes);
        return;
    }
    const twi_gemm_update *u = end->update;
    const vec weight = vec_load_some(c, lanes), momentum = vec_splat(u->momentum);
    vec step = vec_fma(vec_splat(u->decay), weight, vec_splat(u->factor) * sum);
    if (u->buffer) {
        float *buffer = u->buffer + (c - end->base);
        vec b = momentum * vec_load_some(buffer, lanes) + step;
        vec_store_some(buffer, b, lanes);
        step = u->nesterov ? step + momentum * b : b;
    }
    vec_store_some(c, weight - vec_splat(u->rate) * step, lanes);
}

/* Stores a sum, or what c holds with it, and returns the squares so far with that one's. */
VEC_INLINE vec outer_square(vec sum, vec squares, bool add, float *c, int lanes) {
    if (add) sum += vec_load_some(c, lanes);
    vec_store_some(c, sum, lanes);
    return vec_fma(sum, sum, squares);
}

/* Sums of row i of what `end` is of, of whose last vector so many lanes are there. */
VEC_INLINE void outer_row(const int vectors, const vec *s, const int lanes, const outer_end *end, int64_t i, float *c) {
    const int last = vectors - 1;
    if (end->squares) {
        float *kept = end->squares + i * VEC_WIDTH;
        vec squares = vec_load(kept);
        VEC_UNROLL
        for (int j = 0; j < last; j++) squares = outer_square(s[j], squares, end->add, c + j * VEC_WIDTH, VEC_WIDTH);
        vec_store(kept, outer_square(s[last], squares, end->add, c + last * VEC_WIDTH, lanes));
        return;
    }
    VEC_UNROLL
    for (int j = 0; j < last; j++) outer_put(s[j], end, c + j * VEC_WIDTH, VEC_WIDTH);
    outer_put(s[last], end, c + last * VEC_WIDTH, lanes);
}

/* rows x vectors sums, kept in registers over all of k. rest: of the last vector only so many columns are there; 0:
 * all. */
VEC_INLINE void outer_tile(const int rows, const int vectors, const int rest, int64_t k, const float *a, int64_t a_row,
                           int64_t a_step, const float *b, int64_t b_row, const outer_end *end, float *c,
                           int64_t c_row) {
    const int last = VEC_WIDTH * (vectors - 1);
    vec s[OUTER_ROWS][OUTER_VECTORS], v[OUTER_VECTORS];
    VEC_UNROLL
    for (int i = 0; i < rows; i++) {
        VEC_UNROLL
        for (int j = 0; j < vectors; j++) s[i][j] = (vec){0};
    }
    for (; k > 0; k--, a += a_step, b += b_row) {
        VEC_UNROLL
        for (int j = 0; j < vectors - 1; j++) v[j] = vec_load(b + j * VEC_WIDTH);
        v[vectors - 1] = rest ? vec_load_part(b + last, rest) : vec_load(b + last);
        VEC_UNROLL
        for (int i = 0; i < rows; i++) {
            vec x = vec_splat(a[i * a_row]);
            VEC_UNROLL
            for (int j = 0; j < vectors; j++) s[i][j] = vec_fma(x, v[j], s[i][j]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < rows; i++)
        outer_row(vectors, s[i], rest ? rest : VEC_WIDTH, end, i, c + i * c_row);
}

typedef void outer_tile_fn(int rest, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                           int64_t b_row, const outer_end *end, float *c, int64_t c_row);
#define OUTER_TILE(rows, vectors)                                                                                 \
    static void outer_tile_##rows##_##vectors(int rest, int64_t k, const float *a, int64_t a_row, int64_t a_step, \
                                              const float *b, int64_t b_row, const outer_end *end, float *c,      \
                                              int64_t c_row) {                                                    \
        (void)rest;                                                                                               \
        outer_tile(rows, vectors, 0, k, a, a_row, a_step, b, b_row, end, c, c_row);                               \
    }
#define OUTER_EDGE(rows)                                                                                              \
    static void outer_edge_##rows(int rest, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b, \
                                  int64_t b_row, const outer_end *end, float *c, int64_t c_row) {                     \
        outer_tile(rows, 1, rest, k, a, a_row, a_step, b, b_row, end, c, c_row);                                      \
    }
#if VEC_REGISTERS == 32
#define OUTER_TILES(rows) OUTER_EDGE(rows) OUTER_TILE(rows, 1) OUTER_TILE(rows, 2) OUTER_TILE(rows, 3)
#define OUTER_ROW(rows) \
    { outer_edge_##rows, outer_tile_##rows##_1, outer_tile_##rows##_2, outer_tile_##rows##_3 }
#else
#define OUTER_TILES(rows) OUTER_EDGE(rows) OUTER_TILE(rows, 1) OUTER_TILE(rows, 2)
#define OUTER_ROW(rows) \
    { outer_edge_##rows, outer_tile_##rows##_1, outer_tile_##rows##_2 }
#endif
OUTER_TILES(1)
OUTER_TILES(2)
OUTER_TILES(3)
OUTER_TILES(4)
OUTER_TILES(5)
OUTER_TILES(6)
#if VEC_REGISTERS == 32
OUTER_TILES(7)
OUTER_TILES(8)
#endif
/* clang-format off */
/* By rows and whole vectors; 0 vectors: a part of one. */
static outer_tile_fn *const outer_tiles[OUTER_ROWS + 1][OUTER_VECTORS + 1] = {
    {NULL}, OUTER_ROW(1), OUTER_ROW(2), OUTER_ROW(3), OUTER_ROW(4), OUTER_ROW(5), OUTER_ROW(6),
#if VEC_REGISTERS == 32
    OUTER_ROW(7), OUTER_ROW(8),
#endif
};
/* clang-format on */

/* What one call of `outer` needs to know of its first matrix: f32 as it lies, or packed. */
typedef struct left_matrix {
    const float *data;
    int64_t row, step; /* row 0: packed, for every k a tile's rows side by side */
} left_matrix;

/* Elements i and on of a matrix of this type. */
VEC_INLINE const void *elements(const void *matrix, int64_t i, tw_dtype dtype) {
    return (const unsigned char *)matrix + i * bytes_of(dtype);
}
VEC_INLINE float element(const void *matrix, int64_t i, tw_dtype dtype) {
    if (dtype == TW_F32) return ((const float *)matrix)[i];
    const uint16_t half = ((const uint16_t *)matrix)[i];
#if defined(__F16C__)
    if (dtype == TW_F16) return _cvtsh_ss(half); /* without a branch, which tiny gradients would have mispredicted */
#else
    if (dtype == TW_F16) return twi_f16_to_f32(half);
#endif
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Copies rows of a block into working order: tile after tile, for every k the tile's rows side by side. */
VEC_INLINE void pack_a(int64_t m, int64_t k, const void *a, int64_t a_row, int64_t a_step, float *to, tw_dtype dtype) {
    int64_t tiles = twi_part_count(m, OUTER_ROWS);
    for (int64_t p = 0; p < tiles; p++) {
        int64_t i = twi_part_begin(m, tiles, p), end = twi_part_begin(m, tiles, p + 1);
        for (int64_t t = 0; t < k; t++) {
            for (int64_t r = i; r < end; r++) *to++ = element(a, r * a_row + t * a_step, dtype);
        }
    }
}

/* Copies `columns` columns of b, filled up with zeros to a panel. */
VEC_INLINE void pack_b(int64_t k, int64_t columns, const void *b, int64_t b_row, float *to, tw_dtype dtype) {
    for (int64_t t = 0; t < k; t++, b = elements(b, b_row, dtype), to += PANEL) {
        if (columns == PANEL) {
            VEC_UNROLL
            for (int j = 0; j < PANEL; j += VEC_WIDTH) vec_store(to + j, load_real(dtype, elements(b, j, dtype)));
        } else {
            for (int64_t j = 0; j < PANEL; j++) to[j] = j < columns ? element(b, j, dtype) : 0;
        }
    }
}

/* Up to a panel of columns of a block. */
static void outer_panel(int64_t m, int64_t columns, int64_t k, const left_matrix *a, const float *b, int64_t b_row,
                        const outer_end *end, float *c, int64_t c_row) {
    const int64_t tiles = twi_part_count(m, OUTER_ROWS);
    const int vectors = (int)(columns / VEC_WIDTH), rest = (int)(columns % VEC_WIDTH);
    for (int64_t p = 0; p < tiles; p++) {
        const int64_t i = twi_part_begin(m, tiles, p), rows = twi_part_begin(m, tiles, p + 1) - i;
        const float *from = a->data + i * (a->row ? a->row : k);
        const int64_t row = a->row ? a->row : 1, step = a->row ? a->step : rows;
        float *to = c + i * c_row;
        outer_end own = *end;
        if (own.squares) own.squares += i * VEC_WIDTH;
        if (vectors) outer_tiles[rows][vectors](0, k, from, row, step, b, b_row, &own, to, c_row);
        if (rest)
            outer_tiles[rows][0](rest, k, from, row, step, b + vectors * VEC_WIDTH, b_row, &own,
                                 to + vectors * VEC_WIDTH, c_row);
    }
}

/* One block of rows and of k: panel by panel of columns. Many rows are worth a copy of the panel. */
VEC_INLINE void outer_block(int64_t m, int64_t n, int64_t k, const left_matrix *a, const void *b, int64_t b_row,
                            const outer_end *end, float *c, int64_t c_row, float *panel, tw_dtype dtype) {
    for (int64_t j = 0; j < n; j += PANEL) {
        const int64_t columns = twi_smaller(PANEL, n - j);
        const void *columns_of_b = elements(b, j, dtype);
        int64_t step = b_row;
        if (dtype != TW_F32 || m >= PACK_FROM) {
            pack_b(k, columns, columns_of_b, b_row, panel, dtype);
            columns_of_b = panel, step = PANEL;
        }
        outer_panel(m, columns, k, a, columns_of_b, step, end, c + j, c_row);
    }
}

VEC_INLINE void outer_of(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, int64_t a_step, const void *b,
                         int64_t b_row, const outer_end *end, float *c, int64_t c_row, float *scratch, tw_dtype dtype) {
    int64_t blocks = twi_part_count(m, TWI_GEMM_ROWS), depths = twi_part_count(k, TWI_GEMM_DEPTH);
    for (int64_t q = 0; q < depths; q++) {
        int64_t t = twi_part_begin(k, depths, q), depth = twi_part_begin(k, depths, q + 1) - t;
        for (int64_t p = 0; p < blocks; p++) {
            int64_t i = twi_part_begin(m, blocks, p), rows = twi_part_begin(m, blocks, p + 1) - i;
            float *panel = scratch, *packed = scratch + depth * TWI_GEMM_COLUMNS;
            const void *block = elements(a, i * a_row + t * a_step, dtype);
            left_matrix left = {block, a_row, a_step};
            if (dtype != TW_F32) {
                pack_a(rows, depth, block, a_row, a_step, packed, dtype);
                left = (left_matrix){packed, 0, 0};
            }
            const outer_end own = {end->add || q > 0, end->update, end->base,
                                   end->squares && q == depths - 1 ? end->squares + i * VEC_WIDTH : NULL};
            outer_block(rows, n, depth, &left, elements(b, t * b_row, dtype), b_row, &own, c + i * c_row, c_row, panel,
                        dtype);
        }
    }
}

static void outer(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                  int64_t b_row, bool add, float *c, int64_t c_row, float *scratch) {
    outer_of(m, n, k, a, a_row, a_step, b, b_row, &(outer_end){.add = add}, c, c_row, scratch, TW_F32);
}

#include "gemm_sparse_kernel.h"

static void outer_sparse(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                         int64_t b_row, bool add, float *c, int64_t c_row, float *scratch) {
    outer_sparse_of(m, n, k, a, a_row, a_step, b, b_row, &(outer_end){.add = add}, c, c_row, scratch);
}

static void outer_squares(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                          const float *b, int64_t b_row, float *c, int64_t c_row, float *squares, float *scratch) {
    enum { COLUMNS = 32 * PANEL }; /* squares of so many are summed in f32, in each element of a vector at most 96 */
    float *sums = scratch + twi_gemm_sparse_scratch_of(m, n, k);
    double total[TWI_GEMM_ROWS];
    for (int64_t i = 0, rows; i < m; i += rows) {
        rows = twi_smaller(TWI_GEMM_ROWS, m - i);
        for (int64_t r = 0; r < rows; r++) total[r] = 0;
        for (int64_t j = 0; j < n; j += COLUMNS) {
            memset(sums, 0, (size_t)rows * VEC_WIDTH * sizeof *sums);
            outer_sparse_of(rows, twi_smaller(COLUMNS, n - j), k, a + i * a_row, a_row, a_step, b + j, b_row,
                            &(outer_end){.squares = sums}, c + i * c_row + j, c_row, scratch);
            for (int64_t r = 0; r < rows; r++) total[r] += (double)vec_sum(vec_load(sums + r * VEC_WIDTH));
        }
        for (int64_t r = 0; r < rows; r++) squares[i + r] = (float)total[r];
    }
}

static void outer_update(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                         int64_t b_row, const twi_gemm_update *update, float *c, int64_t c_row, float *scratch) {
    const outer_end end = {.update = update, .base = c};
    outer_sparse_of(m, n, k, a, a_row, a_step, b, b_row, &end, c, c_row, scratch);
}

static void outer_halves(tw_dtype half, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t a_row,
                         int64_t a_step, const uint16_t *b, int64_t b_row, bool add, float *c, int64_t c_row,
                         float *scratch) {
    if (half == TW_BF16)
        outer_of(m, n, k, a, a_row, a_step, b, b_row, &(outer_end){.add = add}, c, c_row, scratch, TW_BF16);
    else
        outer_of(m, n, k, a, a_row, a_step, b, b_row, &(outer_end){.add = add}, c, c_row, scratch, TW_F16);
}

const twi_gemm GEMM_RECORD = {GEMM_ISA, dot, outer, outer_sparse, outer_squares, outer_update, transpose, outer_halves};

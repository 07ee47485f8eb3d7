/* The products of gemm.h, written once; gemm_<isa>.c compiles them as GEMM_RECORD for one instruction set. Halves are
 * widened as they are copied into working order. */
#include "gemm.h"
#include "parts.h"
#include "vec_half.h"

#if VEC_REGISTERS == 32
enum { DOT_ROWS = 6, OUTER_ROWS = 12 };
#else
enum { DOT_ROWS = 3, OUTER_ROWS = 6 };
#endif
enum { DOT_DEPTH = 1024, PANEL = 2 * VEC_WIDTH, PACK_FROM = 32 };

/* ---- dot ---- */

/* rows x 4 sums along k, each in the elements of a vector, which are added up at the end. */
VEC_INLINE void dot_tile(const int rows, int64_t k, const float *a, int64_t a_row, const float *const b[4],
                         quad sum[]) {
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
    for (int i = 0; i < rows; i++) sum[i] = vec_sum4(s[i]);
}

typedef void dot_tile_fn(int64_t k, const float *a, int64_t a_row, const float *const b[4], quad sum[]);
#define DOT_TILE(rows)                                                                                           \
    static void dot_tile_##rows(int64_t k, const float *a, int64_t a_row, const float *const b[4], quad sum[]) { \
        dot_tile(rows, k, a, a_row, b, sum);                                                                     \
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

/* What a block of k does with its sums: the first starts from the bias, the others from c, the last may apply relu. */
static void dot_put(const quad *sum, int64_t rows, int columns, const float *start, int64_t start_row, bool relu,
                    float *c, int64_t c_row) {
    for (int64_t r = 0; r < rows; r++, c += c_row, start += start_row) {
        quad value = sum[r];
        if (columns == 4) {
            value += quad_load(start);
            quad_store(c, relu ? quad_relu(value) : value);
        } else {
            for (int j = 0; j < columns; j++) value[j] += start[j];
            if (relu) value = quad_relu(value);
            for (int j = 0; j < columns; j++) c[j] = value[j];
        }
    }
}

static void dot(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row,
                const float *bias, bool relu, float *c, int64_t c_row) {
    static const float zeros[4];
    int64_t tiles = twi_part_count(m, DOT_ROWS);
    for (int64_t from = 0; from < k || from == 0; from += DOT_DEPTH) {
        bool first = from == 0, last = from + DOT_DEPTH >= k;
        for (int64_t j = 0; j < n; j += 4) {
            int columns = (int)twi_smaller(4, n - j);
            const float *start = bias ? bias + j : zeros, *rows_of_b[4];
            for (int q = 0; q < 4; q++) rows_of_b[q] = b + (j + twi_smaller(q, columns - 1)) * b_row + from;
            for (int64_t p = 0; p < tiles; p++) {
                int64_t i = twi_part_begin(m, tiles, p), rows = twi_part_begin(m, tiles, p + 1) - i;
                float *to = c + i * c_row + j;
                quad sum[DOT_ROWS];
                dot_tiles[rows](twi_smaller(DOT_DEPTH, k - from), a + i * a_row + from, a_row, rows_of_b, sum);
                dot_put(sum, rows, columns, first ? start : to, first ? 0 : c_row, relu && last, to, c_row);
            }
        }
    }
}

/* ---- outer ---- */

/* rows x PANEL sums, kept in registers over all of k. a holds the rows side by side for every k. */
VEC_INLINE void outer_tile(const int rows, int64_t k, const float *a, const float *b, int64_t b_row, bool add, float *c,
                           int64_t c_row) {
    vec s[OUTER_ROWS][2];
    VEC_UNROLL
    for (int i = 0; i < rows; i++) s[i][0] = s[i][1] = (vec){0};
    for (; k > 0; k--, a += rows, b += b_row) {
        vec b0 = vec_load(b), b1 = vec_load(b + VEC_WIDTH);
        VEC_UNROLL
        for (int i = 0; i < rows; i++) {
            vec x = vec_splat(a[i]);
            s[i][0] = vec_fma(x, b0, s[i][0]);
            s[i][1] = vec_fma(x, b1, s[i][1]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < rows; i++, c += c_row) {
        vec_store(c, add ? s[i][0] + vec_load(c) : s[i][0]);
        vec_store(c + VEC_WIDTH, add ? s[i][1] + vec_load(c + VEC_WIDTH) : s[i][1]);
    }
}

typedef void outer_tile_fn(int64_t k, const float *a, const float *b, int64_t b_row, bool add, float *c, int64_t c_row);
#define OUTER_TILE(rows)                                                                                        \
    static void outer_tile_##rows(int64_t k, const float *a, const float *b, int64_t b_row, bool add, float *c, \
                                  int64_t c_row) {                                                              \
        outer_tile(rows, k, a, b, b_row, add, c, c_row);                                                        \
    }
OUTER_TILE(1)
OUTER_TILE(2)
OUTER_TILE(3)
OUTER_TILE(4)
OUTER_TILE(5)
OUTER_TILE(6)
#if VEC_REGISTERS == 32
OUTER_TILE(7)
OUTER_TILE(8)
OUTER_TILE(9)
OUTER_TILE(10)
OUTER_TILE(11)
OUTER_TILE(12)
#endif
/* clang-format off */
static outer_tile_fn *const outer_tiles[OUTER_ROWS + 1] = {
    NULL, outer_tile_1, outer_tile_2, outer_tile_3, outer_tile_4, outer_tile_5, outer_tile_6,
#if VEC_REGISTERS == 32
    outer_tile_7, outer_tile_8, outer_tile_9, outer_tile_10, outer_tile_11, outer_tile_12,
#endif
};
/* clang-format on */

/* Elements i and on of a matrix of this type. */
VEC_INLINE const void *elements(const void *matrix, int64_t i, tw_dtype dtype) {
    return (const unsigned char *)matrix + i * (dtype == TW_F32 ? 4 : 2);
}
VEC_INLINE float element(const void *matrix, int64_t i, tw_dtype dtype) {
    if (dtype == TW_F32) return ((const float *)matrix)[i];
    const uint16_t half = ((const uint16_t *)matrix)[i];
    if (dtype == TW_F16) return twi_f16_to_f32(half);
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
VEC_INLINE vec vector_of(const void *matrix, int64_t i, tw_dtype dtype) {
    if (dtype == TW_F32) return vec_load((const float *)matrix + i);
    return vec_from_half((const uint16_t *)matrix + i, dtype == TW_BF16);
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
            vec_store(to, vector_of(b, 0, dtype));
            vec_store(to + VEC_WIDTH, vector_of(b, VEC_WIDTH, dtype));
        } else {
            for (int64_t j = 0; j < PANEL; j++) to[j] = j < columns ? element(b, j, dtype) : 0;
        }
    }
}

/* One block of rows and of k, its rows packed: panel by panel of columns. Many rows are worth a copy of the panel. */
VEC_INLINE void outer_block(int64_t m, int64_t n, int64_t k, const float *a, const void *b, int64_t b_row, bool add,
                            float *c, int64_t c_row, float *panel, tw_dtype dtype) {
    int64_t tiles = twi_part_count(m, OUTER_ROWS);
    for (int64_t j = 0; j < n; j += PANEL) {
        int64_t columns = twi_smaller(PANEL, n - j);
        const void *columns_of_b = elements(b, j, dtype);
        int64_t step = b_row;
        if (dtype != TW_F32 || m >= PACK_FROM || columns < PANEL) {
            pack_b(k, columns, columns_of_b, b_row, panel, dtype);
            columns_of_b = panel, step = PANEL;
        }
        for (int64_t p = 0; p < tiles; p++) {
            int64_t i = twi_part_begin(m, tiles, p), rows = twi_part_begin(m, tiles, p + 1) - i;
            float *to = c + i * c_row + j;
            if (columns == PANEL) {
                outer_tiles[rows](k, a + i * k, columns_of_b, step, add, to, c_row);
                continue;
            }
            float edge[OUTER_ROWS * PANEL];
            outer_tiles[rows](k, a + i * k, columns_of_b, step, false, edge, PANEL);
            for (int64_t r = 0; r < rows; r++) {
                for (int64_t q = 0; q < columns; q++)
                    to[r * c_row + q] = edge[r * PANEL + q] + (add ? to[r * c_row + q] : 0);
            }
        }
    }
}

VEC_INLINE void outer_of(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, int64_t a_step, const void *b,
                         int64_t b_row, bool add, float *c, int64_t c_row, float *scratch, tw_dtype dtype) {
    int64_t blocks = twi_part_count(m, TWI_GEMM_ROWS), depths = twi_part_count(k, TWI_GEMM_DEPTH);
    for (int64_t q = 0; q < depths; q++) {
        int64_t t = twi_part_begin(k, depths, q), depth = twi_part_begin(k, depths, q + 1) - t;
        for (int64_t p = 0; p < blocks; p++) {
            int64_t i = twi_part_begin(m, blocks, p), rows = twi_part_begin(m, blocks, p + 1) - i;
            float *panel = scratch, *packed = scratch + depth * TWI_GEMM_COLUMNS;
            pack_a(rows, depth, elements(a, i * a_row + t * a_step, dtype), a_row, a_step, packed, dtype);
            outer_block(rows, n, depth, packed, elements(b, t * b_row, dtype), b_row, add || q > 0, c + i * c_row,
                        c_row, panel, dtype);
        }
    }
}

static void outer(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                  int64_t b_row, bool add, float *c, int64_t c_row, float *scratch) {
    outer_of(m, n, k, a, a_row, a_step, b, b_row, add, c, c_row, scratch, TW_F32);
}

static void outer_halves(tw_dtype half, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t a_row,
                         int64_t a_step, const uint16_t *b, int64_t b_row, bool add, float *c, int64_t c_row,
                         float *scratch) {
    if (half == TW_BF16)
        outer_of(m, n, k, a, a_row, a_step, b, b_row, add, c, c_row, scratch, TW_BF16);
    else
        outer_of(m, n, k, a, a_row, a_step, b, b_row, add, c, c_row, scratch, TW_F16);
}

const twi_gemm GEMM_RECORD = {GEMM_ISA, dot, outer, outer_halves};

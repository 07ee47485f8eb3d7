/* Products of row-major matrices in f32, for one thread, in versions by instruction set. What they are used for is in
 * gemm_impls.c, features_impls.c and conv_patches.c. The order of every sum depends on its length alone, not on the other sizes. */
#ifndef TWI_CPU_GEMM_H
#define TWI_CPU_GEMM_H

#include "cpu.h"
#include "backend/attrs.h"

/* What stochastic gradient descent does to a weight of which a sum is the gradient (op_sgd.c). */
typedef struct twi_gemm_update {
    float rate, decay, momentum, factor;
    bool nesterov;
    float *buffer; /* of the momentum, laid out as the weights; NULL: there is none */
} twi_gemm_update;

typedef struct twi_gemm {
    const char *isa; /* "avx2" */
    /* Both matrices run along k in memory: c[i][j] = sum_k a[i*a_row + k] b[j*b_row + k], plus bias[j] unless NULL, or
     * on top of what c holds; relu if asked. */
    void (*dot)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row,
                const float *bias, bool add, bool relu, float *c, int64_t c_row);
    /* b runs along j, a anyhow: c[i][j] = sum_k a[i*a_row + k*a_step] b[k*b_row + j]; add: on top of what c holds.
     * scratch: floats as twi_gemm_outer_scratch or, of this m and k at most, twi_gemm_outer_scratch_of says. */
    void (*outer)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                  int64_t b_row, bool add, float *c, int64_t c_row, float *scratch);
    /* The same sums where a, which runs along i or k, may have many zeros: these are left out, so 0 times what is no
     * number is 0 then. scratch: twi_gemm_sparse_scratch_of floats. */
    void (*outer_sparse)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                         int64_t b_row, bool add, float *c, int64_t c_row, float *scratch);
    /* Of such an a, and squares[i] = sum_j c[i][j]^2: of so many columns in f32 as lose nothing, of all in double.
     * scratch: twi_gemm_squares_scratch_of floats. */
    void (*outer_squares)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                          const float *b, int64_t b_row, float *c, int64_t c_row, float *squares, float *scratch);
    /* Of such an a, and the sums change c, which holds weights, instead: k at most TWI_GEMM_DEPTH. */
    void (*outer_update)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                         int64_t b_row, const twi_gemm_update *update, float *c, int64_t c_row, float *scratch);
    /* c[j][i] = a[i][j], of m rows and n columns of a. */
    void (*transpose)(int64_t m, int64_t n, const float *a, int64_t a_row, float *c, int64_t c_row);
    /* outer of halves, widened. */
    void (*outer_halves)(tw_dtype half, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t a_row,
                         int64_t a_step, const uint16_t *b, int64_t b_row, bool add, float *c, int64_t c_row,
                         float *scratch);
} twi_gemm;

extern const twi_gemm twi_gemm_baseline, twi_gemm_avx2, twi_gemm_avx512;

/* The version for an instruction set. */
const twi_gemm *twi_gemm_for(twi_isa isa);

/* Blocks of `outer`: sums of at most so many terms, so many rows of c, with a and b copied to scratch in working
 * order. */
enum { TWI_GEMM_DEPTH = 256, TWI_GEMM_ROWS = 192, TWI_GEMM_COLUMNS = 48 };
static inline size_t twi_gemm_outer_scratch(void) { return TWI_GEMM_DEPTH * (TWI_GEMM_ROWS + TWI_GEMM_COLUMNS); }
static inline size_t twi_gemm_outer_scratch_of(int64_t m, int64_t k) {
    const int64_t rows = m < TWI_GEMM_ROWS ? m : TWI_GEMM_ROWS, depth = k < TWI_GEMM_DEPTH ? k : TWI_GEMM_DEPTH;
    return (size_t)(depth * (rows + TWI_GEMM_COLUMNS));
}
/* Of products that leave out zeros: rows of c at once; rows whose zeros are counted together, so that ranges do not change
 * what is left out; terms of a sum and vectors of a row of b, which stay in the first-level cache; and the least terms
 * and columns for which it is worth it. */
enum {
    TWI_SPARSE_ROWS = 16,
    TWI_SPARSE_GROUP = TWI_DENSE_GRAIN,
    TWI_SPARSE_DEPTH = 64,
    TWI_SPARSE_VECTORS = 7,
    TWI_SPARSE_TERMS = 32,
    TWI_SPARSE_COLUMNS = 192
};
/* What gemm_sparse_kernel.h lays out, for the widest vectors, or `outer`, which has it in turn. */
static inline size_t twi_gemm_sparse_scratch_of(int64_t m, int64_t n, int64_t k) {
    enum { WIDTH = 16, PANEL = TWI_SPARSE_VECTORS * WIDTH };
    const int64_t rows = m < TWI_SPARSE_ROWS ? m : TWI_SPARSE_ROWS, depth = k < TWI_GEMM_DEPTH ? k : TWI_GEMM_DEPTH;
    const int64_t floats = 2 * rows * (depth + WIDTH) + TWI_SPARSE_GROUP * depth + (rows + TWI_SPARSE_DEPTH) * PANEL;
    const size_t outer = twi_gemm_outer_scratch_of(m, k), sparse = (size_t)(floats + WIDTH);
    return k < TWI_SPARSE_TERMS || n < TWI_SPARSE_COLUMNS || outer > sparse ? outer : sparse;
}
/* With a vector of sums, of the widest kind, for every row of a block. */
static inline size_t twi_gemm_squares_scratch_of(int64_t m, int64_t n, int64_t k) {
    return twi_gemm_sparse_scratch_of(m, n, k) + (size_t)(16 * (m < TWI_GEMM_ROWS ? m : TWI_GEMM_ROWS));
}

#endif

/* Products of matrices on every instruction set, dense layers and convolutions made of them: against sums in double, on
 * sizes around every block, with strange numbers, and the promise that a sum's bits depend on its length alone. */
#include "conv_check.h"
#include "check.h"
#include "backend/cpu/gemm.h"
#include "base/half.h"

#include <math.h>

typedef struct matrix {
    int64_t rows, columns, row; /* row: floats from one row to the next */
    float *data;
} matrix;

/* Rows a little apart, at an address that is a multiple of 4 bytes only. */
static matrix matrix_of(int64_t rows, int64_t columns) {
    int64_t row = columns + rows % 3;
    return (matrix){rows, columns, row, impl_floats(rows * row + 1) + 1};
}

/* |got - want| within the rounding of the sum. */
static void check_sum(const char *what, int64_t m, int64_t n, int64_t k, double got, double want, double size) {
    if (fabs(got - want) <= 2e-6 * size) return;
    fail_msg("%s m %d n %d k %d: %.9g, expected %.9g", what, (int)m, (int)n, (int)k, got, want);
}

/* What lies between rows of c must be left alone. */
static void check_gaps(matrix c, const float *before) {
    for (int64_t i = 0; i < c.rows; i++)
        for (int64_t j = c.columns; j < c.row && i * c.row + j < c.rows * c.row; j++)
            assert_true(c.data[i * c.row + j] == before[i * c.row + j]);
}

static float *copy_of(matrix c) {
    float *copy = impl_floats(c.rows * c.row);
    memcpy(copy, c.data, (size_t)(c.rows * c.row) * sizeof *copy);
    return copy;
}

static void check_dot(const twi_gemm *gemm, int64_t m, int64_t n, int64_t k, bool with_bias, bool add, bool relu) {
    matrix a = matrix_of(m, k), b = matrix_of(n, k), c = matrix_of(m, n);
    float *bias = with_bias ? impl_floats(n + 1) + 1 : NULL, *before = copy_of(c);
    gemm->dot(m, n, k, a.data, a.row, b.data, b.row, bias, add, relu, c.data, c.row);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double want = add ? before[i * c.row + j] : bias ? bias[j] : 0, size = fabs(want);
            for (int64_t t = 0; t < k; t++) {
                double product = (double)a.data[i * a.row + t] * b.data[j * b.row + t];
                want += product, size += fabs(product);
            }
            check_sum("dot", m, n, k, c.data[i * c.row + j], relu && want < 0 ? 0 : want, size);
        }
    check_gaps(c, before);
    impl_release();
}

static void check_outer(const twi_gemm *gemm, int64_t m, int64_t n, int64_t k, bool turned, bool add) {
    matrix a = turned ? matrix_of(k, m) : matrix_of(m, k), b = matrix_of(k, n), c = matrix_of(m, n);
    int64_t a_row = turned ? 1 : a.row, a_step = turned ? a.row : 1;
    float *before = copy_of(c), *scratch = impl_floats((int64_t)twi_gemm_outer_scratch());
    gemm->outer(m, n, k, a.data, a_row, a_step, b.data, b.row, add, c.data, c.row, scratch);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double want = add ? before[i * c.row + j] : 0, size = fabs(want);
            for (int64_t t = 0; t < k; t++) {
                double product = (double)a.data[i * a_row + t * a_step] * b.data[t * b.row + j];
                want += product, size += fabs(product);
            }
            check_sum("outer", m, n, k, c.data[i * c.row + j], want, size);
        }
    check_gaps(c, before);
    impl_release();
}

static void check_transpose(const twi_gemm *gemm, int64_t m, int64_t n) {
    matrix a = matrix_of(m, n), c = matrix_of(n, m);
    float *before = copy_of(c);
    gemm->transpose(m, n, a.data, a.row, c.data, c.row);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) assert_true(c.data[j * c.row + i] == a.data[i * a.row + j]);
    check_gaps(c, before);
    impl_release();
}

/* Of halves, widened: the bits of the same product in f32, which copies its columns anyhow. */
static void check_outer_halves(const twi_gemm *gemm, tw_dtype half, int64_t m, int64_t n, int64_t k, bool turned,
                               bool add) {
    matrix a = turned ? matrix_of(k, m) : matrix_of(m, k), b = matrix_of(k, n), c = matrix_of(m, n);
    const int64_t a_row = turned ? 1 : a.row, a_step = turned ? a.row : 1, a_count = a.rows * a.row,
                  b_count = k * b.row;
    uint16_t *half_a = (uint16_t *)impl_floats(a_count), *half_b = (uint16_t *)impl_floats(b_count);
    for (int64_t i = 0; i < a_count; i++) {
        half_a[i] = twi_half_from_f32(half, a.data[i]);
        a.data[i] = twi_half_to_f32(half, half_a[i]);
    }
    for (int64_t i = 0; i < b_count; i++) {
        half_b[i] = twi_half_from_f32(half, b.data[i]);
        b.data[i] = twi_half_to_f32(half, half_b[i]);
    }
    float *other = copy_of(c), *scratch = impl_floats((int64_t)twi_gemm_outer_scratch());
    gemm->outer(m, n, k, a.data, a_row, a_step, b.data, b.row, add, c.data, c.row, scratch);
    gemm->outer_halves(half, m, n, k, half_a, a_row, a_step, half_b, b.row, add, other, c.row, scratch);
    for (int64_t i = 0; i < m; i++)
        if (memcmp(other + i * c.row, c.data + i * c.row, (size_t)n * sizeof *other) != 0)
            fail_msg("outer_halves m %d n %d k %d: row %d differs", (int)m, (int)n, (int)k, (int)i);
    impl_release();
}

/* clang-format off */
static const int64_t sizes[][3] = {
    {1, 1, 1}, {1, 1, 7}, {2, 3, 8}, {3, 4, 9}, {4, 5, 15}, {5, 7, 16}, {6, 8, 17}, {7, 9, 31}, {8, 10, 33}, {9, 15, 5},
    {11, 16, 3}, {12, 17, 12}, {13, 31, 2}, {14, 32, 4}, {17, 33, 6}, {25, 63, 10}, {31, 20, 64}, {32, 65, 21}, {33, 10, 84},
    {64, 10, 128}, {40, 48, 300},       /* outer: more than one depth, packed columns */
    {193, 19, 40}, {400, 5, 3},         /* outer: more than one block of rows */
    {5, 6, 1023}, {7, 5, 1024}, {4, 9, 1025}, {3, 3, 2100}, /* dot: more than one depth */
};
/* clang-format on */
enum { SIZES = sizeof sizes / sizeof *sizes };

static void products_agree_with_sums_in_double(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        const twi_gemm *gemm = twi_gemm_for((twi_isa)isa);
        assert_string_equal(gemm->isa, twi_cpu_isa_name(isa < TWI_ISA_AVX512 ? (twi_isa)isa : TWI_ISA_AVX512));
        for (int i = 0; i < SIZES; i++) {
            const int64_t *s = sizes[i];
            check_transpose(gemm, s[0], s[1]);
            check_transpose(gemm, s[1], s[0]);
            for (int way = 0; way < 4; way++) {
                check_dot(gemm, s[0], s[1], s[2], way & 1, i % 3 == 0, way & 2);
                check_outer(gemm, s[0], s[1], s[2], way & 1, way & 2);
                check_outer_halves(gemm, (way + i) % 2 ? TW_F16 : TW_BF16, s[0], s[1], s[2], way & 1, way & 2);
            }
        }
    }
}

/* Any part of c, computed alone, has the bits it has in the whole. */
static void bits_depend_on_the_length_of_the_sum_alone(void **state) {
    (void)state;
    enum { M = 197, N = 70, K = 301 };
    static const int parts[][4] = {
        {0, 1, 0, 1}, {5, 2, 3, 9}, {190, 7, 60, 10}, {64, 33, 0, 64}, {3, 20, 69, 1}}; /* i, m, j, n */
    IMPL_EACH_ISA(isa) {
        const twi_gemm *gemm = twi_gemm_for((twi_isa)isa);
        float *a = impl_floats(M * K), *b = impl_floats(N * K), *bias = impl_floats(N),
              *scratch = impl_floats((int64_t)twi_gemm_outer_scratch());
        float *dot = impl_floats(M * N), *outer = impl_floats(M * N), *part = impl_floats(M * N);
        gemm->dot(M, N, K, a, K, b, K, bias, false, true, dot, N);
        memset(outer, 0, M * N * sizeof *outer);
        gemm->outer(M, N, K, a, K, 1, b, N, true, outer, N, scratch);
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            int i = parts[p][0], m = parts[p][1], j = parts[p][2], n = parts[p][3];
            gemm->dot(m, n, K, a + i * K, K, b + j * K, K, bias + j, false, true, part, n);
            for (int r = 0; r < m; r++)
                assert_memory_equal(part + r * n, dot + (i + r) * N + j, (size_t)n * sizeof *part);
            memset(part, 0, (size_t)(m * n) * sizeof *part);
            gemm->outer(m, n, K, a + i * K, K, 1, b + j, N, true, part, n, scratch);
            for (int r = 0; r < m; r++)
                assert_memory_equal(part + r * n, outer + (i + r) * N + j, (size_t)n * sizeof *part);
        }
        impl_release();
    }
}

/* One not-a-number and one infinity reach the row or column of sums they are part of, relu included, and no other. */
static void strange_numbers_travel(void **state) {
    (void)state;
    enum { M = 7, N = 21, K = 19 };
    IMPL_EACH_ISA(isa) {
        const twi_gemm *gemm = twi_gemm_for((twi_isa)isa);
        float *a = impl_floats(M * K), *b = impl_floats(N * K),
              *scratch = impl_floats((int64_t)twi_gemm_outer_scratch());
        float *dot = impl_floats(M * N), *outer = impl_floats(M * N);
        a[5 * K + 18] = NAN;
        a[2 * K + 3] = -INFINITY;
        gemm->dot(M, N, K, a, K, b, K, NULL, false, true, dot, N);
        gemm->outer(M, N, K, a, K, 1, b, N, false, outer, N, scratch);
        for (int i = 0; i < M * N; i++) {
            assert_int_equal(isnan(dot[i]) != 0, i / N == 5);
            assert_int_equal(isnan(outer[i]) != 0, i / N == 5);
            assert_int_equal(isinf(outer[i]) != 0, i / N == 2);
            if (i / N == 2)
                assert_true(b[i % N * K + 3] > 0 ? dot[i] == 0 : dot[i] == INFINITY);
            else if (i / N != 5)
                assert_true(dot[i] >= 0 && isfinite(dot[i]));
        }
        impl_release();
    }
}

/* ---- dense layers ---- */

static void rows(twi_call *call, int o, int64_t count, int64_t columns, float *data) {
    impl_operand(call, o, TWI_REAL, &(impl_shape){2, {count, columns}, false}, data);
}

static void check_dense(twi_isa isa, int64_t n, int64_t in, int64_t out) {
    float *x = impl_floats(n * in + 1) + 1, *w = impl_floats(out * in + 1) + 1, *y = impl_floats(n * out);
    float *dy = impl_floats(n * out + 1) + 1, *dx = impl_floats(n * in), *dw = impl_floats(out * in),
          *b = impl_floats(out);
    twi_call forward = {.first = true}, biased = forward, data = forward, weights = forward;
    rows(&forward, 0, n, in, x), rows(&forward, 1, out, in, w), rows(&forward, 2, n, out, y);
    rows(&data, 0, n, out, dy), rows(&data, 1, out, in, w), rows(&data, 2, n, in, dx);
    rows(&weights, 0, n, in, x), rows(&weights, 1, n, out, dy), rows(&weights, 2, out, in, dw);
    impl_run(twi_cpu_gemm_impls, "dense.forward", isa, &forward);
    impl_run(twi_cpu_gemm_impls, "dense.backward_data", isa, &data);
    for (weights.begin = 0; weights.begin < out; weights.begin = weights.end) { /* in ranges */
        weights.end = weights.begin + 8 < out ? weights.begin + 8 : out;
        impl_run(twi_cpu_gemm_impls, "dense.backward_weights", isa, &weights);
    }
    rows(&biased, 0, n, in, x), rows(&biased, 1, out, in, w);
    impl_operand(&biased, 2, TWI_REAL, &(impl_shape){2, {1, out}, false}, b);
    for (int relu = -1; relu < 2; relu++) {
        if (relu >= 0) {
            rows(&biased, 3, n, out, y);
            impl_run(twi_cpu_gemm_impls, relu ? "dense.forward_bias_relu" : "dense.forward_bias", isa, &biased);
        }
        for (int64_t i = 0; i < n; i++)
            for (int64_t o = 0; o < out; o++) {
                double want = relu < 0 ? 0 : b[o], size = 1;
                for (int64_t t = 0; t < in; t++) want += (double)x[i * in + t] * w[o * in + t], size += 1;
                check_sum("dense.forward", n, in, out, y[i * out + o], relu == 1 && want < 0 ? 0 : want, size);
            }
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < in; t++) {
            double want = 0;
            for (int64_t o = 0; o < out; o++) want += (double)dy[i * out + o] * w[o * in + t];
            check_sum("dense.backward_data", n, in, out, dx[i * in + t], want, (double)out);
        }
    for (int64_t o = 0; o < out; o++)
        for (int64_t t = 0; t < in; t++) {
            double want = 0;
            for (int64_t i = 0; i < n; i++) want += (double)dy[i * out + o] * x[i * in + t];
            check_sum("dense.backward_weights", n, in, out, dw[o * in + t], want, (double)n);
        }
    impl_release();
}

static void dense_layers_agree_with_sums_in_double(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},    {1, 100, 10}, {16, 120, 84},
                                        {33, 84, 10}, {64, 17, 31}, {5, 1030, 3}};
    IMPL_EACH_ISA(isa) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_dense((twi_isa)isa, shapes[i][0], shapes[i][1], shapes[i][2]);
    }
}

static void refuses_other_layouts(void **state) {
    (void)state;
    twi_call call = {.first = true};
    rows(&call, 0, 4, 6, NULL), rows(&call, 1, 3, 6, NULL), rows(&call, 2, 4, 3, NULL);
    assert_null(impl_refusal(twi_cpu_gemm_impls, "dense.forward", &call));
    call.operand[0].stride[0] = 1, call.operand[0].stride[1] = 4;
    assert_non_null(strstr(impl_refusal(twi_cpu_gemm_impls, "dense.forward", &call), "row-major"));
    rows(&call, 0, 4, 6, NULL);
    call.operand[2].dtype = TW_BF16;
    assert_non_null(strstr(impl_refusal(twi_cpu_gemm_impls, "dense.forward", &call), "f32"));
}

/* ---- convolutions ---- */

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups */
static const conv_check_case convolutions[] = {
    {3, 3, 7, 9, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {2, 16, 9, 9, 33, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {5, 6, 6, 5, 7, 1, 1, {1, 1, 0, 0, 0, 0, 1, 1, 1}},    /* pixels as they are */
    {2, 6, 6, 5, 7, 1, 1, {2, 2, 0, 0, 0, 0, 1, 1, 1}},    /* a shortcut */
    {2, 3, 3, 3, 2, 1, 1, {2, 2, 0, 0, 2, 2, 1, 1, 1}},    /* padded to as many outputs as pixels */
    {2, 4, 6, 5, 8, 1, 1, {1, 1, 0, 0, 0, 0, 1, 1, 2}},
    {2, 3, 5, 5, 2, 1, 1, {1, 1, 1, 0, 0, 2, 1, 1, 1}},    /* 1x1, padded */
    {1, 1, 1, 1, 1, 1, 1, {1, 1, 0, 0, 0, 0, 1, 1, 1}},
    {2, 5, 6, 7, 7, 2, 3, {1, 1, 1, 0, 0, 2, 1, 1, 1}},
    {2, 4, 9, 8, 5, 3, 3, {2, 3, 1, 2, 1, 2, 1, 1, 1}},
    {2, 2, 12, 13, 4, 3, 2, {2, 3, 3, 1, 2, 4, 3, 2, 1}},  /* dilated, strided */
    {1, 2, 5, 5, 3, 2, 2, {3, 3, 0, 0, 0, 0, 1, 1, 1}},    /* pixels nobody looks at */
    {1, 2, 2, 3, 3, 2, 2, {1, 1, 3, 4, 3, 4, 1, 1, 1}},    /* outputs of zeros alone */
    {1, 1, 3, 3, 2, 5, 5, {1, 1, 2, 2, 2, 2, 1, 1, 1}},    /* kernel larger than the image */
    {2, 6, 6, 6, 9, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 3}},    /* groups */
    {2, 8, 7, 6, 8, 3, 3, {2, 1, 1, 1, 1, 1, 1, 1, 8}},    /* depthwise */
    {2, 19, 7, 6, 19, 3, 3, {1, 1, 2, 2, 2, 2, 2, 2, 19}},
    {1, 3, 5, 5, 6, 3, 3, {1, 1, 1, 0, 1, 0, 1, 1, 3}},    /* two filters a channel */
    {4, 2, 12, 13, 3, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},  /* more positions than a block */
    {1, 260, 4, 4, 5, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},  /* a long patch */
    {3, 6, 3, 2, 150, 3, 2, {1, 1, 1, 1, 1, 0, 1, 1, 2}},  /* parts of weights that reach over two groups */
    {9, 300, 5, 5, 3, 1, 1, {1, 1, 1, 1, 1, 1, 1, 1, 1}},  /* channels in more than one block */
    {2, 3, 1, 1, 2, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},    /* taps that never lie inside */
    {3, 5, 2, 3, 70, 3, 4, {2, 1, 1, 2, 1, 3, 1, 2, 1}},
};
/* clang-format on */

static void convolutions_agree_with_sums_in_double(void **state) {
    (void)state;
    int sets = 0, count = (int)(sizeof convolutions / sizeof *convolutions);
    IMPL_EACH_ISA(isa) sets++;
    assert_int_equal(conv_check(twi_cpu_patches_impls, convolutions, count), count * 7 * sets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_agree_with_sums_in_double),
        cmocka_unit_test(bits_depend_on_the_length_of_the_sum_alone),
        cmocka_unit_test(strange_numbers_travel),
        cmocka_unit_test(dense_layers_agree_with_sums_in_double),
        cmocka_unit_test(refuses_other_layouts),
        cmocka_unit_test(convolutions_agree_with_sums_in_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

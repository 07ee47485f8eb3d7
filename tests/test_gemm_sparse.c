/* Products that leave out zeros, on every instruction set: the bits of the product of all elements, however many are
 * zero and wherever they stand, whatever becomes of the sums; in parts as in the whole; and what is no number. */
#include "impl_call.h"
#include "check.h"
#include "backend/cpu/gemm.h"

#include <math.h>
#include <stdio.h>

/* How a is filled: the share that is not zero, in percent, of even and of odd groups of eight rows. */
typedef struct filling {
    int even, odd;
} filling;

static const filling fillings[] = {{100, 100}, {50, 50}, {20, 90}, {100, 30}, {35, 35}, {3, 0}, {0, 0}};

typedef struct product {
    int64_t m, n, k, a_row, a_step, b_row, c_row;
    float *a, *b, *c, *scratch;
    size_t scratch_floats;
} product;

enum { MARGIN = 16 };
static const float mark = 12345.5f;

/* Of a, element (i, t) runs along k, or along i if turned; b and c have gaps between their rows and, unless they lie
 * well, an address that is a multiple of 4 bytes only. */
static product product_of(int64_t m, int64_t n, int64_t k, bool turned, bool lies_well, filling filling) {
    product p = {.m = m, .n = n, .k = k, .a_row = turned ? 1 : k, .a_step = turned ? m : 1};
    p.b_row = lies_well ? (n + 15) / 16 * 16 : n + 1, p.c_row = n + 2;
    p.a = impl_floats(m * k), p.b = impl_floats(k * p.b_row + 1), p.c = impl_floats(m * p.c_row);
    if (!lies_well) p.b++;
    p.scratch = impl_floats((int64_t)twi_gemm_squares_scratch_of(m, n, k) + 2 * MARGIN) + MARGIN;
    uint32_t random = 7;
    for (int64_t i = 0; i < m; i++)
        for (int64_t t = 0; t < k; t++) {
            random = random * 1664525u + 1013904223u;
            float *element = &p.a[i * p.a_row + t * p.a_step];
            if ((int)((random >> 8) % 100) >= (i / 8 % 2 ? filling.odd : filling.even))
                *element = random >> 31 ? 0.0f : -0.0f;
        }
    return p;
}

/* Scratch of so many floats, with marks before and behind it, which must stay there. */
static float *scratch_of(product *p, size_t floats) {
    p->scratch_floats = floats;
    for (int i = 0; i < MARGIN; i++) p->scratch[-1 - i] = p->scratch[floats + (size_t)i] = mark;
    return p->scratch;
}
static void check_margins(const product *p) {
    for (int i = 0; i < MARGIN; i++)
        assert_true(p->scratch[-1 - i] == mark && p->scratch[p->scratch_floats + (size_t)i] == mark);
}

static float *copy_of(const product *p) {
    float *copy = impl_floats(p->m * p->c_row);
    memcpy(copy, p->c, (size_t)(p->m * p->c_row) * sizeof *copy);
    return copy;
}

static void check_same(const char *what, const product *p, filling f, const float *want) {
    if (memcmp(want, p->c, (size_t)(p->m * p->c_row) * sizeof *want) == 0) return;
    fail_msg("%s: m %d n %d k %d, %d and %d %% not zero, a step %d, b row %d: not the bits of outer", what, (int)p->m,
             (int)p->n, (int)p->k, f.even, f.odd, (int)p->a_step, (int)p->b_row);
}

/* clang-format off */
static const int64_t sizes[][3] = { /* m, n, k */
    {8, 784, 64}, {16, 784, 64}, {13, 200, 33}, {1, 193, 64}, {24, 192, 32}, {27, 331, 65}, {40, 256, 128}, {17, 400, 120},
    {9, 1024, 64}, {5, 1800, 50}, {33, 207, 300}, {200, 192, 40}, {16, 784, 256},
    {16, 40, 64}, {16, 400, 20}, {3, 5, 7}, /* too small for lists */
};
/* clang-format on */
enum { SIZES = sizeof sizes / sizeof *sizes, FILLINGS = sizeof fillings / sizeof *fillings };

static void check_ways(const twi_gemm *gemm, const int64_t *size, bool turned, bool lies_well, filling f) {
    product p = product_of(size[0], size[1], size[2], turned, lies_well, f);
    for (int add = 0; add < 2; add++) {
        float *start = copy_of(&p), *want = copy_of(&p);
        gemm->outer(p.m, p.n, p.k, p.a, p.a_row, p.a_step, p.b, p.b_row, add, want, p.c_row, p.scratch);
        gemm->outer_sparse(p.m, p.n, p.k, p.a, p.a_row, p.a_step, p.b, p.b_row, add, p.c, p.c_row,
                           scratch_of(&p, twi_gemm_sparse_scratch_of(p.m, p.n, p.k)));
        check_margins(&p);
        check_same(add ? "added" : "stored", &p, f, want);
        if (add) break;
        float *squares = impl_floats(p.m);
        memcpy(p.c, start, (size_t)(p.m * p.c_row) * sizeof *start);
        gemm->outer_squares(p.m, p.n, p.k, p.a, p.a_row, p.a_step, p.b, p.b_row, p.c, p.c_row, squares,
                            scratch_of(&p, twi_gemm_squares_scratch_of(p.m, p.n, p.k)));
        check_margins(&p);
        check_same("squares", &p, f, want);
        for (int64_t i = 0; i < p.m; i++) {
            double sum = 0;
            for (int64_t j = 0; j < p.n; j++) sum += (double)p.c[i * p.c_row + j] * (double)p.c[i * p.c_row + j];
            assert_true(fabs(squares[i] - sum) <= 1e-5 * sum);
        }
    }
    impl_release();
}

static void bits_are_those_of_all_elements(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        for (int s = 0; s < SIZES; s++)
            for (int f = 0; f < FILLINGS; f++)
                for (int way = 0; way < 4; way++)
                    check_ways(twi_gemm_for((twi_isa)isa), sizes[s], way & 1, way & 2, fillings[f]);
    }
}

/* Weights and momentum behind sums of lists: those behind the same sums, by the formula of op_sgd.c. */
static void updates_of_weights_agree(void **state) {
    (void)state;
    const twi_gemm_update update = {.rate = 0.1f, .decay = 0.01f, .momentum = 0.9f, .factor = 0.5f, .nesterov = true};
    IMPL_EACH_ISA(isa) {
        const twi_gemm *gemm = twi_gemm_for((twi_isa)isa);
        for (int f = 0; f < FILLINGS; f++) {
            product p = product_of(27, 331, 120, f % 2, f % 3 == 0, fillings[f]);
            float *sums = copy_of(&p), *before = copy_of(&p), *buffer = impl_floats(p.m * p.c_row),
                  *momentum = impl_floats(p.m * p.c_row);
            memcpy(momentum, buffer, (size_t)(p.m * p.c_row) * sizeof *buffer);
            twi_gemm_update own = update;
            own.buffer = buffer;
            gemm->outer(p.m, p.n, p.k, p.a, p.a_row, p.a_step, p.b, p.b_row, false, sums, p.c_row, p.scratch);
            gemm->outer_update(p.m, p.n, p.k, p.a, p.a_row, p.a_step, p.b, p.b_row, &own, p.c, p.c_row,
                               scratch_of(&p, twi_gemm_sparse_scratch_of(p.m, p.n, p.k)));
            for (int64_t i = 0; i < p.m; i++)
                for (int64_t j = 0; j < p.n; j++) {
                    const int64_t at = i * p.c_row + j;
                    const double step = 0.01 * before[at] + 0.5 * sums[at], moved = 0.9 * momentum[at] + step;
                    impl_close(moved, buffer[at], 1e-5, "momentum", at);
                    impl_close(before[at] - 0.1 * (step + 0.9 * moved), p.c[at], 1e-5, "weight", at);
                }
            check_margins(&p);
            impl_release();
        }
    }
}

/* Ranges of rows that begin at multiples of eight: the bits they have in the whole, also where zeros meet what is no
 * number, which lists leave out and products of all elements do not. */
static void ranges_have_the_bits_of_the_whole(void **state) {
    (void)state;
    static const int64_t cuts[][4] = {{0, 8, 48, 75}, {0, 16, 32, 75}, {0, 24, 72, 75}};
    IMPL_EACH_ISA(isa) {
        const twi_gemm *gemm = twi_gemm_for((twi_isa)isa);
        product p = product_of(75, 208, 64, true, true, (filling){45, 70});
        p.b[5 * p.b_row + 3] = INFINITY, p.b[9 * p.b_row + 100] = NAN;
        gemm->outer_sparse(p.m, p.n, p.k, p.a, 1, p.m, p.b, p.b_row, false, p.c, p.c_row, p.scratch);
        float *whole = copy_of(&p);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            memset(p.c, 0, (size_t)(p.m * p.c_row) * sizeof *p.c);
            for (int part = 0; part < 3; part++) {
                const int64_t i = cuts[c][part], stop = cuts[c][part + 1];
                gemm->outer_sparse(stop - i, p.n, p.k, p.a + i, 1, p.m, p.b, p.b_row, false, p.c + i * p.c_row, p.c_row,
                                   p.scratch);
            }
            for (int64_t i = 0; i < p.m; i++)
                assert_memory_equal(p.c + i * p.c_row, whole + i * p.c_row, (size_t)p.n * sizeof *whole);
        }
        impl_release();
    }
}

/* What is no number in a is never taken for a zero; in b it reaches, of rows that are listed, those that have something
 * else than zero there. */
static void strange_numbers_travel(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        const twi_gemm *gemm = twi_gemm_for((twi_isa)isa);
        product p = product_of(16, 256, 64, false, true, (filling){20, 20});
        for (int64_t i = 0; i < p.m; i++) p.a[i * p.k + 40] = i % 2 ? 0.5f : 0;
        p.a[2 * p.k + 7] = NAN, p.a[4 * p.k + 8] = -INFINITY, p.b[40 * p.b_row + 11] = NAN;
        gemm->outer_sparse(p.m, p.n, p.k, p.a, p.k, 1, p.b, p.b_row, false, p.c, p.c_row, p.scratch);
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                const float c = p.c[i * p.c_row + j];
                assert_int_equal(isnan(c) != 0, i == 2 || (j == 11 && i % 2));
                assert_int_equal(isinf(c) != 0, i == 4);
            }
        impl_release();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_all_elements),
        cmocka_unit_test(updates_of_weights_agree),
        cmocka_unit_test(ranges_have_the_bits_of_the_whole),
        cmocka_unit_test(strange_numbers_travel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

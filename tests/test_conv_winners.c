/* Gradients of convolutions through a max pooling, of what won alone: against sums in double, of samples one after the
 * other and side by side, replaced and added; not-a-number that stays where it belongs; and what is refused. */
#include "impl_call.h"
#include "backend/attrs.h"
#include "check.h"

#include <math.h>

typedef struct case_of {
    int64_t n, c, h, w, o, kernel_h, kernel_w;
    twi_conv2d_pool_attrs attrs;
    bool data; /* the gradient of the input is taken as well */
} case_of;

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups; window, its strides, paddings */
static const case_of cases[] = {
    {16, 6, 14, 14, 16, 5, 5, {{1, 1, 0, 0, 0, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}, true}, /* LeNet-5's second */
    {64, 6, 9, 11, 5, 5, 5, {{1, 1, 2, 2, 2, 2, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}, true},   /* a row left over */
    {19, 16, 6, 8, 24, 3, 3, {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}, true},
    {9, 24, 5, 6, 33, 3, 3, {{1, 1, 1, 0, 1, 2, 1, 1, 1}, {2, 3, 2, 3, 0, 0, 0, 0, 0, false}}, true},   /* many channels, wide windows */
    {8, 20, 7, 5, 17, 7, 2, {{1, 1, 4, 3, 3, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}, true},   /* the tallest kernel */
    {11, 90, 4, 4, 3, 1, 1, {{1, 1, 0, 0, 0, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}, true},   /* and the shortest */
    {8, 40, 2, 2, 2, 2, 3, {{1, 1, 0, 1, 0, 1, 1, 1, 1}, {1, 2, 1, 2, 0, 0, 0, 0, 0, false}}, false},
    {17, 32, 9, 9, 6, 3, 3, {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 3, 2, 2, 1, 1, 0, 0, 0, false}}, false},  /* windows overlap */
    {16, 12, 11, 13, 4, 5, 4, {{2, 1, 2, 1, 2, 1, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}, false}, /* strided */
    {8, 20, 13, 12, 3, 9, 2, {{1, 2, 3, 0, 3, 0, 1, 1, 1}, {3, 2, 4, 3, 0, 0, 0, 0, 0, false}}, false},  /* windows leave gaps */
    {8, 16, 9, 9, 4, 3, 3, {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 4, 3, 3, 2, 2, 2, 2, 1, false}}, false},    /* ceil mode */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

typedef struct sizes {
    int64_t out_h, out_w, rows, columns;
} sizes;

static int64_t windows(int64_t size, int window, int stride, int before, int after, bool up) {
    return (size + before + after - window + (up ? stride - 1 : 0)) / stride + 1;
}

static sizes sizes_of(const case_of *c) {
    sizes s = {.out_h = twi_conv2d_rows(&c->attrs.conv, c->h, c->kernel_h),
               .out_w = twi_conv2d_columns(&c->attrs.conv, c->w, c->kernel_w)};
    const twi_pool_attrs *a = &c->attrs.pool;
    s.rows = windows(s.out_h, a->kernel_h, a->stride_h, a->pad_top, a->pad_bottom, a->ceil_mode);
    s.columns = windows(s.out_w, a->kernel_w, a->stride_w, a->pad_left, a->pad_right, a->ceil_mode);
    return s;
}

/* x, w and dy, and their gradients; some of dy are 0, as behind a relu. */
typedef struct problem {
    const case_of *c;
    sizes size;
    float *x, *w, *dy, *dx, *dw;
    uint8_t *index;
    double *expected_dx, *expected_dw;
} problem;

static int64_t x_count(const case_of *c) { return c->n * c->h * c->w * c->c; }
static int64_t w_count(const case_of *c) { return c->o * c->kernel_h * c->kernel_w * c->c; }
static int64_t dy_count(const problem *p) { return p->c->n * p->size.rows * p->size.columns * p->c->o; }

/* The position that won window p,q in channel o of sample n. */
static int64_t winner(const problem *p, int64_t i, int64_t *out_y, int64_t *out_x) {
    const twi_pool_attrs *a = &p->c->attrs.pool;
    const int64_t window = i / p->c->o;
    *out_y = window / p->size.columns % p->size.rows * a->stride_h - a->pad_top + p->index[i] / a->kernel_w;
    *out_x = window % p->size.columns * a->stride_w - a->pad_left + p->index[i] % a->kernel_w;
    return window / p->size.columns / p->size.rows;
}

static void expect(problem *p) {
    const case_of *c = p->c;
    const twi_conv2d_attrs *a = &c->attrs.conv;
    for (int64_t i = 0; i < dy_count(p); i++) {
        int64_t y, x, n = winner(p, i, &y, &x), o = i % c->o;
        for (int64_t r = 0; r < c->kernel_h; r++)
            for (int64_t k = 0; k < c->kernel_w; k++) {
                const int64_t in_y = y * a->stride_h + r - a->pad_top, in_x = x * a->stride_w + k - a->pad_left;
                if (in_y < 0 || in_y >= c->h || in_x < 0 || in_x >= c->w) continue;
                const int64_t at = ((n * c->h + in_y) * c->w + in_x) * c->c,
                              tap = ((o * c->kernel_h + r) * c->kernel_w + k) * c->c;
                for (int64_t in = 0; in < c->c; in++) {
                    p->expected_dx[at + in] += (double)p->dy[i] * (double)p->w[tap + in];
                    p->expected_dw[tap + in] += (double)p->dy[i] * (double)p->x[at + in];
                }
            }
    }
}

static problem open_problem(const case_of *c) {
    problem p = {.c = c, .size = sizes_of(c)};
    p.x = impl_floats(x_count(c)), p.dx = impl_floats(x_count(c));
    p.w = impl_floats(w_count(c)), p.dw = impl_floats(w_count(c));
    p.dy = impl_floats(dy_count(&p)), p.index = impl_bytes(dy_count(&p));
    p.expected_dx = calloc((size_t)x_count(c), sizeof(double));
    p.expected_dw = calloc((size_t)w_count(c), sizeof(double));
    assert_true(p.expected_dx && p.expected_dw);
    for (int64_t i = 0; i < dy_count(&p); i++) {
        if (p.dy[i] < -0.4f) p.dy[i] = 0;
        const int elements = c->attrs.pool.kernel_h * c->attrs.pool.kernel_w;
        int64_t y, x;
        do {
            p.index[i] = (uint8_t)((p.index[i] + 1) % elements);
            winner(&p, i, &y, &x);
        } while (y < 0 || y >= p.size.out_h || x < 0 || x >= p.size.out_w);
    }
    expect(&p);
    return p;
}
static void close_problem(problem *p) {
    free(p->expected_dx);
    free(p->expected_dw);
    impl_release();
}

static impl_shape image_of(const case_of *c) { return (impl_shape){4, {c->n, c->c, c->h, c->w}, true}; }
static impl_shape weights_of(const case_of *c) { return (impl_shape){4, {c->o, c->c, c->kernel_h, c->kernel_w}, true}; }
static impl_shape pooled_of(const problem *p) {
    return (impl_shape){4, {p->c->n, p->c->o, p->size.rows, p->size.columns}, true};
}

static void pooled_operands(twi_call *call, const problem *p, int dy) {
    const impl_shape pooled = pooled_of(p);
    *call = (twi_call){.attrs = &p->c->attrs, .first = true};
    impl_operand(call, dy, TWI_REAL, &pooled, p->dy);
    impl_operand(call, dy + 1, TWI_U8, &pooled, p->index);
}
static void weights_call(twi_call *call, const problem *p) {
    const impl_shape image = image_of(p->c), weights = weights_of(p->c);
    pooled_operands(call, p, 1);
    impl_operand(call, 0, TWI_REAL, &image, p->x);
    impl_operand(call, 3, TWI_ACC, &weights, p->dw);
}
static void data_call(twi_call *call, const problem *p) {
    const impl_shape image = image_of(p->c), weights = weights_of(p->c);
    pooled_operands(call, p, 0);
    impl_operand(call, 2, TWI_REAL, &weights, p->w);
    impl_operand(call, 3, TWI_REAL, &image, p->dx);
}
static const char weights_kernel[] = "conv2d.backward_weights_unpooled",
                  data_kernel[] = "conv2d.backward_data_unpooled";

/* ---- samples side by side ---- */

static const int widths[] = {
    [TWI_ISA_BASELINE] = 4, [TWI_ISA_AVX2] = 8, [TWI_ISA_AVX512] = 16, [TWI_ISA_AVX512_BF16] = 16};

static int64_t turned_at(int64_t n, int64_t e, int64_t elements, int64_t lanes) {
    return (n / lanes * elements + e) * lanes + n % lanes;
}
static int64_t whole_blocks(int64_t n, int64_t lanes) { return (n + lanes - 1) / lanes * lanes; }

/* Lanes without a sample hold what would show. */
static float *turned_floats(const float *from, int64_t n, int64_t elements, int64_t lanes) {
    float *turned = impl_floats(whole_blocks(n, lanes) * elements);
    for (int64_t i = 0; i < whole_blocks(n, lanes) * elements; i++) turned[i] = NAN;
    for (int64_t i = 0; i < n * elements; i++) turned[turned_at(i / elements, i % elements, elements, lanes)] = from[i];
    return turned;
}
static uint8_t *turned_bytes(const uint8_t *from, int64_t n, int64_t elements, int64_t lanes) {
    uint8_t *turned = impl_bytes(whole_blocks(n, lanes) * elements);
    for (int64_t i = 0; i < n * elements; i++) turned[turned_at(i / elements, i % elements, elements, lanes)] = from[i];
    return turned;
}

/* All operands with samples turned; what is made comes back as rows. */
static void run_turned(const problem *p, twi_isa isa, bool data) {
    const int lanes = widths[isa];
    const case_of *c = p->c;
    const int64_t image = c->h * c->w * c->c, pooled = dy_count(p) / c->n;
    problem t = *p;
    t.x = turned_floats(p->x, c->n, image, lanes), t.dx = turned_floats(p->x, c->n, image, lanes);
    t.dy = turned_floats(p->dy, c->n, pooled, lanes), t.index = turned_bytes(p->index, c->n, pooled, lanes);
    twi_call call;
    (data ? data_call : weights_call)(&call, &t);
    for (int o = 0; o < 4; o++)
        if (call.operand[o].store != TWI_ACC && call.operand[o].data != t.w) call.operand[o].lanes = (uint8_t)lanes;
    impl_run(twi_cpu_winners_impls, data ? data_kernel : weights_kernel, isa, &call);
    for (int64_t i = 0; data && i < c->n * image; i++) p->dx[i] = t.dx[turned_at(i / image, i % image, image, lanes)];
}

/* ---- tests ---- */

/* scale: how many numbers were added, at most. */
static void close_to(const double *expected, const float *got, int64_t count, double scale, double times,
                     const char *what) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - times * expected[i]) <= 2e-6 * sqrt(scale) * (1 + fabs(times * expected[i]))))
            fail_msg("%s %d: %g, expected %g", what, (int)i, (double)got[i], times * expected[i]);
}

static void agrees_with_sums_in_double(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) IMPL_EACH_ISA(isa) {
            problem p = open_problem(&cases[i]);
            const case_of *c = p.c;
            const double winners = (double)dy_count(&p) / (double)c->o, taps = (double)w_count(c) / (double)c->c;
            twi_call call;
            weights_call(&call, &p);
            impl_run(twi_cpu_winners_impls, weights_kernel, (twi_isa)isa, &call);
            close_to(p.expected_dw, p.dw, w_count(c), winners, 1, "dw");
            call.first = false;
            impl_run(twi_cpu_winners_impls, weights_kernel, (twi_isa)isa, &call);
            close_to(p.expected_dw, p.dw, w_count(c), winners, 2, "dw, added");
            run_turned(&p, (twi_isa)isa, false);
            close_to(p.expected_dw, p.dw, w_count(c), winners, 1, "dw, turned");
            data_call(&call, &p);
            if (c->data) {
                impl_run(twi_cpu_winners_impls, data_kernel, (twi_isa)isa, &call);
                close_to(p.expected_dx, p.dx, x_count(c), taps, 1, "dx");
                for (int64_t e = 0; e < x_count(c); e++) p.dx[e] = NAN;
                run_turned(&p, (twi_isa)isa, true);
                close_to(p.expected_dx, p.dx, x_count(c), taps, 1, "dx, turned");
            } else {
                assert_non_null(impl_refusal(twi_cpu_winners_impls, data_kernel, &call));
            }
            close_problem(&p);
        }
}

/* How samples lie changes no bit, and nor does where the operands do. */
static void same_samples_same_bits(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        problem p = open_problem(&cases[2]);
        const size_t dw_bytes = (size_t)w_count(p.c) * sizeof(float), dx_bytes = (size_t)x_count(p.c) * sizeof(float);
        float *dw = impl_floats(w_count(p.c)), *dx = impl_floats(x_count(p.c)),
              *moved = impl_floats(x_count(p.c) + 1) + 1;
        twi_call call;
        weights_call(&call, &p);
        impl_run(twi_cpu_winners_impls, weights_kernel, (twi_isa)isa, &call);
        memcpy(dw, p.dw, dw_bytes);
        memcpy(moved, p.x, dx_bytes);
        call.operand[0].data = moved;
        impl_run(twi_cpu_winners_impls, weights_kernel, (twi_isa)isa, &call);
        assert_memory_equal(dw, p.dw, dw_bytes);
        run_turned(&p, (twi_isa)isa, false);
        assert_memory_equal(dw, p.dw, dw_bytes);
        data_call(&call, &p);
        impl_run(twi_cpu_winners_impls, data_kernel, (twi_isa)isa, &call);
        memcpy(dx, p.dx, dx_bytes);
        run_turned(&p, (twi_isa)isa, true);
        assert_memory_equal(dx, p.dx, dx_bytes);
        close_problem(&p);
    }
}

/* A trial of implementations fills indices with 0, which may name an element before the result: what comes of it is
 * of no use, but nothing else is read for it. */
static void indices_before_the_result_read_zeros(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (int i = 0; i < CASES; i++) {
        problem p = open_problem(&cases[i]);
        memset(p.index, 0, (size_t)dy_count(&p));
        twi_call call;
        weights_call(&call, &p);
        impl_run(twi_cpu_winners_impls, weights_kernel, (twi_isa)isa, &call);
        for (int64_t e = 0; e < w_count(p.c); e++) assert_true(isfinite(p.dw[e]));
        close_problem(&p);
    }
}

/* A gradient that is not a number makes the weights of its channel so, and pixels of its image that its window reaches;
 * one that is infinite is not lost. */
static void strange_gradients_stay(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (int strange = 0; strange < 2; strange++) {
        problem p = open_problem(&cases[0]);
        const case_of *c = p.c;
        const int64_t pooled = p.size.rows * p.size.columns * c->o, image = c->h * c->w * c->c;
        p.dy[7 * pooled + (2 * p.size.columns + 1) * c->o + 3] = strange ? INFINITY : NAN; /* window 2,1 of channel 3 */
        twi_call call;
        weights_call(&call, &p);
        impl_run(twi_cpu_winners_impls, weights_kernel, (twi_isa)isa, &call);
        for (int64_t i = 0; i < w_count(c); i++)
            assert_int_equal(!isfinite(p.dw[i]), i / (c->kernel_h * c->kernel_w * c->c) == 3);
        data_call(&call, &p);
        impl_run(twi_cpu_winners_impls, data_kernel, (twi_isa)isa, &call);
        int64_t reached = 0;
        for (int64_t i = 0; i < x_count(c); i++) {
            const int64_t y = i % image / c->c / c->w, x = i % image / c->c % c->w;
            if (isfinite(p.dx[i])) continue;
            assert_int_equal(i / image, 7);
            assert_true(y >= 4 && y < 4 + 6 && x >= 2 && x < 2 + 6);
            reached++;
        }
        assert_true(reached >= 5 * 5 * c->c);
        close_problem(&p);
    }
}

static const char *refusal(case_of c, const char *kernel, int lanes) {
    problem p = {.c = &c, .size = sizes_of(&c)};
    twi_call call;
    (kernel == data_kernel ? data_call : weights_call)(&call, &p);
    call.operand[0].lanes = (uint8_t)lanes;
    return impl_refusal(twi_cpu_winners_impls, kernel, &call);
}

static void refuses_what_others_do_better(void **state) {
    (void)state;
    case_of c = cases[0];
    assert_null(refusal(c, weights_kernel, 0));
    assert_null(refusal(c, data_kernel, 4));
    assert_non_null(strstr(refusal(c, weights_kernel, 16), "side by side"));
    c.attrs.conv.dilation_w = 2;
    assert_non_null(strstr(refusal(c, weights_kernel, 0), "dilated"));
    c = cases[0], c.attrs.conv.groups = 2;
    assert_non_null(strstr(refusal(c, weights_kernel, 0), "group"));
    c = cases[0], c.n = 1;
    assert_non_null(strstr(refusal(c, data_kernel, 0), "half a vector"));
    c = cases[0], c.c = 1, c.kernel_w = 1;
    assert_non_null(strstr(refusal(c, weights_kernel, 0), "short"));
    c = cases[0], c.h = c.w = 5000;
    assert_non_null(strstr(refusal(c, weights_kernel, 0), "large"));
    c = cases[0], c.attrs.pool.kernel_h = c.attrs.pool.kernel_w = 5;
    assert_non_null(strstr(refusal(c, weights_kernel, 0), "windows too large"));
    c = cases[0], c.kernel_h = 9;
    assert_null(refusal(c, weights_kernel, 0));
    assert_non_null(strstr(refusal(c, data_kernel, 0), "more rows of the kernel"));
    c = cases[0], c.attrs.conv.stride_w = 2;
    assert_non_null(strstr(refusal(c, data_kernel, 0), "strided"));
    c = cases[0], c.attrs.pool.pad_left = 1;
    assert_non_null(strstr(refusal(c, data_kernel, 0), "side by side"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_sums_in_double),           cmocka_unit_test(same_samples_same_bits),
        cmocka_unit_test(indices_before_the_result_read_zeros), cmocka_unit_test(strange_gradients_stay),
        cmocka_unit_test(refuses_what_others_do_better),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

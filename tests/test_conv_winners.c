/* Gradients of convolutions through a max pooling, of what won alone: against sums in double, of samples one after the
 * other and side by side, replaced and added; not-a-number that stays where it belongs; and what is refused. */
#include "pooled_conv.h"
#include "check.h"

#include <math.h>

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups; window, its strides, paddings */
static const pooled_case cases[] = {
    {16, 6, 14, 14, 16, 5, 5, {{1, 1, 0, 0, 0, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}}, /* LeNet-5's second */
    {64, 6, 9, 11, 5, 5, 5, {{1, 1, 2, 2, 2, 2, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},   /* a row left over */
    {19, 16, 6, 8, 24, 3, 3, {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},
    {9, 24, 5, 6, 33, 3, 3, {{1, 1, 1, 0, 1, 2, 1, 1, 1}, {2, 3, 2, 3, 0, 0, 0, 0, 0, false}}},   /* many channels, wide windows */
    {8, 20, 7, 5, 17, 7, 2, {{1, 1, 4, 3, 3, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},   /* the tallest kernel */
    {11, 90, 4, 4, 3, 1, 1, {{1, 1, 0, 0, 0, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},   /* and the shortest */
    {8, 40, 2, 2, 2, 2, 3, {{1, 1, 0, 1, 0, 1, 1, 1, 1}, {1, 2, 1, 2, 0, 0, 0, 0, 0, false}}},
    {17, 32, 9, 9, 6, 3, 3, {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 3, 2, 2, 1, 1, 0, 0, 0, false}}},  /* windows overlap */
    {16, 12, 11, 13, 4, 5, 4, {{2, 1, 2, 1, 2, 1, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}}, /* strided */
    {8, 20, 13, 12, 3, 9, 2, {{1, 2, 3, 0, 3, 0, 1, 1, 1}, {3, 2, 4, 3, 0, 0, 0, 0, 0, false}}},  /* windows leave gaps */
    {8, 16, 9, 9, 4, 3, 3, {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 4, 3, 3, 2, 2, 2, 2, 1, false}}},    /* ceil mode */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases, DATA_CASES = 6 /* whose gradient of the input is taken as well */ };

static void agrees_with_sums_in_double(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) IMPL_EACH_ISA(isa) {
            pooled_conv p = pooled_open(&cases[i]);
            const pooled_case *c = p.c;
            const double winners = (double)pooled_y_count(&p) / (double)c->o,
                         taps = (double)pooled_w_count(c) / (double)c->c;
            twi_call call;
            pooled_weights_call(&call, &p);
            impl_run(twi_cpu_winners_impls, pooled_weights_kernel, (twi_isa)isa, &call);
            pooled_close_to(p.expected_dw, p.dw, pooled_w_count(c), winners, 1, "dw");
            call.first = false;
            impl_run(twi_cpu_winners_impls, pooled_weights_kernel, (twi_isa)isa, &call);
            pooled_close_to(p.expected_dw, p.dw, pooled_w_count(c), winners, 2, "dw, added");
            pooled_weights_turned(&p, twi_cpu_winners_impls, (twi_isa)isa, POOLED_ALL_TURNED);
            pooled_close_to(p.expected_dw, p.dw, pooled_w_count(c), winners, 1, "dw, turned");
            pooled_data_call(&call, &p);
            if (i < DATA_CASES) {
                impl_run(twi_cpu_winners_impls, pooled_data_kernel, (twi_isa)isa, &call);
                pooled_close_to(p.expected_dx, p.dx, pooled_x_count(c), taps, 1, "dx");
                for (int64_t e = 0; e < pooled_x_count(c); e++) p.dx[e] = NAN;
                pooled_data_turned(&p, twi_cpu_winners_impls, (twi_isa)isa);
                pooled_close_to(p.expected_dx, p.dx, pooled_x_count(c), taps, 1, "dx, turned");
            } else {
                assert_non_null(impl_refusal(twi_cpu_winners_impls, pooled_data_kernel, &call));
            }
            pooled_close(&p);
        }
}

/* How samples lie changes no bit, and nor does where the operands do. */
static void same_samples_same_bits(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        pooled_conv p = pooled_open(&cases[2]);
        const size_t dw_bytes = (size_t)pooled_w_count(p.c) * sizeof(float),
                     dx_bytes = (size_t)pooled_x_count(p.c) * sizeof(float);
        float *dw = impl_floats(pooled_w_count(p.c)), *dx = impl_floats(pooled_x_count(p.c)),
              *moved = impl_floats(pooled_x_count(p.c) + 1) + 1;
        twi_call call;
        pooled_weights_call(&call, &p);
        impl_run(twi_cpu_winners_impls, pooled_weights_kernel, (twi_isa)isa, &call);
        memcpy(dw, p.dw, dw_bytes);
        memcpy(moved, p.x, dx_bytes);
        call.operand[0].data = moved;
        impl_run(twi_cpu_winners_impls, pooled_weights_kernel, (twi_isa)isa, &call);
        assert_memory_equal(dw, p.dw, dw_bytes);
        pooled_weights_turned(&p, twi_cpu_winners_impls, (twi_isa)isa, POOLED_ALL_TURNED);
        assert_memory_equal(dw, p.dw, dw_bytes);
        pooled_data_call(&call, &p);
        impl_run(twi_cpu_winners_impls, pooled_data_kernel, (twi_isa)isa, &call);
        memcpy(dx, p.dx, dx_bytes);
        pooled_data_turned(&p, twi_cpu_winners_impls, (twi_isa)isa);
        assert_memory_equal(dx, p.dx, dx_bytes);
        pooled_close(&p);
    }
}

/* A trial of implementations fills indices with 0, which may name an element before the result: what comes of it is
 * of no use, but nothing else is read for it. */
static void indices_before_the_result_read_zeros(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (int i = 0; i < CASES; i++) {
        pooled_conv p = pooled_open(&cases[i]);
        memset(p.index, 0, (size_t)pooled_y_count(&p));
        twi_call call;
        pooled_weights_call(&call, &p);
        impl_run(twi_cpu_winners_impls, pooled_weights_kernel, (twi_isa)isa, &call);
        for (int64_t e = 0; e < pooled_w_count(p.c); e++) assert_true(isfinite(p.dw[e]));
        pooled_close(&p);
    }
}

/* A gradient that is not a number makes the weights of its channel so, and pixels of its image that its window reaches;
 * one that is infinite is not lost. */
static void strange_gradients_stay(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (int strange = 0; strange < 2; strange++) {
        pooled_conv p = pooled_open(&cases[0]);
        const pooled_case *c = p.c;
        const int64_t pooled = p.size.rows * p.size.columns * c->o, image = c->h * c->w * c->c;
        p.dy[7 * pooled + (2 * p.size.columns + 1) * c->o + 3] = strange ? INFINITY : NAN; /* window 2,1 of channel 3 */
        twi_call call;
        pooled_weights_call(&call, &p);
        impl_run(twi_cpu_winners_impls, pooled_weights_kernel, (twi_isa)isa, &call);
        for (int64_t i = 0; i < pooled_w_count(c); i++)
            assert_int_equal(!isfinite(p.dw[i]), i / (c->kernel_h * c->kernel_w * c->c) == 3);
        pooled_data_call(&call, &p);
        impl_run(twi_cpu_winners_impls, pooled_data_kernel, (twi_isa)isa, &call);
        int64_t reached = 0;
        for (int64_t i = 0; i < pooled_x_count(c); i++) {
            const int64_t y = i % image / c->c / c->w, x = i % image / c->c % c->w;
            if (isfinite(p.dx[i])) continue;
            assert_int_equal(i / image, 7);
            assert_true(y >= 4 && y < 4 + 6 && x >= 2 && x < 2 + 6);
            reached++;
        }
        assert_true(reached >= 5 * 5 * c->c);
        pooled_close(&p);
    }
}

static const char *refusal(pooled_case c, const char *kernel, int lanes) {
    const pooled_conv p = pooled_sketch(&c);
    twi_call call;
    (kernel == pooled_data_kernel ? pooled_data_call : pooled_weights_call)(&call, &p);
    call.operand[0].lanes = (uint8_t)lanes;
    return impl_refusal(twi_cpu_winners_impls, kernel, &call);
}

static void refuses_what_others_do_better(void **state) {
    (void)state;
    pooled_case c = cases[0];
    assert_null(refusal(c, pooled_weights_kernel, 0));
    assert_null(refusal(c, pooled_data_kernel, 4));
    assert_non_null(strstr(refusal(c, pooled_weights_kernel, 16), "side by side"));
    c.attrs.conv.dilation_w = 2;
    assert_non_null(strstr(refusal(c, pooled_weights_kernel, 0), "dilated"));
    c = cases[0], c.attrs.conv.groups = 2;
    assert_non_null(strstr(refusal(c, pooled_weights_kernel, 0), "group"));
    c = cases[0], c.n = 1;
    assert_non_null(strstr(refusal(c, pooled_data_kernel, 0), "half a vector"));
    c = cases[0], c.c = 1, c.kernel_w = 1;
    assert_non_null(strstr(refusal(c, pooled_weights_kernel, 0), "short"));
    c = cases[0], c.h = c.w = 5000;
    assert_non_null(strstr(refusal(c, pooled_weights_kernel, 0), "large"));
    c = cases[0], c.attrs.pool.kernel_h = c.attrs.pool.kernel_w = 5;
    assert_non_null(strstr(refusal(c, pooled_weights_kernel, 0), "windows too large"));
    c = cases[0], c.kernel_h = 9;
    assert_null(refusal(c, pooled_weights_kernel, 0));
    assert_non_null(strstr(refusal(c, pooled_data_kernel, 0), "more rows of the kernel"));
    c = cases[0], c.attrs.conv.stride_w = 2;
    assert_non_null(strstr(refusal(c, pooled_data_kernel, 0), "strided"));
    c = cases[0], c.attrs.pool.pad_left = 1;
    assert_non_null(strstr(refusal(c, pooled_data_kernel, 0), "side by side"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_sums_in_double),           cmocka_unit_test(same_samples_same_bits),
        cmocka_unit_test(indices_before_the_result_read_zeros), cmocka_unit_test(strange_gradients_stay),
        cmocka_unit_test(refuses_what_others_do_better),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

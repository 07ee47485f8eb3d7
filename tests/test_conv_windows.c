/* Convolutions pooled in windows of 2x2: what they give and which element won, and their weights' gradient, against
 * sums in double, of samples one after the other and side by side, replaced and added; not-a-number that stays where it
 * belongs; and what is refused. */
#include "pooled_conv.h"
#include "check.h"

#include <math.h>

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups; window, its strides, paddings */
static const pooled_case cases[] = {
    {64, 1, 12, 12, 6, 5, 5, {{1, 1, 2, 2, 2, 2, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},  /* LeNet-5's first */
    {16, 6, 10, 14, 16, 5, 5, {{1, 1, 0, 0, 0, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}}, /* and second */
    {19, 3, 8, 6, 4, 3, 3, {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},
    {9, 2, 8, 9, 7, 2, 2, {{1, 1, 1, 0, 0, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},    /* padded on one side */
    {8, 2, 6, 8, 3, 7, 7, {{1, 1, 3, 2, 3, 4, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},
    {16, 2, 10, 8, 5, 5, 5, {{1, 1, 0, 0, 0, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},   /* read in place */
    {8, 3, 6, 8, 5, 5, 3, {{1, 1, 2, 0, 2, 2, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},     /* and not, for rows of zeros */
    {8, 5, 3, 12, 2, 1, 4, {{1, 1, 1, 3, 0, 0, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},    /* one row high */
    {17, 1, 8, 9, 1, 4, 6, {{1, 1, 0, 0, 1, 2, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},
    {8, 24, 2, 3, 5, 7, 7, {{1, 1, 3, 3, 3, 4, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},    /* larger than the image */
    {8, 2, 4, 30, 9, 3, 11, {{1, 1, 1, 5, 1, 5, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},   /* three pieces of three and one of two */
    {8, 1, 2, 2, 3, 3, 2, {{1, 1, 4, 5, 4, 4, 1, 1, 1}, {2, 2, 2, 2, 0, 0, 0, 0, 0, false}}},     /* more padding than kernel */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases, MOST_CHANNELS_OF_WEIGHTS = 3 };

static const char plain_kernel[] = "conv2d.forward_bias_max_pool", relu_kernel[] = "conv2d.forward_bias_max_pool_relu";

static bool takes_forward(int isa) { return isa != TWI_ISA_AVX2; }

/* Element y,x of the convolution's result in channel o of sample n. */
static double element(const pooled_conv *p, int64_t n, int64_t o, int64_t y, int64_t x) {
    const pooled_case *c = p->c;
    const twi_conv2d_attrs *a = &c->attrs.conv;
    double sum = (double)p->b[o];
    for (int64_t r = 0; r < c->kernel_h; r++)
        for (int64_t k = 0; k < c->kernel_w; k++) {
            const int64_t in_y = y + r - a->pad_top, in_x = x + k - a->pad_left;
            if (in_y < 0 || in_y >= c->h || in_x < 0 || in_x >= c->w) continue;
            for (int64_t i = 0; i < c->c; i++)
                sum += (double)p->x[((n * c->h + in_y) * c->w + in_x) * c->c + i] *
                       (double)p->w[((o * c->kernel_h + r) * c->kernel_w + k) * c->c + i];
        }
    return sum;
}

/* y is the largest of its window, and the index that of an element which is as large. */
static void expect_forward(const pooled_conv *p, const float *y, const uint8_t *index, bool relu) {
    const pooled_case *c = p->c;
    const double scale = 2e-6 * sqrt((double)pooled_w_count(c) / (double)c->o);
    for (int64_t i = 0; i < pooled_y_count(p); i++) {
        const int64_t o = i % c->o, window = i / c->o, q = window % p->size.columns,
                      row = window / p->size.columns % p->size.rows, n = window / p->size.columns / p->size.rows;
        double value[4], largest = -INFINITY;
        for (int e = 0; e < 4; e++) {
            value[e] = element(p, n, o, 2 * row + e / 2, 2 * q + e % 2);
            largest = fmax(largest, value[e]);
        }
        const double want = relu ? fmax(largest, 0) : largest;
        if (!(fabs((double)y[i] - want) <= scale * (1 + fabs(want))))
            fail_msg("y %d: %g, expected %g", (int)i, (double)y[i], want);
        assert_in_range(index[i], 0, 3);
        if (!(largest - value[index[i]] <= scale * (1 + fabs(largest))))
            fail_msg("index %d: %d, of %g where %g is", (int)i, index[i], value[index[i]], largest);
    }
}

static void forward_agrees_with_sums_in_double(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        pooled_conv p = pooled_open(&cases[i]);
        const int64_t count = pooled_y_count(&p), sample = count / p.c->n, image = pooled_x_count(p.c) / p.c->n;
        float *y = impl_floats(count);
        uint8_t *index = impl_bytes(count);
        IMPL_EACH_ISA(isa)
        for (int relu = 0; relu < 2 && takes_forward(isa); relu++) {
            const char *kernel = relu ? relu_kernel : plain_kernel;
            const int lanes = pooled_lanes[isa];
            twi_call call;
            pooled_forward_call(&call, &p, y, index);
            impl_run(twi_cpu_windows_impls, kernel, (twi_isa)isa, &call);
            expect_forward(&p, y, index, relu);
            float *turned_x = pooled_turned_floats(p.x, p.c->n, image, lanes);
            for (int turned = 0; turned < 8; turned++) { /* x, y, index: the same bits */
                pooled_conv t = p;
                t.x = turned & 1 ? turned_x : p.x;
                const int64_t room = count + lanes * sample;
                float *other_y = memset(impl_floats(room), 0xFF, (size_t)room * sizeof *y);
                uint8_t *other_index = memset(impl_bytes(room), 0xFF, (size_t)room);
                pooled_forward_call(&call, &t, other_y, other_index);
                call.operand[0].lanes = (uint8_t)(turned & 1 ? lanes : 0);
                call.operand[3].lanes = (uint8_t)(turned & 2 ? lanes : 0);
                call.operand[4].lanes = (uint8_t)(turned & 4 ? lanes : 0);
                impl_run(twi_cpu_windows_impls, kernel, (twi_isa)isa, &call);
                for (int64_t e = 0; e < count; e++) {
                    const int64_t at = pooled_turned_at(e / sample, e % sample, sample, lanes);
                    assert_memory_equal(&y[e], &other_y[turned & 2 ? at : e], sizeof *y);
                    assert_int_equal(index[e], other_index[turned & 4 ? at : e]);
                }
            }
        }
        pooled_close(&p);
    }
}

static void weights_agree_with_sums_in_double(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) IMPL_EACH_ISA(isa) {
            if (cases[i].c > MOST_CHANNELS_OF_WEIGHTS) continue;
            pooled_conv p = pooled_open(&cases[i]);
            const int64_t count = pooled_w_count(p.c);
            const double winners = (double)pooled_y_count(&p) / (double)p.c->o;
            float *once = impl_floats(count);
            twi_call call;
            pooled_weights_call(&call, &p);
            impl_run(twi_cpu_windows_impls, pooled_weights_kernel, (twi_isa)isa, &call);
            pooled_close_to(p.expected_dw, p.dw, count, winners, 1, "dw");
            memcpy(once, p.dw, (size_t)count * sizeof *once);
            call.first = false;
            impl_run(twi_cpu_windows_impls, pooled_weights_kernel, (twi_isa)isa, &call);
            pooled_close_to(p.expected_dw, p.dw, count, winners, 2, "dw, added");
            for (int turned = 1; turned < 8; turned++) { /* x, dy, index */
                memset(p.dw, 0xFF, (size_t)count * sizeof *once);
                pooled_weights_turned(&p, twi_cpu_windows_impls, (twi_isa)isa, turned);
                assert_memory_equal(once, p.dw, (size_t)count * sizeof *once);
            }
            pooled_close(&p);
        }
}

/* A pixel that is not a number reaches the windows over it, and nothing else; one that is infinite reaches some of them. */
static void strange_pixels_stay_in_their_windows(void **state) {
    (void)state;
    const pooled_case *c = &cases[0];
    IMPL_EACH_ISA(isa)
    for (int strange = 0; strange < 2 && takes_forward(isa); strange++) {
        pooled_conv p = pooled_open(c);
        float *y = impl_floats(pooled_y_count(&p));
        uint8_t *index = impl_bytes(pooled_y_count(&p));
        p.x[(37 * c->h + 6) * c->w + 5] = strange ? INFINITY : NAN; /* image 37, row 6, column 5 */
        twi_call call;
        int reached = 0;
        pooled_forward_call(&call, &p, y, index);
        impl_run(twi_cpu_windows_impls, plain_kernel, (twi_isa)isa, &call);
        for (int64_t i = 0; i < pooled_y_count(&p); i++) {
            const int64_t window = i / c->o, q = window % 6, row = window / 6 % 6, n = window / 36;
            const bool over = n == 37 && row >= 2 && row <= 4 && q >= 1 && q <= 3;
            if (!strange || !over) assert_int_equal(!isfinite(y[i]), over);
            reached += !isfinite(y[i]);
        }
        assert_true(reached > 0);
        pooled_close(&p);
    }
}

/* A gradient that is none makes its channel's weights so, and no other's. What did not win is not looked at. */
static void strange_gradients_stay_in_their_channel(void **state) {
    (void)state;
    const pooled_case *c = &cases[0];
    IMPL_EACH_ISA(isa) {
        pooled_conv p = pooled_open(c);
        p.dy[(7 * 36 + 14) * c->o + 3] = NAN; /* image 7, window 2,2, channel 3 */
        twi_call call;
        pooled_weights_call(&call, &p);
        impl_run(twi_cpu_windows_impls, pooled_weights_kernel, (twi_isa)isa, &call);
        for (int64_t i = 0; i < pooled_w_count(c); i++) assert_int_equal(!isfinite(p.dw[i]), i / 25 == 3);
        p.dy[(7 * 36 + 14) * c->o + 3] = 1;
        for (int64_t i = 0; i < pooled_y_count(&p); i++) p.index[i] = 3;
        p.x[11 * 144] = INFINITY; /* image 11's corner */
        impl_run(twi_cpu_windows_impls, pooled_weights_kernel, (twi_isa)isa, &call);
        for (int64_t i = 0; i < pooled_w_count(c); i++)
            assert_int_equal(!isfinite(p.dw[i]),
                             i % 25 == 6); /* of what won, element 1,1 alone lies over it, with tap 1,1 */
        pooled_close(&p);
    }
}

static const char *refusal(pooled_case c, const char *kernel, int lanes) {
    const pooled_conv p = pooled_sketch(&c);
    twi_call call;
    if (kernel == pooled_weights_kernel)
        pooled_weights_call(&call, &p);
    else
        pooled_forward_call(&call, &p, NULL, NULL);
    call.operand[0].lanes = (uint8_t)lanes;
    return impl_refusal(twi_cpu_windows_impls, kernel, &call);
}

static void refuses_what_others_do(void **state) {
    (void)state;
    const twi_call any = {.operand_count = 0};
    assert_non_null(strstr(twi_cpu_windows_impls[0].refuse(&any, TWI_ISA_AVX2), "few registers"));
    static const char *const kernels[] = {plain_kernel, relu_kernel, pooled_weights_kernel};
    for (int k = 0; k < 3; k++) {
        pooled_case c = cases[2];
        assert_null(refusal(c, kernels[k], 4)); /* asked about the least instruction set */
        assert_non_null(strstr(refusal(c, kernels[k], 16), "side by side"));
        c.attrs.conv.groups = 2;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "group"));
        c = cases[2], c.attrs.conv.stride_h = 2;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "strided"));
        c = cases[2], c.attrs.conv.dilation_w = 2;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "dilated"));
        c = cases[2], c.kernel_w = 1;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "one column"));
        c = cases[2], c.n = 1;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "half a vector"));
        c = cases[2], c.c = kernels[k] == pooled_weights_kernel ? MOST_CHANNELS_OF_WEIGHTS + 1 : 25;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "channels"));
        c = cases[2], c.attrs.conv.stride_w = 2;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "strided"));
        c = cases[2], c.attrs.conv.dilation_h = 2;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "dilated"));
        c = cases[2], c.attrs.pool.pad_top = 1;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "windows"));
        c = cases[2], c.h = c.w = 5004;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "large"));
        c = cases[2], c.h++; /* a row left over */
        assert_non_null(strstr(refusal(c, kernels[k], 0), "windows"));
        c = cases[2], c.attrs.pool.stride_w = 1;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "windows"));
        c = cases[2], c.attrs.pool.kernel_h = c.attrs.pool.stride_h = 3, c.h = 12;
        assert_non_null(strstr(refusal(c, kernels[k], 0), "windows"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_agrees_with_sums_in_double),
        cmocka_unit_test(weights_agree_with_sums_in_double),
        cmocka_unit_test(strange_pixels_stay_in_their_windows),
        cmocka_unit_test(strange_gradients_stay_in_their_channel),
        cmocka_unit_test(refuses_what_others_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

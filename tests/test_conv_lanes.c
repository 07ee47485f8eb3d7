/* Convolutions with images in the lanes of vectors: every shape of kernel and border, images that do not fill a vector,
 * not-a-number that stays in its image, and what is refused. */
#include "conv_check.h"
#include "check.h"

#include <math.h>

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups */
static const conv_check_case cases[] = {
    {16, 1, 12, 12, 6, 5, 5, {1, 1, 2, 2, 2, 2, 1, 1, 1}}, /* LeNet's first */
    {16, 6, 10, 10, 16, 5, 5, {1, 1, 0, 0, 0, 0, 1, 1, 1}}, /* and second */
    {8, 3, 7, 9, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},    /* ResNet-20's first */
    {8, 3, 11, 12, 8, 7, 7, {2, 2, 3, 3, 3, 3, 1, 1, 1}},   /* ResNet-50's first */
    {8, 1, 1, 1, 1, 1, 1, {1, 1, 0, 0, 0, 0, 1, 1, 1}},
    {9, 2, 5, 4, 3, 3, 2, {1, 1, 0, 0, 0, 0, 1, 1, 1}},     /* one image more than a vector */
    {21, 5, 6, 7, 7, 2, 3, {1, 1, 1, 0, 0, 2, 1, 1, 1}},    /* padded otherwise on each side */
    {11, 4, 9, 8, 5, 3, 3, {2, 3, 1, 2, 1, 2, 1, 1, 1}},    /* strides that leave rows and columns over */
    {8, 3, 9, 9, 4, 3, 3, {1, 1, 2, 2, 2, 2, 2, 2, 1}},     /* dilated */
    {8, 2, 12, 13, 4, 3, 2, {2, 3, 3, 1, 2, 4, 3, 2, 1}},   /* dilated, strided */
    {8, 2, 13, 13, 3, 3, 3, {3, 2, 0, 0, 0, 0, 2, 3, 1}},
    {8, 2, 5, 5, 3, 2, 2, {3, 3, 0, 0, 0, 0, 1, 1, 1}},     /* strides larger than the kernel: pixels nobody looks at */
    {8, 2, 2, 3, 3, 2, 2, {1, 1, 3, 4, 3, 4, 1, 1, 1}},     /* more padding than kernel: outputs of zeros alone */
    {8, 1, 3, 3, 2, 5, 5, {1, 1, 2, 2, 2, 2, 1, 1, 1}},     /* kernel larger than the image */
    {8, 1, 6, 1, 13, 3, 1, {1, 1, 1, 0, 1, 0, 1, 1, 1}},    /* one column */
    {8, 1, 1, 40, 4, 1, 5, {1, 1, 0, 2, 0, 2, 1, 1, 1}},    /* one row */
    {8, 23, 4, 4, 11, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {16, 7, 5, 5, 9, 1, 1, {1, 1, 0, 0, 0, 0, 1, 1, 1}},
    {8, 5, 40, 9, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},   /* more rows than a block of dy holds */
    {16, 2, 6, 280, 6, 5, 3, {1, 1, 2, 1, 2, 1, 1, 1, 1}},  /* and not one of it under some rows of the kernel */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

static void agrees_with_sums_in_double(void **state) {
    (void)state;
    int sets = 0;
    IMPL_EACH_ISA(isa) sets += isa != TWI_ISA_BASELINE;
    if (!sets) skip();
    assert_int_equal(conv_check(twi_cpu_lanes_impls, cases, CASES), CASES * 6 * sets);
}

static const conv_check_case small = {11, 2, 6, 5, 3, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}};

/* A pixel that is not a number, or infinite, reaches the windows over it, and no other image of its vector. */
static void strange_numbers_stay_in_their_image(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        if (isa == TWI_ISA_BASELINE) continue;
        float *x = impl_floats(11 * 30 * 2), *w = impl_floats(3 * 9 * 2);
        float *clean = conv_check_forward(twi_cpu_lanes_impls, (twi_isa)isa, &small, x, w);
        x[(9 * 30 + 2 * 5 + 2) * 2 + 1] = NAN;  /* image 9, in the vector that is not full: row 2, column 2 */
        x[(4 * 30 + 0 * 5 + 0) * 2] = INFINITY; /* image 4: a corner */
        float *y = conv_check_forward(twi_cpu_lanes_impls, (twi_isa)isa, &small, x, w);
        for (int i = 0; i < 11 * 30 * 3; i++) {
            int image = i / 90, row = i / 15 % 6, column = i / 3 % 5;
            if (image == 9 && row >= 1 && row <= 3 && column >= 1 && column <= 3)
                assert_true(isnan(y[i]));
            else if (image == 4 && row <= 1 && column <= 1)
                assert_true(isinf(y[i]));
            else
                assert_true(memcmp(&y[i], &clean[i], sizeof(float)) == 0);
        }
        impl_release();
    }
}

/* Relu lets not-a-number through; a gradient with one makes those weights' sums not a number, and no others. */
static void not_a_number_travels(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        if (isa == TWI_ISA_BASELINE) continue;
        float *x = impl_floats(11 * 30 * 2), *w = impl_floats(3 * 9 * 2), *b = impl_floats(3),
              *y = impl_floats(11 * 30 * 3);
        x[(2 * 30 + 3 * 5 + 2) * 2] = NAN;
        twi_call call;
        conv_check_call(&call, &small, "conv2d.forward_bias_relu", x, w, b, y);
        impl_run(twi_cpu_lanes_impls, "conv2d.forward_bias_relu", (twi_isa)isa, &call);
        for (int i = 0; i < 11 * 90; i++) {
            int image = i / 90, row = i / 15 % 6, column = i / 3 % 5;
            bool reached = image == 2 && row >= 2 && row <= 4 && column >= 1 && column <= 3;
            assert_true(reached ? isnan(y[i]) : y[i] >= 0);
        }
        float *dy = impl_floats(11 * 90);
        x[(2 * 30 + 3 * 5 + 2) * 2] = 1;
        dy[(10 * 30 + 2 * 5 + 2) * 3 + 1] = NAN;
        float *dw = conv_check_backward_weights(twi_cpu_lanes_impls, (twi_isa)isa, &small, x, dy);
        for (int i = 0; i < 3 * 18; i++) assert_int_equal(isnan(dw[i]) != 0, i / 18 == 1);
        impl_release();
    }
}

/* ---- with a pooling, samples side by side ---- */

enum { IMAGES = 19, SIDE = 6, POOLED = 3, FILTERS = 3, ROOM = 32 };

static const twi_conv2d_pool_attrs pooled_attrs = {
    .conv = {1, 1, 1, 1, 1, 1, 1, 1, 1},
    .pool = {.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2},
};
static const impl_shape image_shape = {4, {IMAGES, 2, SIDE, SIDE}, true}, weight_shape = {4, {FILTERS, 2, 3, 3}, true},
                        pooled_shape = {4, {IMAGES, FILTERS, POOLED, POOLED}, true}, bias_shape = {1, {FILTERS}, false};

/* Element e of sample n, where `lanes` of them lie side by side. */
static int64_t turned_at(int64_t n, int64_t e, int64_t elements, int64_t lanes) {
    return lanes ? (n / lanes * elements + e) * lanes + n % lanes : n * elements + e;
}

typedef struct pooled {
    float *x, *w, *b, *y, *dw;
    uint8_t *index;
    int lanes; /* of y and index, and of dy */
} pooled;

static void pooled_forward(pooled *p, twi_isa isa) {
    twi_call call = {.attrs = &pooled_attrs, .first = true};
    impl_operand(&call, 0, TWI_REAL, &image_shape, p->x);
    impl_operand(&call, 1, TWI_REAL, &weight_shape, p->w);
    impl_operand(&call, 2, TWI_REAL, &bias_shape, p->b);
    call.operand[2].stride[0] = 1;
    impl_operand(&call, 3, TWI_REAL, &pooled_shape, p->y);
    impl_operand(&call, 4, TWI_U8, &pooled_shape, p->index);
    call.operand[3].lanes = call.operand[4].lanes = (uint8_t)p->lanes;
    impl_run(twi_cpu_lanes_impls, "conv2d.forward_bias_max_pool_relu", isa, &call);
}

static void pooled_backward(pooled *p, twi_isa isa, float *dy) {
    twi_call call = {.attrs = &pooled_attrs, .first = true};
    impl_operand(&call, 0, TWI_REAL, &image_shape, p->x);
    impl_operand(&call, 1, TWI_REAL, &pooled_shape, dy);
    impl_operand(&call, 2, TWI_U8, &pooled_shape, p->index);
    impl_operand(&call, 3, TWI_ACC, &weight_shape, p->dw);
    call.operand[1].lanes = call.operand[2].lanes = (uint8_t)p->lanes;
    impl_run(twi_cpu_lanes_impls, "conv2d.backward_weights_unpooled", isa, &call);
}

static pooled open_pooled(int lanes) {
    enum { OUT = POOLED * POOLED * FILTERS };
    return (pooled){.x = impl_floats(IMAGES * SIDE * SIDE * 2),
                    .w = impl_floats(FILTERS * 18),
                    .b = impl_floats(FILTERS),
                    .y = impl_floats((lanes ? ROOM : IMAGES) * OUT),
                    .dw = impl_floats(FILTERS * 18),
                    .index = impl_bytes((lanes ? ROOM : IMAGES) * OUT),
                    .lanes = lanes};
}

/* What lies side by side is the same, whatever is in lanes that hold no sample. */
static void turned_samples_give_the_same(void **state) {
    (void)state;
    enum { OUT = POOLED * POOLED * FILTERS };
    const int widths[] = {[TWI_ISA_BASELINE] = 4, [TWI_ISA_AVX2] = 8, [TWI_ISA_AVX512] = 16, [TWI_ISA_AVX512_BF16] = 16};
    IMPL_EACH_ISA(isa) {
        pooled plain = open_pooled(0), turned = open_pooled(widths[isa]);
        turned.x = plain.x, turned.w = plain.w, turned.b = plain.b;
        pooled_forward(&plain, (twi_isa)isa);
        pooled_forward(&turned, (twi_isa)isa);
        float *dy = impl_floats(IMAGES * OUT), *turned_dy = impl_floats(ROOM * OUT);
        for (int i = 0; i < ROOM * OUT; i++) turned_dy[i] = NAN;
        for (int i = 0; i < IMAGES * OUT; i++) {
            int64_t at = turned_at(i / OUT, i % OUT, OUT, turned.lanes);
            assert_true(memcmp(&turned.y[at], &plain.y[i], sizeof(float)) == 0);
            assert_int_equal(turned.index[at], plain.index[i]);
            turned_dy[at] = dy[i];
        }
        pooled_backward(&plain, (twi_isa)isa, dy);
        pooled_backward(&turned, (twi_isa)isa, turned_dy);
        assert_memory_equal(plain.dw, turned.dw, FILTERS * 18 * sizeof(float));
        impl_release();
    }
}

/* Of equal elements the first wins; not-a-number wins, passes the relu, and stays in its image. */
static void pooling_picks_as_the_specification(void **state) {
    (void)state;
    enum { OUT = POOLED * POOLED * FILTERS };
    IMPL_EACH_ISA(isa) {
        pooled p = open_pooled(0);
        for (int i = 0; i < IMAGES * SIDE * SIDE * 2; i++) p.x[i] = 1;
        for (int i = 0; i < FILTERS * 18; i++) p.w[i] = 0.25f;
        for (int i = 0; i < FILTERS; i++) p.b[i] = 1;
        p.x[(17 * SIDE * SIDE + 5 * SIDE + 5) * 2] =
            NAN; /* a corner, whose windows are those of outputs 4, 4 to 5, 5 */
        pooled_forward(&p, (twi_isa)isa);
        for (int i = 0; i < IMAGES * OUT; i++) {
            int image = i / OUT, row = i % OUT / FILTERS / POOLED, column = i % OUT / FILTERS % POOLED;
            /* Inside all sums are alike; at a side the first of the larger ones lies away from it. */
            int expected = (row == 0 ? 2 : 0) + (column == 0 ? 1 : 0);
            bool strange = image == 17 && row == 2 && column == 2;
            assert_int_equal(p.index[i], expected);
            assert_int_equal(isnan(p.y[i]) != 0, strange);
        }
        impl_release();
    }
}

/* A kernel of 3 x 1 over `width` columns, and windows of 3 x 2, of which parts of dy may hold two rows. */
static void windows_in_parts(twi_isa isa, int width) {
    enum { N = 16, C = 3, O = 12, H = 15, ROWS = H / 3 };
    const int columns = width / 2;
    static const twi_conv2d_pool_attrs attrs = {.conv = {1, 1, 1, 0, 1, 0, 1, 1, 1},
                                                .pool = {.kernel_h = 3, .kernel_w = 2, .stride_h = 3, .stride_w = 2}};
    const impl_shape image = {4, {N, C, H, width}, true}, weights = {4, {O, C, 3, 1}, true},
                     pooled = {4, {N, O, ROWS, columns}, true};
    float *x = impl_floats(N * H * width * C), *dy = impl_floats(N * ROWS * columns * O), *dw = impl_floats(O * 3 * C);
    uint8_t *index = impl_bytes(N * ROWS * columns * O);
    double expected[O * 3 * C] = {0};
    for (int i = 0; i < N * ROWS * columns * O; i++) {
        const int o = i % O, q = i / O % columns, p = i / O / columns % ROWS, n = i / O / columns / ROWS;
        index[i] = (uint8_t)(i * 7 % 6);
        const int h = 3 * p + index[i] / 2, w = 2 * q + index[i] % 2;
        for (int k = 0; k < 3; k++)
            for (int c = 0; c < C && h + k - 1 >= 0 && h + k - 1 < H; c++)
                expected[(o * 3 + k) * C + c] += (double)dy[i] * (double)x[((n * H + h + k - 1) * width + w) * C + c];
    }
    twi_call call = {.attrs = &attrs, .first = true};
    impl_operand(&call, 0, TWI_REAL, &image, x);
    impl_operand(&call, 1, TWI_REAL, &pooled, dy);
    impl_operand(&call, 2, TWI_U8, &pooled, index);
    impl_operand(&call, 3, TWI_ACC, &weights, dw);
    impl_run(twi_cpu_lanes_impls, "conv2d.backward_weights_unpooled", isa, &call);
    for (int i = 0; i < O * 3 * C; i++)
        if (!(fabs((double)dw[i] - expected[i]) <= 1e-4 * sqrt((double)(N * ROWS * columns))))
            fail_msg("isa %d, %d columns, weight %d: %g, expected %g", (int)isa, width, i, (double)dw[i], expected[i]);
    impl_release();
}

static void parts_of_windows_know_their_rows(void **state) {
    (void)state;
    static const int widths[] = {10, 12, 30, 40, 60}; /* where some instruction set cuts them so */
    IMPL_EACH_ISA(isa)
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) windows_in_parts((twi_isa)isa, widths[i]);
}

static void same_call_same_bits(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        if (isa == TWI_ISA_BASELINE) continue;
        float *x = impl_floats(11 * 60), *dy = impl_floats(11 * 90);
        float *first = conv_check_backward_weights(twi_cpu_lanes_impls, (twi_isa)isa, &small, x, dy);
        float *moved = impl_floats(11 * 60 + 2) + 2; /* another alignment */
        memcpy(moved, x, 11 * 60 * sizeof *x);
        float *second = conv_check_backward_weights(twi_cpu_lanes_impls, (twi_isa)isa, &small, moved, dy);
        assert_memory_equal(first, second, 3 * 18 * sizeof *first);
        impl_release();
    }
}

static const char *refusal(const conv_check_case *c, twi_isa isa) {
    twi_call call;
    conv_check_call(&call, c, "conv2d.forward", NULL, NULL, NULL, NULL);
    return twi_cpu_lanes_impls[0].refuse(&call, isa);
}

/* Other processors have no instruction set beyond the baseline, which the family does not serve. */
static bool has_family(void) {
#if defined(__x86_64__)
    return true;
#else
    return false;
#endif
}

static void refuses_what_others_do_better(void **state) {
    (void)state;
    if (!has_family()) skip();
    conv_check_case c = small;
    assert_null(refusal(&c, TWI_ISA_AVX2));
    assert_non_null(refusal(&c, TWI_ISA_BASELINE));
    c.attrs.groups = 2;
    c.o = 4;
    assert_non_null(strstr(refusal(&c, TWI_ISA_AVX2), "group"));
    c = small;
    c.n = 3;
    assert_non_null(strstr(refusal(&c, TWI_ISA_AVX2), "half a vector"));
    c = small;
    c.c = 65;
    assert_non_null(strstr(refusal(&c, TWI_ISA_AVX2), "channels"));
    c = small;
    c.h = c.w = 5000;
    assert_non_null(strstr(refusal(&c, TWI_ISA_AVX2), "large"));
    c = small;
    twi_call call;
    conv_check_call(&call, &c, "conv2d.forward", NULL, NULL, NULL, NULL);
    call.operand[0].dtype = TW_F16;
    assert_non_null(strstr(twi_cpu_lanes_impls[0].refuse(&call, TWI_ISA_AVX2), "f32"));
    call.operand[0].dtype = TW_F32;
    call.operand[1].stride[1] = 9; /* O,I,H,W */
    assert_non_null(strstr(twi_cpu_lanes_impls[0].refuse(&call, TWI_ISA_AVX2), "innermost"));
}

static void wants_whole_vectors(void **state) {
    (void)state;
    if (!has_family()) skip();
    twi_call call;
    conv_check_call(&call, &small, "conv2d.forward", NULL, NULL, NULL, NULL);
    assert_int_equal(twi_cpu_lanes_impls[0].multiple(&call, TWI_ISA_AVX2), 8);
    assert_int_equal(twi_cpu_lanes_impls[0].multiple(&call, TWI_ISA_AVX512), 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_sums_in_double),    cmocka_unit_test(strange_numbers_stay_in_their_image),
        cmocka_unit_test(not_a_number_travels),          cmocka_unit_test(same_call_same_bits),
        cmocka_unit_test(refuses_what_others_do_better), cmocka_unit_test(wants_whole_vectors),
        cmocka_unit_test(turned_samples_give_the_same),  cmocka_unit_test(pooling_picks_as_the_specification),
        cmocka_unit_test(parts_of_windows_know_their_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

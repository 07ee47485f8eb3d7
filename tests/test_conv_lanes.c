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

static void refuses_what_others_do_better(void **state) {
    (void)state;
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

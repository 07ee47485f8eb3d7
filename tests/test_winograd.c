/* Convolutions of 3x3 by Winograd's filtering in f32 (halves: test_winograd_halves.c): every border, sizes that tiles of 2x2 do not fill, blocks and panels that are
 * not full, and what is refused. */
#include "conv_check.h"
#include "check.h"

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups */
static const conv_check_case cases[] = {
    {2, 16, 8, 8, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {3, 16, 7, 9, 32, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}}, /* tiles that reach over the edge */
    {2, 32, 6, 5, 16, 3, 3, {1, 1, 0, 0, 0, 0, 1, 1, 1}}, /* no padding */
    {2, 16, 5, 4, 48, 3, 3, {1, 1, 2, 2, 2, 2, 1, 1, 1}}, /* all there is to pad; a panel of one vector after one of two */
    {2, 48, 4, 7, 16, 3, 3, {1, 1, 0, 2, 1, 0, 1, 1, 1}}, /* padded otherwise on each side */
    {1, 16, 1, 1, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}}, /* one pixel */
    {2, 16, 2, 3, 16, 3, 3, {1, 1, 4, 4, 3, 4, 1, 1, 1}}, /* outputs of zeros alone */
    {5, 16, 13, 11, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}}, /* several blocks, which begin in the middle of a row */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

static void agrees_with_sums_in_double(void **state) {
    (void)state;
    int sets = 0;
    IMPL_EACH_ISA(isa) sets++;
    assert_int_equal(conv_check(twi_cpu_winograd_impls, cases, CASES), CASES * 6 * sets);
}

/* A kernel whose middle tap alone is 1 copies channels. */
static void a_middle_tap_copies(void **state) {
    (void)state;
    conv_check_case c = {2, 16, 5, 6, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}};
    enum { PIXELS = 2 * 5 * 6, FLOATS = PIXELS * 16 };
    float x[FLOATS], w[16 * 9 * 16] = {0};
    for (int i = 0; i < FLOATS; i++) x[i] = (float)(i % 97) - 48;
    for (int o = 0; o < 16; o++) w[(o * 9 + 4) * 16 + 15 - o] = 1;
    IMPL_EACH_ISA(isa) {
        const float *y = conv_check_forward(twi_cpu_winograd_impls, (twi_isa)isa, &c, x, w);
        for (int i = 0; i < FLOATS; i++) assert_true(y[i] == x[i / 16 * 16 + 15 - i % 16]);
        impl_release();
    }
}

static const char *refusal_of(conv_check_case c, const char *kernel) {
    twi_call call;
    conv_check_call(&call, &c, kernel, NULL, NULL, NULL, NULL);
    return impl_refusal(twi_cpu_winograd_impls, kernel, &call);
}

static void refuses_what_it_cannot(void **state) {
    (void)state;
    const conv_check_case taken = {1, 16, 6, 6, 32, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}};
    static const char *const kernels[] = {"conv2d.forward", "conv2d.backward_data", "conv2d.backward_weights"};
    for (int k = 0; k < 3; k++) {
        conv_check_case c = taken;
        assert_null(refusal_of(c, kernels[k]));
        c.kernel_w = 5;
        assert_non_null(strstr(refusal_of(c, kernels[k]), "3x3"));
        c = taken, c.attrs.stride_h = 2;
        assert_non_null(strstr(refusal_of(c, kernels[k]), "stride"));
        c = taken, c.attrs.dilation_w = 2;
        assert_non_null(strstr(refusal_of(c, kernels[k]), "dilated"));
        c = taken, c.attrs.groups = 2;
        assert_non_null(strstr(refusal_of(c, kernels[k]), "grouped"));
        c = taken, c.c = 3;
        assert_non_null(strstr(refusal_of(c, kernels[k]), "vectors"));
        c = taken, c.n = 4, c.c = c.o = 256; /* 36 tiles */
        assert_non_null(strstr(refusal_of(c, kernels[k]), "weights"));
        c.n = 8;
        assert_null(refusal_of(c, kernels[k]));
        c.c = c.o = 512; /* 16 MB of transformed weights */
        assert_non_null(strstr(refusal_of(c, kernels[k]), "weights"));
        c = taken, c.o = 18;
        assert_non_null(strstr(refusal_of(c, kernels[k]), "vectors"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_sums_in_double),
        cmocka_unit_test(a_middle_tap_copies),
        cmocka_unit_test(refuses_what_it_cannot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Convolutions of few channels on one image, output channels in a vector: channels that fill no vector, strides, borders, and
 * what is refused. Those that pool are in test_ops.c and test_program.c. */
#include "conv_check.h"
#include "check.h"

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups */
static const conv_check_case cases[] = {
    {1, 1, 9, 8, 6, 5, 5, {1, 1, 2, 2, 2, 2, 1, 1, 1}},
    {1, 3, 8, 11, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {1, 8, 7, 6, 40, 3, 3, {1, 1, 0, 0, 0, 0, 1, 1, 1}},
    {1, 3, 13, 12, 17, 7, 7, {2, 2, 3, 3, 3, 3, 1, 1, 1}},
    {1, 4, 5, 5, 64, 1, 1, {1, 1, 0, 0, 0, 0, 1, 1, 1}},
    {1, 2, 6, 7, 33, 2, 3, {1, 2, 1, 0, 0, 2, 1, 1, 1}}, /* padded otherwise on each side */
    {1, 5, 1, 1, 1, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},  /* one pixel, one channel */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

static void agrees_with_sums_in_double(void **state) {
    (void)state;
    int sets = 0;
    IMPL_EACH_ISA(isa) sets++;
    assert_int_equal(conv_check(twi_cpu_pixels_impls, cases, CASES), CASES * 3 * sets);
}

static const char *refusal_of(conv_check_case c) {
    twi_call call;
    conv_check_call(&call, &c, "conv2d.forward", NULL, NULL, NULL, NULL);
    return impl_refusal(twi_cpu_pixels_impls, "conv2d.forward", &call);
}

static void refuses_what_it_cannot(void **state) {
    (void)state;
    const conv_check_case taken = {1, 4, 6, 6, 8, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}};
    conv_check_case c = taken;
    assert_null(refusal_of(c));
    c.n = 2; /* of a vector of four */
    assert_non_null(strstr(refusal_of(c), "images"));
    c = taken, c.c = 9;
    assert_non_null(strstr(refusal_of(c), "channels"));
    c = taken, c.o = 65;
    assert_non_null(strstr(refusal_of(c), "channels"));
    c = taken, c.attrs.stride_w = 3;
    assert_non_null(strstr(refusal_of(c), "stride"));
    c = taken, c.attrs.dilation_h = 2;
    assert_non_null(strstr(refusal_of(c), "dilated"));
    c = taken, c.attrs.groups = 2;
    assert_non_null(strstr(refusal_of(c), "group"));
    c = taken, c.h = c.w = 200;
    assert_non_null(strstr(refusal_of(c), "large"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_sums_in_double),
        cmocka_unit_test(refuses_what_it_cannot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

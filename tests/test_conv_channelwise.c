/* Convolutions with one filter a channel: every shape of kernel and border, and what is refused. */
#include "conv_check.h"
#include "check.h"

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups */
static const conv_check_case cases[] = {
    {2, 8, 7, 6, 8, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 8}},
    {3, 4, 8, 9, 4, 3, 3, {2, 2, 1, 1, 1, 1, 1, 1, 4}},
    {2, 19, 7, 6, 19, 3, 3, {1, 1, 2, 2, 2, 2, 2, 2, 19}}, /* dilated */
    {2, 5, 9, 10, 5, 2, 5, {3, 2, 0, 3, 1, 0, 1, 1, 5}},   /* padded otherwise on each side */
    {1, 33, 1, 1, 33, 1, 1, {1, 1, 0, 0, 0, 0, 1, 1, 33}},
    {1, 6, 2, 3, 6, 2, 2, {1, 1, 3, 4, 3, 4, 1, 1, 6}},    /* outputs of zeros alone */
    {1, 7, 3, 3, 7, 5, 5, {1, 1, 2, 2, 2, 2, 1, 1, 7}},    /* kernel larger than the image */
    {1, 4, 5, 5, 4, 2, 2, {3, 3, 0, 0, 0, 0, 1, 1, 4}},    /* pixels nobody looks at */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

static void agrees_with_sums_in_double(void **state) {
    (void)state;
    int sets = 0;
    IMPL_EACH_ISA(isa) sets++;
    assert_int_equal(conv_check(twi_cpu_channelwise_impls, cases, CASES), CASES * 6 * sets);
}

static void refuses_other_groups(void **state) {
    (void)state;
    twi_call call;
    conv_check_case c = {1, 8, 4, 4, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 8}};
    conv_check_call(&call, &c, "conv2d.forward", NULL, NULL, NULL, NULL);
    assert_non_null(strstr(impl_refusal(twi_cpu_channelwise_impls, "conv2d.forward", &call), "filter"));
    c.o = 8, c.attrs.groups = 4;
    conv_check_call(&call, &c, "conv2d.forward", NULL, NULL, NULL, NULL);
    assert_non_null(strstr(impl_refusal(twi_cpu_channelwise_impls, "conv2d.forward", &call), "filter"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_sums_in_double),
        cmocka_unit_test(refuses_other_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

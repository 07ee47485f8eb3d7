/* Convolutions of images about as small as the kernel: every kernel, stride and border, and what is refused. */
#include "conv_check.h"
#include "check.h"

/* clang-format off */
/* stride, padding top left bottom right, dilation, groups */
static const conv_check_case cases[] = {
    {3, 256, 2, 2, 130, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {17, 128, 2, 2, 230, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}}, /* more samples than at once, a shorter last block of filters */
    {2, 256, 1, 1, 120, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {1, 100, 1, 2, 131, 5, 5, {1, 1, 2, 2, 2, 2, 1, 1, 1}},
    {2, 70, 3, 2, 160, 5, 5, {2, 1, 2, 2, 2, 2, 1, 1, 1}},
    {2, 67, 3, 3, 250, 4, 4, {1, 1, 3, 2, 1, 1, 1, 1, 1}},   /* padded otherwise on each side */
    {2, 170, 4, 4, 180, 3, 3, {1, 1, 3, 3, 3, 3, 3, 3, 1}},  /* dilated */
    {1, 260, 2, 3, 257, 2, 2, {2, 3, 3, 4, 3, 4, 1, 1, 1}},  /* outputs of zeros alone */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

static void agrees_with_sums_in_double(void **state) {
    (void)state;
    int sets = 0;
    IMPL_EACH_ISA(isa) sets++;
    assert_int_equal(conv_check(twi_cpu_inside_impls, cases, CASES), CASES * 3 * sets);
}

static void check_refusal(conv_check_case c, const char *part) {
    twi_call call;
    conv_check_call(&call, &c, "conv2d.forward", NULL, NULL, NULL, NULL);
    const char *refusal = impl_refusal(twi_cpu_inside_impls, "conv2d.forward", &call);
    if (!refusal || !strstr(refusal, part)) fail_msg("refused with \"%s\" instead of %s", refusal ? refusal : "", part);
}

static void refuses_what_others_do_faster(void **state) {
    (void)state;
    check_refusal((conv_check_case){1, 256, 4, 4, 256, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}}, "most of the kernel");
    check_refusal((conv_check_case){1, 256, 5, 4, 256, 9, 9, {1, 1, 4, 4, 4, 4, 1, 1, 1}}, "not small");
    check_refusal((conv_check_case){1, 64, 2, 2, 64, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}}, "stay in the cache");
    check_refusal((conv_check_case){1, 512, 2, 2, 512, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 2}}, "group");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_sums_in_double),
        cmocka_unit_test(refuses_what_others_do_faster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The networks of test_fit_memory under the same shares of memory, on devices that are slow, as an emulated one is: an update of a whole batch
 * each. And recomputation over some updates of ResNet-20, through the trainer, to the same bits. */
#include "limited_fit.h"

#include <string.h>

static void network_within_less(int index) {
    for (int k = 0; k < SHARES; k++) fit_within(&networks[index], limited_share(index, k), false);
}

static void lenet5_finishes_within_less(void **state) {
    (void)state;
    network_within_less(0);
}

static void resnet20_finishes_within_less(void **state) {
    (void)state;
    network_within_less(1);
}

static void resnet18_finishes_within_less(void **state) {
    (void)state;
    network_within_less(2);
}

/* Five updates, the last of a shorter batch, and an evaluation. */
static void recomputing_learns_the_same_bits(void **state) {
    (void)state;
    static const setting small = {"ResNet-20", resnet20, 3, 16, 8, 34};
    learned plain = learn(&small, (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, 0, NULL),
            blocks = learn(&small, (tw_trainer_options){.recompute = TW_RECOMPUTE_BLOCKS}, 0, NULL);
    assert_int_equal(plain.calls, 5 * epochs());
    assert_int_equal(blocks.parts, 1);
    assert_non_null(strstr(blocks.log.text, "are done again in the backward"));
    assert_int_equal(plain.count, blocks.count);
    assert_memory_equal(plain.parameters, blocks.parameters, plain.count * sizeof(float));
    assert_true(plain.loss == blocks.loss);
    drop(&plain);
    drop(&blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputing_learns_the_same_bits),
        cmocka_unit_test(lenet5_finishes_within_less),
        cmocka_unit_test(resnet20_finishes_within_less),
        cmocka_unit_test(resnet18_finishes_within_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_fit_floor's question for ResNet-20, whose planning takes long, and more batches of LeNet-5. */
#include "fit_floor.h"

static void resnet20_trains_with_the_floor(void **state) {
    (void)state;
    static const int batches[] = {1, 6, 16, 64};
    check_floors("ResNet-20", resnet20, 3, 16, batches, 4);
}

static void lenet5_trains_with_the_floor(void **state) {
    (void)state;
    static const int batches[] = {1, 2, 3, 7, 16, 48, 100};
    check_floors("LeNet-5", lenet, 1, 28, batches, sizeof batches / sizeof *batches);
}

static void small_nets_train_with_the_floor(void **state) {
    (void)state;
    static const int batches[] = {1, 2, 12, 48};
    check_floors("convolutions", convolutions, 1, 12, batches, 4);
    check_floors("norms", norms, 1, 12, batches, 4);
    check_floors("frozen norms", frozen_norms, 1, 12, batches, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lenet5_trains_with_the_floor),
        cmocka_unit_test(small_nets_train_with_the_floor),
        cmocka_unit_test(resnet20_trains_with_the_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

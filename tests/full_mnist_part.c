/* LeNet-5 on the first 1500 images of MNIST, two epochs, on the device that TALWEG_TEST_DEVICE names; on a device that is not
 * the CPU beside the CPU. Real data are under TALWEG_TEST_DATA; without them the test is skipped. */
#include "check.h"
#include <talweg/talweg.h>

#include <math.h>
#include <stdio.h>

enum { TRAINED = 1500, TESTED = 500, EPOCHS = 2, SKIPPED = 77 };

/* Which images: the same on every device. */
static tw_dataset *first_of(tw_context *context, const char *folder, tw_split split, int64_t count) {
    int64_t index[TRAINED];
    tw_dataset *all, *part;
    for (int64_t i = 0; i < count; i++) index[i] = i;
    CHECK_OK(tw_dataset_open(&all, context, folder, split, NULL));
    CHECK_OK(tw_dataset_create_subset(&part, all, index, count));
    tw_dataset_destroy(all);
    return part;
}

/* Everything that depends on chance has one seed, so that devices differ by rounding alone. */
static void train_on(const char *device, tw_history_row row[EPOCHS]) {
    char folder[4096];
    tw_context *context;
    tw_model *model;
    tw_trainer *trainer;
    snprintf(folder, sizeof folder, "%s/mnist", getenv("TALWEG_TEST_DATA"));
    CHECK_OK(tw_context_create(&context, device, NULL));
    tw_dataset *train = first_of(context, folder, TW_TRAIN, TRAINED),
               *test = first_of(context, folder, TW_TEST, TESTED);
    CHECK_OK(tw_model_create(&model, context));
    CHECK_OK(tw_model_build(model, tw_zoo_lenet5(model, tw_input(model, 1, 28, 28), 10), TW_OPTIONS(model, .seed = 1)));
    CHECK_OK(tw_trainer_create(&trainer, model,
                               TW_OPTIONS(trainer, .epochs = EPOCHS, .batch = 50, .evaluation_batch = 100,
                                          .optimizer = {.learning_rate = 0.02, .momentum = 0.9f})));
    CHECK_OK(tw_trainer_fit(trainer, train, test));
    for (int i = 0; i < EPOCHS; i++) {
        CHECK_OK(tw_trainer_get_history(trainer, i, &row[i]));
        print_message("%s, epoch %d: train loss %.6f, test loss %.6f, accuracy %.2f %%, %.1f s\n", device, i + 1,
                      row[i].train.loss, row[i].test.loss, 100 * row[i].test.top1, row[i].seconds);
    }
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    tw_context_destroy(context);
}

static void lenet5_learns_a_part_of_mnist(void **state) {
    (void)state;
    tw_history_row found[EPOCHS], expected[EPOCHS];
    train_on(check_device_or_cpu(), found);
    assert_true(found[EPOCHS - 1].test.top1 >= 0.86);
    if (!check_device()) return;
    train_on("cpu", expected);
    for (int i = 0; i < EPOCHS; i++) {
        assert_true(fabs(found[i].train.loss - expected[i].train.loss) <= 1e-4 * expected[i].train.loss);
        assert_true(fabs(found[i].test.top1 - expected[i].test.top1) <= 0.005);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lenet5_learns_a_part_of_mnist)};
    if (!getenv("TALWEG_TEST_DATA")) return puts("skipped: TALWEG_TEST_DATA is not set"), SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

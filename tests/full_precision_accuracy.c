/* What bf16 and f16 cost in accuracy: the mean over three seeds stays within 0.2 points of that of f32, on the digits and, where
 * TALWEG_TEST_DATA names a folder that holds it, on MNIST. f16 is trained with its loss scale. */
#include "check.h"
#include <talweg/talweg.h>

#include <stdio.h>

enum { SEEDS = 3, PRECISIONS = 3, CLASSES = 10 };
static const tw_precision precisions[PRECISIONS] = {TW_PRECISION_F32, TW_PRECISION_BF16, TW_PRECISION_F16};
static const double points_allowed = 0.2;

typedef struct task {
    const char *name, *folder;
    tw_value *(*network)(tw_model *model);
    int epochs;
    double rate, least; /* accuracy of f32 in percent: below it, something else is wrong */
} task;

static tw_value *small_network(tw_model *model) {
    tw_value *x = tw_input(model, 1, 8, 8);
    x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_relu(model, tw_conv2d(model, x, 32, 3, TW_OPTIONS(conv2d, .padding = 1)));
    return tw_dense(model, tw_flatten(model, tw_max_pool(model, x, 2, NULL)), CLASSES, NULL);
}

static tw_value *lenet5(tw_model *model) { return tw_zoo_lenet5(model, tw_input(model, 1, 28, 28), CLASSES); }

/* In percent. */
static double accuracy(const task *t, const char *folder, tw_precision precision, uint64_t seed) {
    tw_context *context;
    tw_model *model;
    tw_trainer *trainer;
    tw_dataset *train, *test;
    tw_metrics metrics;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.learning_rate = t->rate;
    sgd.momentum = 0.9f;
    sgd.nesterov = true;
    sgd.weight_decay = 5e-4f;
    sgd.schedule.kind = TW_SCHEDULE_COSINE;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), NULL));
    CHECK_OK(tw_model_create(&model, context));
    tw_value *logits = t->network(model);
    CHECK_OK(tw_model_build(model, logits, TW_OPTIONS(model, .seed = seed)));
    CHECK_OK(tw_dataset_open(&train, context, folder, TW_TRAIN, NULL));
    CHECK_OK(tw_dataset_open(&test, context, folder, TW_TEST, NULL));
    CHECK_OK(tw_trainer_create(&trainer, model,
                               TW_OPTIONS(trainer, .epochs = t->epochs, .optimizer = sgd, .precision = precision)));
    CHECK_OK(tw_trainer_fit(trainer, train, NULL));
    CHECK_OK(tw_trainer_evaluate(trainer, test, &metrics));
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    tw_model_destroy(model);
    tw_context_destroy(context);
    return 100 * metrics.top1;
}

static void compare(const task *t, const char *folder) {
    double mean[PRECISIONS] = {0};
    for (int p = 0; p < PRECISIONS; p++) {
        for (int seed = 1; seed <= SEEDS; seed++) mean[p] += accuracy(t, folder, precisions[p], (uint64_t)seed) / SEEDS;
        print_message("%s in %s: %.2f %%\n", t->name, tw_precision_name(precisions[p]), mean[p]);
    }
    if (!(mean[0] >= t->least)) fail_msg("%s in f32: %.2f %%, expected at least %.1f", t->name, mean[0], t->least);
    for (int p = 1; p < PRECISIONS; p++)
        if (!(mean[p] >= mean[0] - points_allowed))
            fail_msg("%s in %s: %.2f %%, in f32 %.2f", t->name, tw_precision_name(precisions[p]), mean[p], mean[0]);
}

static void digits_are_read_as_well(void **state) {
    (void)state;
    static const task t = {"digits", "examples/data/digits", small_network, 20, 0.05, 97.5};
    const char *source = getenv("TALWEG_SOURCE_DIR");
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/%s", source ? source : ".", t.folder);
    compare(&t, folder);
}

static void mnist_is_read_as_well(void **state) {
    (void)state;
    static const task t = {"MNIST", "mnist", lenet5, 3, 0.02, 98.5};
    const char *data = getenv("TALWEG_TEST_DATA");
    if (!data || check_device()) {
        print_message("TALWEG_TEST_DATA is not set, or another device is\n");
        skip();
    }
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/%s", data, t.folder);
    compare(&t, folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_are_read_as_well),
        cmocka_unit_test(mnist_is_read_as_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Uses a model that the digits program saved: reads the bundled test digits and shows some of them. */
#define PROGRAM "predict"
#include "example.h"

#include <getopt.h>

#ifndef DIGITS_DIR
#define DIGITS_DIR "examples/data/digits"
#endif

enum { SIDE = 8, PIXELS = SIDE * SIDE, SHOWN = 3 };

static const char usage[] =
    "usage: predict MODEL [--seed N] [--help]\n"
    "\n"
    "  MODEL     what the digits program saved, build/digits/digits.safetensors after quickstart.sh\n"
    "  --seed N  which test images are shown (default: 0)\n";

/* A weights file holds no graph: the network is that of digits.c, with the names that its weights have there. */
static tw_value *network(tw_model *model) {
    tw_value *x = tw_input(model, 1, SIDE, SIDE);
    x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_relu(model, tw_conv2d(model, x, 32, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_max_pool(model, x, 2, NULL);
    x = tw_relu(model, tw_dense(model, x, 64, NULL));
    x = tw_dropout(model, x, 0.5f); /* outside training it does nothing */
    return tw_dense(model, x, 10, NULL);
}

/* How samples are normalised is not in the file either: measured as it was for training, on the training set. */
static tw_normalization measure(tw_context *context) {
    tw_normalization normalization = {.channels = 1};
    tw_dataset *train;
    check(tw_dataset_open(&train, context, DIGITS_DIR, TW_TRAIN, NULL));
    check(tw_dataset_measure(train, normalization.mean, normalization.deviation));
    tw_dataset_destroy(train);
    return normalization;
}

static void show(const uint8_t *pixels, int predicted, int label) {
    for (int i = 0; i < PIXELS; i++)
        printf("%c%s", " .:-=+*#%@"[pixels[i] * 9 / 255], i % SIDE == SIDE - 1 ? "\n" : "");
    printf("predicted %d, label %d\n\n", predicted, label);
}

int main(int argc, char **argv) {
    static const struct option names[] = {{"seed", 1, NULL, 's'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    uint64_t seed = 0;
    for (int option; (option = getopt_long(argc, argv, "h", names, NULL)) != -1;) {
        if (option == 's') seed = number("seed", optarg, 0, UINT64_MAX);
        if (option == 'h') return fputs(usage, stdout) < 0;
        if (option == '?') return fputs(usage, stderr), 2;
    }
    if (optind == argc) return fputs(usage, stderr), 2;
    if (optind < argc - 1) refuse_argument(argv[optind + 1]);
    tw_context *context;
    tw_dataset *test;
    tw_model *model;
    tw_trainer *trainer;
    check(tw_context_create(&context, "auto", NULL));
    check(tw_model_create(&model, context));
    check(tw_model_build(model, network(model), NULL));
    check(tw_model_load(model, argv[optind], NULL));
    check(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .normalization = measure(context))));
    check(tw_dataset_open(&test, context, DIGITS_DIR, TW_TEST, NULL));

    int count = (int)tw_dataset_count(test), right = 0;
    int32_t *classes = calloc((size_t)count, sizeof *classes);
    if (!classes) return 1;
    check(tw_trainer_predict(trainer, test, classes));
    const uint8_t *images = tw_dataset_get_images(test);
    const int32_t *labels = tw_dataset_get_labels(test);
    for (uint64_t i = 0; i < SHOWN; i++) {
        uint64_t shown = (seed % (uint64_t)count * SHOWN + i) % (uint64_t)count;
        show(images + shown * PIXELS, classes[shown], labels[shown]);
    }
    for (int i = 0; i < count; i++) right += classes[i] == labels[i];
    printf("test accuracy %.2f %%\n", 100.0 * right / count);

    free(classes);
    tw_dataset_destroy(test);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_context_destroy(context);
    return finish();
}

/* Uses a model that the digits program saved, of which it knows nothing but the file: reads the bundled test digits and
 * shows some of them. */
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

static void show(const uint8_t *pixels, const char *predicted, const char *label) {
    for (int i = 0; i < PIXELS; i++)
        printf("%c%s", " .:-=+*#%@"[pixels[i] * 9 / 255], i % SIDE == SIDE - 1 ? "\n" : "");
    printf("predicted %s, label %s\n\n", predicted, label);
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
    check(tw_model_open(&model, context, argv[optind], NULL)); /* the network, and how its input is normalised, too */
    check(tw_trainer_create(&trainer, model, NULL));
    check(tw_dataset_open(&test, context, DIGITS_DIR, TW_TEST, NULL));

    int count = (int)tw_dataset_count(test), right = 0;
    int32_t *classes = calloc((size_t)count, sizeof *classes);
    if (!classes) return 1;
    check(tw_trainer_predict(trainer, test, classes));
    const uint8_t *images = tw_dataset_get_images(test);
    const int32_t *labels = tw_dataset_get_labels(test);
    for (uint64_t i = 0; i < SHOWN; i++) {
        uint64_t shown = (seed % (uint64_t)count * SHOWN + i) % (uint64_t)count;
        show(images + shown * PIXELS, tw_model_get_class_name(model, classes[shown]),
             tw_model_get_class_name(model, labels[shown]));
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

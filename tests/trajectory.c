#include "trajectory.h"

#include <math.h>
#include <stdio.h>

enum { STEPS = 20, SAMPLED_STEPS = 3, CLASSES = 10, LARGEST_BATCH = 32 };

static const int batches[TRAJECTORY_BATCHES] = {8, LARGEST_BATCH};

typedef struct trajectory {
    const char *name, *weights;
    tw_value *(*net)(tw_model *model, tw_value *x);
    int channels, side;
    tw_optimizer_options optimizer[TRAJECTORY_BATCHES];
    int threads;
} trajectory;

static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, CLASSES); }
static tw_value *resnet20(tw_model *model, tw_value *x) { return tw_zoo_resnet20(model, x, CLASSES, NULL); }

/* The recipes of make_trajectories.py, which says why ResNet-20's rates are small. */
#define SGD(rate)                                                                                        \
    {                                                                                                    \
        .size = sizeof(tw_optimizer_options), .kind = TW_SGD, .learning_rate = (rate), .momentum = 0.9f, \
        .nesterov = true, .weight_decay = 5e-4f                                                          \
    }
#define ADAMW(rate) \
    { .size = sizeof(tw_optimizer_options), .kind = TW_ADAMW, .learning_rate = (rate), .weight_decay = 0.01f }

static const trajectory trajectories[TRAJECTORIES] = {
    {"lenet5 sgd", "lenet5.safetensors", lenet5, 1, 28, {SGD(0.02), SGD(0.02)}, 1},
    {"lenet5 adamw", "lenet5.safetensors", lenet5, 1, 28, {ADAMW(1e-3), ADAMW(1e-3)}, 2},
    {"resnet20 sgd", "resnet20.safetensors", resnet20, 3, 32, {SGD(5e-5), SGD(2e-4)}, 2},
    {"resnet20 adamw", "resnet20.safetensors", resnet20, 3, 32, {ADAMW(1e-5), ADAMW(3e-5)}, 1},
};

int trajectory_batches(void) { return check_device() ? 1 : TRAJECTORY_BATCHES; }

/* The hash of make_trajectories.py. */
static uint32_t hashed(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 16;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

static void make_batch(const trajectory *t, int batch, int step, float *images, int32_t *labels) {
    int pixels = t->channels * t->side * t->side;
    for (int n = 0; n < batch; n++) {
        uint32_t sample = (uint32_t)(step * batch + n);
        labels[n] = (int32_t)(hashed(sample) % CLASSES);
        for (int p = 0; p < pixels; p++) {
            float noise = (float)(hashed(sample * (uint32_t)pixels + (uint32_t)p) >> 8) * 0x1p-24f;
            float pattern = (float)((labels[n] * 7919 + (int64_t)p * 104729) % 251) / 251.0f;
            images[(size_t)n * (size_t)pixels + (size_t)p] = noise + pattern - 1;
        }
    }
}

void trajectory_follow(int i, int batch_index, tw_precision precision, const double *losses, double allowed) {
    const trajectory *t = &trajectories[i];
    const int batch = batches[batch_index];
    const int64_t pixels = (int64_t)batch * t->channels * t->side * t->side;
    const tw_loss_scaling scaling = {.initial = 1024};
    float *images = malloc((size_t)pixels * sizeof *images);
    int32_t labels[LARGEST_BATCH];
    tw_context *context;
    tw_model *model;
    tw_program *program;
    assert_non_null(images);
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = t->threads)));
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input(model, t->channels, t->side, t->side), *y = tw_input_labels(model, NULL);
    tw_value *logits = t->net(model, x);
    tw_loss loss = {tw_cross_entropy(model, logits, y, NULL), 1};
    CHECK_OK(tw_model_build(model, logits, NULL));
    const char *source = getenv("TALWEG_SOURCE_DIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/%s", source ? source : ".", t->weights);
    CHECK_OK(tw_model_load(model, path, NULL));
    CHECK_OK(tw_program_create(&program, model, batch,
                               TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1,
                                          .optimizer = &t->optimizer[batch_index], .precision = precision,
                                          .loss_scaling = precision == TW_PRECISION_F16 ? &scaling : NULL)));
    double farthest = 0;
    for (int step = 0; step < (check_sampled() ? SAMPLED_STEPS : STEPS); step++) {
        make_batch(t, batch, step, images, labels);
        CHECK_OK(tw_program_write(program, x, TW_F32, images, pixels));
        CHECK_OK(tw_program_write(program, y, TW_I32, labels, batch));
        CHECK_OK(tw_program_run(program));
        const double found = tw_program_get_loss(program), off = fabs(found - losses[step]) / losses[step];
        farthest = fmax(farthest, off);
        if (!(off <= allowed))
            fail_msg("%s, %s, batch %d: step %d: loss %.9g, PyTorch %.9g: %.2e apart", t->name,
                     tw_precision_name(precision), batch, step, found, losses[step], off);
    }
    print_message("%s, %s, batch %d: at most %.1e apart\n", t->name, tw_precision_name(precision), batch, farthest);
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_context_destroy(context);
    free(images);
}

int trajectory_main(int argc, char **argv, CMUnitTestFunction follow) {
    static int index[TRAJECTORIES];
    struct CMUnitTest tests[TRAJECTORIES];
    for (int i = 0; i < TRAJECTORIES; i++) {
        index[i] = i;
        tests[i] = (struct CMUnitTest){trajectories[i].name, follow, NULL, NULL, &index[i]};
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

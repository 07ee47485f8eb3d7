/* Losses of the first 20 training steps in bf16 and f16 against PyTorch's, from the same initial weights on the same batches,
 * with the same values rounded to halves. The recorded numbers and the script that made them are in tests/golden.
 *
 * Bounds: two programs that round the same values differ by sums in another order, which now and then round to the
 * neighbouring half, and by what only one of them rounds (a fused step rounds once, gradients of biases not at all). Each
 * such step is one unit of the type in one of many values: so the losses are nearer to PyTorch's in the same type than
 * PyTorch's own in f32 are, for most trainings (the script prints how far those are: up to 2e-3 in bf16, 1e-3 in f16). */
#include "check.h"
#include "golden/trajectories_half.h"
#include <talweg/talweg.h>

#include <math.h>
#include <stdio.h>

enum { STEPS = 20, BATCHES = 2, CLASSES = 10, HALVES = 2 };

/* The small one alone where a device was named, which may be emulated. */
static const int batches[BATCHES] = {8, 32};
static const struct {
    tw_precision precision;
    double allowed;
} halves[HALVES] = {{TW_PRECISION_BF16, 2e-3}, {TW_PRECISION_F16, 1e-3}};

typedef struct trajectory {
    const char *name, *weights;
    tw_value *(*net)(tw_model *model, tw_value *x);
    int channels, side;
    tw_optimizer_options optimizer[BATCHES];
    const double *losses[HALVES][BATCHES];
    int threads;
} trajectory;

static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, CLASSES); }
static tw_value *resnet20(tw_model *model, tw_value *x) { return tw_zoo_resnet20(model, x, CLASSES, NULL); }

/* The recipes of make_trajectories.py. */
#define SGD(rate)                                                                                        \
    {                                                                                                    \
        .size = sizeof(tw_optimizer_options), .kind = TW_SGD, .learning_rate = (rate), .momentum = 0.9f, \
        .nesterov = true, .weight_decay = 5e-4f                                                          \
    }
#define ADAMW(rate) \
    { .size = sizeof(tw_optimizer_options), .kind = TW_ADAMW, .learning_rate = (rate), .weight_decay = 0.01f }
#define LOSSES(name)                                                     \
    {                                                                    \
        {name##_8_bf16, name##_32_bf16}, { name##_8_f16, name##_32_f16 } \
    }

static const trajectory trajectories[] = {
    {"lenet5 sgd", "lenet5.safetensors", lenet5, 1, 28, {SGD(0.02), SGD(0.02)}, LOSSES(lenet5_sgd), 1},
    {"lenet5 adamw", "lenet5.safetensors", lenet5, 1, 28, {ADAMW(1e-3), ADAMW(1e-3)}, LOSSES(lenet5_adamw), 2},
    {"resnet20 sgd", "resnet20.safetensors", resnet20, 3, 32, {SGD(5e-5), SGD(2e-4)}, LOSSES(resnet20_sgd), 2},
    {"resnet20 adamw", "resnet20.safetensors", resnet20, 3, 32, {ADAMW(1e-5), ADAMW(3e-5)}, LOSSES(resnet20_adamw), 1},
};

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

static void follow_batch(const trajectory *t, int half, int index) {
    const int batch = batches[index];
    int64_t pixels = (int64_t)batch * t->channels * t->side * t->side;
    float *images = malloc((size_t)pixels * sizeof *images);
    int32_t labels[32];
    tw_context *context;
    tw_model *model;
    tw_program *program;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = t->threads)));
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input(model, t->channels, t->side, t->side), *y = tw_input_labels(model, NULL);
    tw_value *logits = t->net(model, x);
    tw_loss loss = {tw_cross_entropy(model, logits, y, NULL), 1};
    const tw_loss_scaling scaling = {.initial = 1024};
    CHECK_OK(tw_model_build(model, logits, NULL));
    const char *source = getenv("TALWEG_SOURCE_DIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/%s", source ? source : ".", t->weights);
    CHECK_OK(tw_model_load(model, path, NULL));
    CHECK_OK(
        tw_program_create(&program, model, batch,
                          TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1,
                                     .optimizer = &t->optimizer[index], .precision = halves[half].precision,
                                     .loss_scaling = halves[half].precision == TW_PRECISION_F16 ? &scaling : NULL)));
    double farthest = 0;
    for (int step = 0; step < STEPS; step++) {
        make_batch(t, batch, step, images, labels);
        CHECK_OK(tw_program_write(program, x, TW_F32, images, pixels));
        CHECK_OK(tw_program_write(program, y, TW_I32, labels, batch));
        CHECK_OK(tw_program_run(program));
        const double wanted = t->losses[half][index][step], found = tw_program_get_loss(program);
        const double off = fabs(found - wanted) / wanted;
        farthest = fmax(farthest, off);
        if (!(off <= halves[half].allowed))
            fail_msg("%s, %s, batch %d: step %d: loss %.9g, PyTorch %.9g: %.2e apart", t->name,
                     tw_precision_name(halves[half].precision), batch, step, found, wanted, off);
    }
    print_message("%s, %s, batch %d: at most %.1e apart\n", t->name, tw_precision_name(halves[half].precision), batch,
                  farthest);
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_context_destroy(context);
    free(images);
}

static void follow(void **state) {
    for (int h = 0; h < HALVES; h++)
        for (int i = 0; i < (check_device() ? 1 : BATCHES); i++) follow_batch(*state, h, i);
}

/* An argument picks tests by name, as "lenet5*". */
int main(int argc, char **argv) {
    enum { COUNT = sizeof trajectories / sizeof *trajectories };
    struct CMUnitTest tests[COUNT];
    for (int i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){trajectories[i].name, follow, NULL, NULL, (void *)&trajectories[i]};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

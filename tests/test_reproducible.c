/* The same numbers, whatever computes them: any number of threads, several programs and contexts at a time, to the bit;
 * with and without fusion, within rounding. */
#include "check.h"
#include "small_task.h"

#include <math.h>
#include <pthread.h>

enum { STEPS = 4, MOST = 300 };

typedef struct outcome {
    double loss[STEPS];
    size_t count;
    float *parameters;
} outcome;

static void make_images(float *images, int batch, int step) {
    uint32_t x = 1 + (uint32_t)step;
    for (int i = 0; i < batch * TASK_PIXELS; i++) {
        x = x * 1664525u + 1013904223u;
        images[i] = (float)(x >> 8) / (1 << 24) - 0.5f;
    }
}

/* One training step of a program whose labels and loss are called so in its model. */
static double train_step(tw_program *program, tw_model *model, int batch, int step) {
    float *images = malloc(sizeof *images * MOST * TASK_PIXELS);
    int32_t labels[MOST];
    assert_non_null(images);
    make_images(images, batch, step);
    for (int i = 0; i < batch; i++) labels[i] = (i + step) % TASK_CLASSES;
    CHECK_OK(tw_program_write(program, tw_model_get_input(model), TW_F32, images, batch * TASK_PIXELS));
    CHECK_OK(tw_program_write(program, tw_model_find(model, "labels"), TW_I32, labels, batch));
    CHECK_OK(tw_program_run(program));
    free(images);
    return tw_program_get_loss(program);
}

static tw_program *train_program(tw_model *model, int batch, bool no_fusion) {
    static const tw_optimizer_options adam = {
        .size = sizeof adam, .kind = TW_ADAMW, .learning_rate = 0.01, .weight_decay = 0.1f};
    const tw_loss loss = {tw_model_find(model, "loss"), 0};
    tw_program *program;
    CHECK_OK(tw_program_create(&program, model, batch,
                               TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &adam,
                                          .no_fusion = no_fusion)));
    return program;
}

/* Convolutions with and without bias, batch norm, a residual block, pooling, dropout, dense. */
static tw_model *residual_model(tw_context *context) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input(model, 1, TASK_SIDE, TASK_SIDE);
    x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_max_pool(model, tw_residual(model, x, 16, NULL), 2, NULL);
    x = tw_residual(model, x, 32, TW_OPTIONS(residual, .stride = 2));
    x = tw_dense(model, tw_dropout(model, tw_global_avg_pool(model, x), 0.2f), TASK_CLASSES, NULL);
    CHECK_OK(tw_model_build(model, x, TW_OPTIONS(model, .seed = 7)));
    tw_value *labels = tw_input_labels(model, "labels");
    assert_non_null(
        tw_cross_entropy(model, x, labels, TW_OPTIONS(cross_entropy, .name = "loss", .label_smoothing = 0.1f)));
    return model;
}

static outcome train(tw_context *context, int batch, bool no_fusion) {
    outcome out;
    tw_model *model = residual_model(context);
    tw_program *program = train_program(model, batch, no_fusion);
    for (int i = 0; i < STEPS; i++) out.loss[i] = train_step(program, model, batch, i);
    out.parameters = task_parameters(model, &out.count);
    tw_program_destroy(program);
    tw_model_destroy(model);
    return out;
}

static void assert_equal_to_the_bit(const outcome *one, const outcome *other) {
    assert_memory_equal(one->loss, other->loss, sizeof one->loss);
    assert_int_equal(one->count, other->count);
    assert_memory_equal(one->parameters, other->parameters, one->count * sizeof(float));
}

static void test_any_number_of_threads(void **state) {
    (void)state;
    static const int batches[] = {1, 37, MOST}; /* the last one has more chunks than groups */
    for (int b = 0; b < 3; b++) {
        outcome first = train(task_context, batches[b], false);
        for (int threads = 2; threads <= 4; threads++) {
            tw_context *context;
            CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = threads)));
            outcome other = train(context, batches[b], false);
            assert_equal_to_the_bit(&first, &other);
            free(other.parameters);
            tw_context_destroy(context);
        }
        assert_true(first.loss[0] != first.loss[1]);
        free(first.parameters);
    }
}

static void test_with_and_without_fusion(void **state) {
    (void)state;
    outcome fused = train(task_context, 24, false), plain = train(task_context, 24, true);
    for (int i = 0; i < STEPS; i++) assert_true(fabs(fused.loss[i] / plain.loss[i] - 1) < 1e-4);
    assert_true(fabs(fused.loss[0] / plain.loss[0] - 1) < 1e-6); /* before Adam's division by small moments magnifies */
    free(fused.parameters);
    free(plain.parameters);
}

/* Programs of three sizes, one of them without training, run in turn over one model and its one arena; then the same
 * steps with every program made, used and destroyed alone. */
static void steps_in_turn(bool alone, outcome *out, float logits[STEPS][TASK_CLASSES]) {
    static const int batches[2] = {32, 7};
    tw_model *model = residual_model(task_context);
    tw_value *output = tw_model_get_output(model);
    tw_program *programs[2] = {NULL, NULL}, *predict = NULL;
    float image[TASK_PIXELS];
    make_images(image, 1, 99);
    for (int i = 0; i < STEPS; i++) {
        int k = i % 2;
        if (!programs[k]) programs[k] = train_program(model, batches[k], false);
        out->loss[i] = train_step(programs[k], model, batches[k], i);
        if (alone) {
            tw_program_destroy(programs[k]);
            programs[k] = NULL;
        }
        if (!predict)
            CHECK_OK(tw_program_create(&predict, model, 1, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
        CHECK_OK(tw_program_write(predict, tw_model_get_input(model), TW_F32, image, TASK_PIXELS));
        CHECK_OK(tw_program_run(predict));
        CHECK_OK(tw_program_read(predict, output, logits[i], TASK_CLASSES));
        if (alone) {
            tw_program_destroy(predict);
            predict = NULL;
        }
    }
    out->parameters = task_parameters(model, &out->count);
    for (int k = 0; k < 2; k++) tw_program_destroy(programs[k]);
    tw_program_destroy(predict);
    tw_model_destroy(model);
}

static void test_programs_that_share_a_model(void **state) {
    (void)state;
    outcome together, alone;
    float first[STEPS][TASK_CLASSES], second[STEPS][TASK_CLASSES];
    steps_in_turn(false, &together, first);
    steps_in_turn(true, &alone, second);
    assert_equal_to_the_bit(&together, &alone);
    assert_memory_equal(first, second, sizeof first);
    free(together.parameters);
    free(alone.parameters);
}

/* ---- dropout: another draw in every run, the same in the same run of another model ---- */

enum { WIDE = 4000 };

static void drop_some(uint64_t seed, float out[2][WIDE]) {
    tw_model *model;
    tw_program *program;
    float ones[WIDE];
    const int64_t wide = WIDE;
    for (int i = 0; i < WIDE; i++) ones[i] = 1;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input_shaped(model, "x", 1, &wide), *labels = tw_input_labels(model, "labels");
    tw_value *dropped = tw_dropout(model, x, 0.25f), *y = tw_dense(model, dropped, 2, NULL);
    const tw_loss loss = {tw_cross_entropy(model, y, labels, NULL), 0};
    CHECK_OK(tw_model_build(model, y, TW_OPTIONS(model, .seed = seed)));
    CHECK_OK(tw_program_create(
        &program, model, 1,
        TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .outputs = &dropped, .output_count = 1)));
    for (int run = 0; run < 2; run++) {
        CHECK_OK(tw_program_write(program, x, TW_F32, ones, WIDE));
        CHECK_OK(tw_program_write(program, labels, TW_I32, (int32_t[]){0}, 1));
        CHECK_OK(tw_program_run(program));
        CHECK_OK(tw_program_read(program, dropped, out[run], WIDE));
    }
    tw_program_destroy(program);
    tw_model_destroy(model);
}

static void test_dropout_draws_anew(void **state) {
    (void)state;
    float one[2][WIDE], same[2][WIDE], other[2][WIDE];
    int kept = 0, both = 0;
    drop_some(1, one);
    drop_some(1, same);
    drop_some(2, other);
    assert_memory_equal(one, same, sizeof one);
    assert_memory_not_equal(one[0], other[0], sizeof one[0]);
    for (int i = 0; i < WIDE; i++) {
        assert_true(one[0][i] == 0 || fabsf(one[0][i] - 4 / 3.0f) < 1e-6f);
        kept += one[0][i] != 0;
        both += one[0][i] != 0 && one[1][i] != 0;
    }
    assert_true(fabs((double)kept / WIDE - 0.75) < 0.035);  /* 5 standard errors */
    assert_true(fabs((double)both / WIDE - 0.5625) < 0.04); /* independent: 0.75 squared, also 5 */
}

/* ---- two contexts in two threads ---- */

static void *train_in_a_thread(void *argument) {
    tw_context *context;
    outcome *out = argument;
    out->parameters = NULL;
    if (tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2))) return NULL;
    for (int round = 0; round < 3; round++) {
        free(out->parameters);
        *out = train(context, 16, false);
    }
    tw_model *model; /* errors are each thread's own */
    if (tw_model_create(&model, context)) return NULL;
    tw_relu(model, NULL);
    if (!strstr(tw_last_error(), "relu")) out->count = 0;
    tw_model_destroy(model);
    tw_context_destroy(context);
    return out;
}

static void test_contexts_in_threads(void **state) {
    (void)state;
    outcome serial = train(task_context, 16, false), results[2];
    pthread_t threads[2];
    tw_clear_error();
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, train_in_a_thread, &results[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
        assert_equal_to_the_bit(&results[i], &serial);
        free(results[i].parameters);
    }
    assert_string_equal(tw_last_error(), "");
    free(serial.parameters);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(test_any_number_of_threads),       with_context(test_with_and_without_fusion),
        with_context(test_programs_that_share_a_model), with_context(test_dropout_draws_anew),
        with_context(test_contexts_in_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

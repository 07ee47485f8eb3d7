/* Data sets that do not fit the device beside the programs: their batches are streamed, which the log says once for each, and
 * the numbers are those of a set that fits. On the CPU a set is read where it lies. */
#include "program/program.h"
#include "small_task.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    TRAINED = 1000,
    MORE_TRAINED = 1800,
    TESTED = 500,
    SET_CHANNELS = 2,
    SET_SIDE = 12,
    BATCH = 16,
    SET_CLASSES = 4
};
enum { SAMPLE = SET_CHANNELS * SET_SIDE * SET_SIDE };
/* Of the device, for samples, labels and the order of an epoch. */
static const size_t train_bytes = TRAINED * (SAMPLE + 8), test_bytes = TESTED * (SAMPLE + 8);

typedef struct outcome {
    tw_status status;
    int streamed; /* lines that say so */
    char line[1024], error[1024];
    float *parameters;
    size_t count, device_peak, host_peak; /* host_peak: over what there was before the fit */
    tw_metrics tested;
    int32_t predicted[TESTED];
} outcome;

static bool has_memory_of_its_own(void) { return check_device() && strncmp(check_device(), "cpu", 3) != 0; }

static void listen(void *user, tw_log_level level, const char *message) {
    outcome *o = user;
    if (!strstr(message, "streamed")) return;
    assert_int_equal(level, TW_LOG_INFO);
    snprintf(o->line, sizeof o->line, "%s", message);
    o->streamed++;
}

static tw_dataset *make_set(tw_context *context, int64_t count, uint32_t seed) {
    tw_dataset *set;
    uint8_t *images = malloc((size_t)count * SAMPLE);
    int32_t *labels = malloc((size_t)count * sizeof *labels);
    assert_true(images && labels);
    for (int64_t n = 0; n < count; n++) {
        labels[n] = (int32_t)((n * 7 + seed) % SET_CLASSES);
        for (int64_t i = 0; i < SAMPLE; i++)
            images[n * SAMPLE + i] = (uint8_t)((n * 31 + i * (3 + labels[n]) + seed + i / 11 * 5) % 251);
    }
    CHECK_OK(
        tw_dataset_create_from(&set, context, TW_U8, images, count, SET_CHANNELS, SET_SIDE, SET_SIDE, labels, NULL));
    free(images);
    free(labels);
    return set;
}

static tw_model *make_model(tw_context *context) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input(model, SET_CHANNELS, SET_SIDE, SET_SIDE);
    x = tw_relu(model, tw_batch_norm(model, tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .stride = 2)), NULL));
    CHECK_OK(tw_model_build(model, tw_dense(model, tw_dropout(model, x, 0.1f), SET_CLASSES, NULL),
                            TW_OPTIONS(model, .seed = 2)));
    return model;
}

/* Fits on so many samples, evaluates and predicts, with so much memory of a GPU (0: all there is). */
static outcome learn(int64_t trained, size_t device_limit) {
    outcome o = {0};
    tw_context *context;
    tw_trainer *trainer;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(),
                               TW_OPTIONS(context, .threads = 2, .device_memory_limit = device_limit, .log = listen,
                                          .log_user = &o, .log_level = TW_LOG_INFO)));
    tw_dataset *train = make_set(context, trained, 1), *test = make_set(context, TESTED, 5);
    tw_model *model = make_model(context);
    CHECK_OK(tw_trainer_create(&trainer, model,
                               TW_OPTIONS(trainer, .epochs = 2, .batch = BATCH, .evaluation_batch = BATCH, .flip = true,
                                          .crop_padding = 2, .optimizer = {.learning_rate = 0.05, .momentum = 0.9f})));
    const size_t before = tw_context_get_memory(context).bytes;
    o.status = tw_trainer_fit(trainer, train, test);
    if (o.status) snprintf(o.error, sizeof o.error, "%s", tw_last_error());
    o.device_peak = tw_context_get_device_memory(context).peak;
    o.host_peak = tw_context_get_memory(context).peak - before;
    if (o.status == TW_OK) {
        o.parameters = task_parameters(model, &o.count);
        CHECK_OK(tw_trainer_evaluate(trainer, test, &o.tested));
        CHECK_OK(tw_trainer_predict(trainer, test, o.predicted));
    }
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    if (has_memory_of_its_own()) assert_int_equal(tw_context_get_device_memory(context).bytes, 0);
    tw_context_destroy(context);
    return o;
}

static void assert_same(const outcome *found, const outcome *expected) {
    if (found->status) fail_msg("%s", found->error);
    assert_int_equal(found->count, expected->count);
    assert_memory_equal(found->parameters, expected->parameters, found->count * sizeof *found->parameters);
    assert_memory_equal(&found->tested, &expected->tested, sizeof found->tested);
    assert_memory_equal(found->predicted, expected->predicted, sizeof found->predicted);
}

static void sets_that_fit_stay_on_the_device(void **state) {
    (void)state;
    outcome o = learn(TRAINED, 0);
    CHECK_OK(o.status);
    assert_int_equal(o.streamed, 0);
    if (has_memory_of_its_own())
        assert_true(o.device_peak > train_bytes + test_bytes);
    else { /* read where it lies: more samples take no more than their place in the order */
        outcome more = learn(MORE_TRAINED, 0);
        CHECK_OK(more.status);
        assert_true(more.host_peak - o.host_peak < (MORE_TRAINED - TRAINED) * 16);
        free(more.parameters);
    }
    free(o.parameters);
}

static void what_does_not_fit_is_streamed_to_the_same_bits(void **state) {
    (void)state;
    outcome all = learn(TRAINED, 0);
    CHECK_OK(all.status);
    /* No room for the test set, not for the training set either, and for it alone but then not for the test set's slots. */
    const size_t short_of[] = {test_bytes / 2, test_bytes + train_bytes / 2, test_bytes - 20000};
    /* One of them in fit; both there, and the test set again in evaluation and prediction; one of them in fit. */
    static const int streamed[] = {1, 4, 1};
    for (int i = 0; i < 3 && has_memory_of_its_own(); i++) {
        const size_t room = all.device_peak - short_of[i];
        outcome o = learn(TRAINED, room);
        assert_same(&o, &all);
        assert_true(o.device_peak <= room);
        assert_int_equal(o.streamed, streamed[i]);
        assert_non_null(strstr(o.line, "are left beside the programs"));
        free(o.parameters);
    }
    free(all.parameters);
}

/* Less than the programs need is an error as ever, whatever becomes of the sets. */
static void too_little_for_the_programs_is_an_error(void **state) {
    (void)state;
    if (!has_memory_of_its_own()) return;
    enum { CAP = 4096 };
    static const char *const says[] = {"the memory limit of ", "cannot be kept", "parameters ",  "gradients ",
                                       "optimizer ",           "activations ",   "smaller batch"};
    static const char least[] = "the least that batch 1 was planned with is ";
    outcome o = learn(TRAINED, CAP);
    assert_int_equal(o.status, TW_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (!strstr(o.error, says[i])) fail_msg("\"%s\" does not say \"%s\"", o.error, says[i]);
    const char *floor = strstr(o.error, least);
    size_t bytes = 0;
    assert_true(floor && sscanf(strchr(floor, '('), "(%zu bytes)", &bytes) == 1 && bytes > CAP);
    assert_int_equal(o.streamed, 0);
    assert_true(o.device_peak <= CAP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_that_fit_stay_on_the_device),
        cmocka_unit_test(what_does_not_fit_is_streamed_to_the_same_bits),
        cmocka_unit_test(too_little_for_the_programs_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

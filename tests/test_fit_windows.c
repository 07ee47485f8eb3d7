/* Fitting with several batches an update: as with one batch of them all, epochs that do not come out even, progress and
 * stops by updates. */
#include "small_task.h"
#include "program/model.h"

#include <math.h>

static tw_model *with_dropout(void) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_relu(model, tw_conv2d(model, tw_input(model, 1, TASK_SIDE, TASK_SIDE), 8, 3, NULL));
    x = tw_dense(model, tw_dropout(model, tw_max_pool(model, x, 2, NULL), 0.3f), TASK_CLASSES, NULL);
    CHECK_OK(tw_model_build(model, x, TW_OPTIONS(model, .seed = 5)));
    return model;
}

/* What callbacks saw of a fit. */
typedef struct seen {
    int calls;
    int64_t step[16], updates[16], samples[16];
    double rate[16];
    int stop_at;
} seen;

static bool look(void *user, const tw_progress *progress) {
    seen *s = user;
    assert_true(s->calls < 16);
    s->step[s->calls] = progress->step;
    s->updates[s->calls] = progress->updates;
    s->samples[s->calls] = progress->train.samples;
    s->rate[s->calls] = progress->learning_rate;
    return ++s->calls == s->stop_at;
}

static tw_status fit(tw_model *model, int64_t samples, tw_trainer_options options, seen *s) {
    tw_dataset *data = task_data(task_context, samples, 7);
    tw_trainer *trainer;
    options.size = sizeof options;
    options.on_step = s ? look : NULL;
    options.user = s;
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    tw_status status = tw_trainer_fit(trainer, data, NULL);
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(data);
    return status;
}

static void assert_alike(const tw_model *one, const tw_model *other) {
    size_t count;
    float *a = task_parameters(one, &count), *b = task_parameters(other, &count);
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(a[i] - b[i]) <= 2e-6f)) fail_msg("parameter %zu: %.9g and %.9g", i, (double)a[i], (double)b[i]);
    free(a);
    free(b);
}

#define COSINE                                                                                         \
    {                                                                                                  \
        .learning_rate = 0.1, .momentum = 0.9f, .schedule = {.kind = TW_SCHEDULE_COSINE, .warmup = 1 } \
    }

/* 145 samples: 4 + 4 + 2 batches of 16, the last of 1, as 64 + 64 + 17. The same order, masks, rates and updates. */
static void four_batches_an_update_as_one_of_four_times_the_size(void **state) {
    (void)state;
    tw_model *parts = with_dropout(), *whole = with_dropout();
    seen in_parts = {0}, at_once = {0};
    tw_trainer_options options = {.epochs = 3, .batch = 64, .optimizer = COSINE, .warmup_epochs = 1};
    CHECK_OK(fit(whole, 145, options, &at_once));
    options.batch = 16;
    options.accumulate = 4;
    CHECK_OK(fit(parts, 145, options, &in_parts));
    assert_int_equal(in_parts.calls, 9);
    assert_int_equal(at_once.calls, 9);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(in_parts.step[i], i % 3 == 2 ? 10 : 4 + 4 * (i % 3));
        assert_int_equal(in_parts.updates[i], i + 1);
        assert_int_equal(in_parts.samples[i], at_once.samples[i]);
        assert_true(in_parts.rate[i] == at_once.rate[i]);
    }
    assert_int_equal(tw_model_get_attempts(parts), 9);
    assert_alike(parts, whole);
    tw_model_destroy(parts);
    tw_model_destroy(whole);
}

/* 145 samples without the last batch of 1: 64 + 64 + 16. */
static void dropping_the_last_drops_a_batch_not_a_window(void **state) {
    (void)state;
    tw_model *parts = with_dropout(), *whole = with_dropout();
    tw_trainer_options options = {.batch = 64, .optimizer = COSINE, .no_shuffle = true, .no_normalization = true};
    CHECK_OK(fit(whole, 144, options, NULL));
    options.batch = 16;
    options.accumulate = 4;
    options.drop_last = true;
    CHECK_OK(fit(parts, 145, options, NULL));
    assert_int_equal(tw_model_get_updates(parts), 3);
    assert_alike(parts, whole);
    tw_model_destroy(parts);
    tw_model_destroy(whole);
}

/* Also where a window is longer than the epoch. */
static void stops_come_after_an_update(void **state) {
    (void)state;
    tw_model *model = with_dropout();
    seen s = {.stop_at = 2};
    CHECK_FAILS(fit(model, 145, (tw_trainer_options){.batch = 16, .accumulate = 3}, &s), TW_STOPPED,
                "in epoch 1 after step 6 of 10");
    assert_int_equal(tw_model_get_updates(model), 2);
    s = (seen){.stop_at = 1};
    CHECK_FAILS(fit(model, 145, (tw_trainer_options){.epochs = 2, .batch = 16, .accumulate = 1000}, &s), TW_STOPPED,
                "epoch 1 after step 10 of 10");
    assert_int_equal(tw_model_get_updates(model), 3);
    tw_model_destroy(model);
}

/* And nothing of it hinders what comes after. */
static void a_fit_that_fails_leaves_no_window(void **state) {
    (void)state;
    tw_model *model = with_dropout();
    const tw_trainer_options wild = {.batch = 16, .accumulate = 4, .optimizer = {.learning_rate = 1e30}};
    tw_trainer *trainer;
    CHECK_FAILS(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .accumulate = -1)), TW_ERROR_ARGUMENT,
                "accumulate is -1");
    CHECK_FAILS(fit(model, 145, wild, NULL), TW_ERROR_NUMERIC, "batch 1 of its window");
    assert_int_equal(model->window.samples, 0);
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(four_batches_an_update_as_one_of_four_times_the_size),
        with_context(dropping_the_last_drops_a_batch_not_a_window),
        with_context(stops_come_after_an_update),
        with_context(a_fit_that_fails_leaves_no_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Measuring and predicting: counts and averages known by construction, and nothing changed by it. */
#define _POSIX_C_SOURCE 200809L /* strdup */
#include "small_task.h"

#include <math.h>
#include <stdio.h>

#define ADAM \
    { .kind = TW_ADAMW, .learning_rate = 0.02 }
#define STANDSTILL \
    { .kind = TW_SGD, .learning_rate = 1e-30 }

enum { COUNT = 10 };

static tw_trainer *trainer_of(tw_model *model, const tw_trainer_options *options) {
    tw_trainer *trainer;
    CHECK_OK(tw_trainer_create(&trainer, model, options));
    return trainer;
}

/* Writes a dense layer that gives the first class the logit 10, the others 0, whatever the image. */
static void always_first(tw_model *model, float logit) {
    float weight[TASK_CLASSES * TASK_PIXELS] = {0}, bias[TASK_CLASSES] = {logit};
    CHECK_OK(tw_parameter_write(model, "fc1.weight", weight, TASK_CLASSES * TASK_PIXELS));
    CHECK_OK(tw_parameter_write(model, "fc1.bias", bias, TASK_CLASSES));
}

/* Ten samples, seven of class 0: 0.7 for any batch, not what repeats in a filled-up last batch would make of it. */
static void every_sample_counts_once(void **state) {
    (void)state;
    const int32_t labels[COUNT] = {0, 0, 0, 1, 0, 0, 2, 2, 0, 0};
    tw_dataset *data = task_data_labelled(task_context, COUNT, 1, labels, TASK_CLASSES);
    tw_model *model = task_plain_model(task_context, 1);
    always_first(model, 10);
    for (int batch = 1; batch <= 12; batch++) {
        tw_trainer *trainer =
            trainer_of(model, TW_OPTIONS(trainer, .no_normalization = true, .evaluation_batch = batch));
        tw_metrics metrics;
        int32_t predicted[COUNT];
        int64_t matrix[TASK_CLASSES * TASK_CLASSES];
        CHECK_OK(tw_trainer_evaluate(trainer, data, &metrics));
        CHECK_OK(tw_trainer_predict(trainer, data, predicted));
        CHECK_OK(tw_trainer_confusion(trainer, data, matrix));
        assert_int_equal(metrics.samples, COUNT);
        assert_float_equal(metrics.top1, 0.7, 1e-12);
        assert_float_equal(metrics.top5, 1, 1e-12);
        assert_float_equal(metrics.loss, 3 + log1p(2 * exp(-10)), 1e-6); /* 0.3 x 10 + log(1 + 2 exp(-10)) */
        const int64_t expected[] = {7, 0, 0, 1, 0, 0, 2, 0, 0};
        for (int i = 0; i < COUNT; i++) assert_int_equal(predicted[i], 0);
        assert_memory_equal(matrix, expected, sizeof expected);
        tw_trainer_destroy(trainer);
    }
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* A data set of another size needs another program; only so many are kept. */
static void any_number_of_sizes_needs_bounded_memory(void **state) {
    (void)state;
    tw_model *model = task_plain_model(task_context, 1);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .no_normalization = true));
    uint64_t blocks[40];
    for (int size = 40; size > 0; size--) {
        tw_dataset *data = task_data(task_context, size, 1);
        tw_metrics metrics;
        CHECK_OK(tw_trainer_evaluate(trainer, data, &metrics));
        assert_int_equal(metrics.samples, size);
        tw_dataset_destroy(data);
        blocks[size - 1] = tw_context_get_memory(task_context).blocks;
    }
    assert_true(blocks[36] > blocks[39]); /* the first few are kept */
    assert_int_equal(blocks[20], blocks[0]);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
}

/* Twelve classes, logits falling with the class: the sample of class c has rank c. */
static void top5_counts_the_first_five(void **state) {
    (void)state;
    enum { CLASSES = 12 };
    int32_t labels[CLASSES];
    float weight[CLASSES * TASK_PIXELS] = {0}, bias[CLASSES];
    for (int c = 0; c < CLASSES; c++) {
        labels[c] = c;
        bias[c] = (float)-c;
    }
    tw_dataset *data = task_data_labelled(task_context, CLASSES, 1, labels, CLASSES);
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    CHECK_OK(tw_model_build(model, tw_dense(model, tw_input(model, 1, TASK_SIDE, TASK_SIDE), CLASSES, NULL), NULL));
    CHECK_OK(tw_parameter_write(model, "fc1.weight", weight, CLASSES * TASK_PIXELS));
    CHECK_OK(tw_parameter_write(model, "fc1.bias", bias, CLASSES));
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .no_normalization = true));
    tw_metrics metrics;
    CHECK_OK(tw_trainer_evaluate(trainer, data, &metrics));
    assert_float_equal(metrics.top1, 1.0 / 12, 1e-12);
    assert_float_equal(metrics.top5, 5.0 / 12, 1e-12);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* A poisoned model has no accuracy: evaluation is an error, predictions are -1, and nothing enters the matrix. */
static void not_a_number_is_no_class(void **state) {
    (void)state;
    const int32_t labels[COUNT] = {0, 0, 0, 0, 0, 0, 0, 1, 2, 1};
    tw_dataset *data = task_data_labelled(task_context, COUNT, 1, labels, TASK_CLASSES);
    tw_model *model = task_plain_model(task_context, 1);
    always_first(model, NAN);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .no_normalization = true, .optimizer = ADAM));
    tw_metrics metrics;
    int32_t predicted[COUNT];
    int64_t matrix[TASK_CLASSES * TASK_CLASSES], sum = 0;
    CHECK_FAILS(tw_trainer_evaluate(trainer, data, &metrics), TW_ERROR_NUMERIC, "tw_trainer_evaluate: samples 0 .. 9");
    assert_true(metrics.samples == 0 && metrics.top1 == 0);
    CHECK_OK(tw_trainer_predict(trainer, data, predicted));
    for (int i = 0; i < COUNT; i++) assert_int_equal(predicted[i], -1);
    CHECK_OK(tw_trainer_confusion(trainer, data, matrix));
    for (int i = 0; i < TASK_CLASSES * TASK_CLASSES; i++) sum += matrix[i];
    assert_int_equal(sum, 0);
    CHECK_FAILS(tw_trainer_fit(trainer, data, data), TW_ERROR_NUMERIC, "epoch 1, step 1");
    assert_int_equal(tw_trainer_count_history(trainer), 0);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* The normalisation of fit is that of its training set, and what a trainer is given is what its model sees. */
static void samples_are_normalised(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, COUNT, 1), *floats;
    tw_model *model = task_plain_model(task_context, 1);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .optimizer = STANDSTILL));
    assert_int_equal(tw_trainer_get_normalization(trainer).channels, 0);
    CHECK_OK(tw_trainer_fit(trainer, data, data));
    const tw_normalization found = tw_trainer_get_normalization(trainer);
    float mean, deviation, images[COUNT * TASK_PIXELS];
    CHECK_OK(tw_dataset_measure(data, &mean, &deviation));
    assert_true(found.channels == 1 && found.mean[0] == mean && found.deviation[0] == deviation);
    tw_trainer_destroy(trainer);

    const uint8_t *bytes = tw_dataset_get_images(data);
    for (int i = 0; i < COUNT * TASK_PIXELS; i++) images[i] = ((float)bytes[i] / 255 - 0.25f) / 0.125f;
    CHECK_OK(tw_dataset_create_from(&floats, task_context, TW_F32, images, COUNT, 1, TASK_SIDE, TASK_SIDE,
                                    tw_dataset_get_labels(data), NULL));
    tw_metrics expected, metrics;
    trainer = trainer_of(model, TW_OPTIONS(trainer, .no_normalization = true));
    CHECK_OK(tw_trainer_evaluate(trainer, floats, &expected));
    tw_trainer_destroy(trainer);
    trainer = trainer_of(model, TW_OPTIONS(trainer, .normalization = {1, {0.25f}, {0.125f}}));
    CHECK_OK(tw_trainer_evaluate(trainer, data, &metrics));
    assert_float_equal(metrics.loss, expected.loss, 1e-5);
    assert_true(expected.loss > 0.1);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(floats);
    tw_dataset_destroy(data);
}

/* ---- evaluation and training leave each other alone ---- */

static bool evaluate_within(void *user, const tw_progress *p) {
    tw_trainer **trainer = user;
    tw_metrics metrics;
    int32_t classes[7];
    tw_dataset *data = task_data(task_context, 7, (uint32_t)p->updates);
    CHECK_OK(tw_trainer_evaluate(*trainer, data, &metrics));
    CHECK_OK(tw_trainer_predict(*trainer, data, classes));
    CHECK_FAILS(tw_trainer_fit(*trainer, data, NULL), TW_ERROR_STATE, "callback");
    tw_dataset_destroy(data);
    return false;
}

static void evaluating_does_not_change_training(void **state) {
    (void)state;
    tw_dataset *train = task_data(task_context, 70, 1), *test = task_data(task_context, 20, 99);
    float *bytes = NULL;
    double loss = 0;
    const struct {
        int every;
        bool test, within;
    } ways[] = {{1, true, false}, {2, true, false}, {1, false, false}, {1, true, true}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        tw_model *model = task_model(task_context, 4);
        tw_trainer *trainer = NULL;
        trainer = trainer_of(model, TW_OPTIONS(trainer, .epochs = 4, .batch = 16, .optimizer = ADAM,
                                               .evaluate_every = ways[i].every,
                                               .on_step = ways[i].within ? evaluate_within : NULL, .user = &trainer));
        CHECK_OK(tw_trainer_fit(trainer, train, ways[i].test ? test : NULL));
        tw_history_row row;
        size_t count;
        CHECK_OK(tw_trainer_get_history(trainer, 3, &row));
        if (i == 0) {
            bytes = task_parameters(model, &count);
            loss = row.train.loss;
        } else if (!task_unchanged(model, bytes) || row.train.loss != loss) {
            fail_msg("way %zu of evaluating changes training", i);
        }
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
    }
    free(bytes);
    tw_dataset_destroy(train);
    tw_dataset_destroy(test);
}

static void evaluation_is_its_own_mode(void **state) {
    (void)state;
    tw_dataset *train = task_data(task_context, 60, 1), *test = task_data(task_context, 50, 99);
    tw_model *model = task_model(task_context, 4);
    tw_trainer *trainer =
        trainer_of(model, TW_OPTIONS(trainer, .batch = 16, .optimizer = STANDSTILL, .flip = true, .crop_padding = 2));
    CHECK_OK(tw_trainer_fit(trainer, train, NULL));
    size_t count;
    float *bytes = task_parameters(model, &count);
    tw_metrics first, second, other;
    CHECK_OK(tw_trainer_evaluate(trainer, test, &first));
    CHECK_OK(tw_trainer_evaluate(trainer, test, &second));
    assert_memory_equal(&first, &second, sizeof first); /* no dropout, no batch statistics; below: no augmentation */
    assert_true(task_unchanged(model, bytes));
    free(bytes);
    for (int batch = 1; batch < 60; batch += 8) {
        tw_trainer *small = trainer_of(model, TW_OPTIONS(trainer, .evaluation_batch = batch,
                                                         .normalization = tw_trainer_get_normalization(trainer)));
        CHECK_OK(tw_trainer_evaluate(small, test, &other));
        assert_float_equal(other.top1, first.top1, 1e-12);
        assert_float_equal(other.loss, first.loss, 1e-6);
        tw_trainer_destroy(small);
    }
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);

    model = task_model(task_context, 4); /* after an evaluation, training is training again */
    trainer =
        trainer_of(model, TW_OPTIONS(trainer, .batch = 60, .optimizer = STANDSTILL, .normalization = {1, {0}, {1}}));
    CHECK_OK(tw_trainer_evaluate(trainer, train, &first));
    CHECK_OK(tw_trainer_fit(trainer, train, train));
    tw_history_row row;
    CHECK_OK(tw_trainer_get_history(trainer, 0, &row));
    assert_true(fabs(row.train.loss - first.loss) > 1e-3); /* dropout and batch statistics are on */
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(train);
    tw_dataset_destroy(test);
}

/* loss_s = (1 - s) loss + s mean_c -log p_c. With logits 10, 0, 0, -log p is e, 10 + e, 10 + e; e = log(1 + 2
 * exp(-10)). */
static void smoothing_is_for_training_alone(void **state) {
    (void)state;
    const int32_t labels[COUNT] = {0};
    tw_dataset *data = task_data_labelled(task_context, COUNT, 1, labels, TASK_CLASSES);
    tw_model *model = task_plain_model(task_context, 1);
    always_first(model, 10);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .no_normalization = true, .label_smoothing = 0.3f,
                                                       .batch = 4, .optimizer = STANDSTILL));
    CHECK_OK(tw_trainer_fit(trainer, data, data));
    tw_history_row row;
    CHECK_OK(tw_trainer_get_history(trainer, 0, &row));
    const double e = log1p(2 * exp(-10));
    assert_float_equal(row.test.loss, e, 1e-6);
    assert_float_equal(row.train.loss, 0.7 * e + 0.3 * (3 * e + 20) / 3, 1e-5);
    tw_trainer_destroy(trainer);

    char *before = strdup(tw_model_dump(model)); /* a further trainer finds what the first one added */
    trainer = trainer_of(model, TW_OPTIONS(trainer, .label_smoothing = 0.3f));
    tw_trainer_destroy(trainer);
    assert_string_equal(tw_model_dump(model), before);
    free(before);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* An input that is no image takes the same numbers in C,H,W order: the same network, the same losses. */
static void flat_inputs_take_samples_in_order(void **state) {
    (void)state;
    enum { SAMPLES = 12, CHANNELS = 2, HEIGHT = 2, WIDTH = 3, SIZE = CHANNELS * HEIGHT * WIDTH };
    float images[SAMPLES * SIZE];
    int32_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES * SIZE; i++) images[i] = (float)(i * 7919 % 101) / 50 - 1;
    for (int i = 0; i < SAMPLES; i++) labels[i] = i * 5 % TASK_CLASSES;
    tw_dataset *data;
    CHECK_OK(
        tw_dataset_create_from(&data, task_context, TW_F32, images, SAMPLES, CHANNELS, HEIGHT, WIDTH, labels, NULL));
    double loss[2];
    for (int flat = 0; flat < 2; flat++) {
        tw_model *model;
        const int64_t size = SIZE;
        CHECK_OK(tw_model_create(&model, task_context));
        tw_value *x = flat ? tw_input_shaped(model, "numbers", 1, &size) : tw_input(model, CHANNELS, HEIGHT, WIDTH);
        CHECK_OK(tw_model_build(model, tw_dense(model, x, TASK_CLASSES, NULL), TW_OPTIONS(model, .seed = 5)));
        tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .epochs = 5, .batch = 5, .optimizer = ADAM));
        tw_history_row row;
        CHECK_OK(tw_trainer_fit(trainer, data, data));
        CHECK_OK(tw_trainer_get_history(trainer, 4, &row));
        loss[flat] = row.test.loss;
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
    }
    assert_float_equal(loss[0], loss[1], 1e-6);
    tw_dataset_destroy(data);
}

/* What a batch says of its samples lands at their places, and what fails in it names them, whoever brings the batches: one sample
 * of each class in turn but for some, the last not a number. */
static void batches_know_their_samples(void **state) {
    (void)state;
    float images[COUNT * TASK_CLASSES] = {0}, weight[TASK_CLASSES * TASK_CLASSES] = {0}, bias[TASK_CLASSES] = {0};
    const int32_t labels[COUNT] = {0, 1, 2, 2, 0, 1, 1, 2, 0, 2};
    for (int i = 0; i < COUNT; i++) images[i * TASK_CLASSES + labels[i]] = 1;
    for (int c = 0; c < TASK_CLASSES; c++) weight[c * TASK_CLASSES + c] = 1;
    tw_dataset *data, *bad;
    tw_model *model;
    CHECK_OK(tw_dataset_create_from(&data, task_context, TW_F32, images, COUNT, 1, 1, TASK_CLASSES, labels, NULL));
    images[COUNT * TASK_CLASSES - 1] = NAN;
    CHECK_OK(tw_dataset_create_from(&bad, task_context, TW_F32, images, COUNT, 1, 1, TASK_CLASSES, labels, NULL));
    CHECK_OK(tw_model_create(&model, task_context));
    CHECK_OK(tw_model_build(model, tw_dense(model, tw_input(model, 1, 1, TASK_CLASSES), TASK_CLASSES, NULL), NULL));
    CHECK_OK(tw_parameter_write(model, "fc1.weight", weight, TASK_CLASSES * TASK_CLASSES));
    CHECK_OK(tw_parameter_write(model, "fc1.bias", bias, TASK_CLASSES));
    for (int batch = 1; batch <= 12; batch++)
        for (int workers = 0; workers <= 3; workers += 1 + (workers == 1)) {
            tw_trainer *trainer = trainer_of(
                model, TW_OPTIONS(trainer, .no_normalization = true, .workers = workers, .evaluation_batch = batch));
            int32_t predicted[COUNT];
            char samples[64];
            tw_metrics metrics;
            memset(predicted, -2, sizeof predicted);
            CHECK_OK(tw_trainer_predict(trainer, data, predicted));
            assert_memory_equal(predicted, labels, sizeof labels);
            snprintf(samples, sizeof samples, "samples %d .. %d: ", (COUNT - 1) / batch * batch, COUNT - 1);
            CHECK_FAILS(tw_trainer_evaluate(trainer, bad, &metrics), TW_ERROR_NUMERIC, samples);
            CHECK_OK(tw_trainer_predict(trainer, bad, predicted));
            assert_memory_equal(predicted, labels, (COUNT - 1) * sizeof *labels);
            assert_int_equal(predicted[COUNT - 1], -1);
            tw_trainer_destroy(trainer);
        }
    tw_model_destroy(model);
    tw_dataset_destroy(bad);
    tw_dataset_destroy(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(every_sample_counts_once),
        with_context(any_number_of_sizes_needs_bounded_memory),
        with_context(top5_counts_the_first_five),
        with_context(not_a_number_is_no_class),
        with_context(samples_are_normalised),
        with_context(evaluating_does_not_change_training),
        with_context(evaluation_is_its_own_mode),
        with_context(smoothing_is_for_training_alone),
        with_context(flat_inputs_take_samples_in_order),
        with_context(batches_know_their_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

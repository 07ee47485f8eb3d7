/* What a trainer refuses, and that it works on afterwards. Memory: none taken while training, any of it refused. */
#include "small_task.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

#define ADAM \
    { .kind = TW_ADAMW, .learning_rate = 0.02 }

static tw_trainer *trainer_of(tw_model *model, const tw_trainer_options *options) {
    tw_trainer *trainer;
    CHECK_OK(tw_trainer_create(&trainer, model, options));
    return trainer;
}

/* ---- options and models ---- */

static void refuses_options_and_models(void **state) {
    (void)state;
    tw_model *model = task_plain_model(task_context, 1), *unbuilt, *image;
    tw_trainer *trainer;
    const struct {
        tw_trainer_options options;
        const char *says;
    } refused[] = {
        {{.epochs = -1}, "epochs is -1"},
        {{.batch = -1}, "batch is -1"},
        {{.evaluation_batch = -2}, "evaluation_batch is -2"},
        {{.evaluate_every = -1}, "evaluate_every is -1"},
        {{.checkpoint_every = 5}, "checkpoint_every is 5, but no `checkpoint` names a file"},
        {{.warmup_epochs = NAN}, "warmup_epochs is nan"},
        {{.label_smoothing = 1.5f}, "label_smoothing is 1.5"},
        {{.on_non_finite = TW_NON_FINITE_IGNORE}, "TW_NON_FINITE_IGNORE is for programs"},
        {{.on_non_finite = (tw_non_finite)4}, "on_non_finite 4 is none of"},
        {{.optimizer = {.momentum = 1}}, "momentum is 1"},
        {{.optimizer = {.size = 3}}, "tw_trainer_create: optimizer: the struct's size field is 3, expected"},
        {{.optimizer = {.size = sizeof(tw_optimizer_options) - 8}}, "optimizer: the struct's size field is"},
        {{.optimizer = {.schedule = {.warmup = INT64_MAX}}, .warmup_epochs = 1},
         "schedule.warmup is 9223372036854775807"},
        {{.workers = -1}, "tw_trainer_create: workers is -1"},
        {{.workers = 257}, "workers is 257; give 0 .. 256"},
        {{.crop_padding = -1}, "tw_trainer_create: crop_padding is -1"},
        {{.crop_padding = 13}, "tw_trainer_create: crop_padding is 13; give 0 .. 12"},
        {{.normalization = {17, {0}, {0}}}, "tw_trainer_create: normalization of 17 channels"},
        {{.normalization = {1, {NAN}, {1}}}, "tw_trainer_create: normalization of channel 0: mean nan"},
        {{.normalization = {1, {0}, {-1}}}, "deviation -1"},
        {{.normalization = {2, {0}, {1, 1}}}, "normalization is given for 2 channels, the model's input"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        tw_trainer_options options = refused[i].options;
        options.size = sizeof options;
        CHECK_FAILS(tw_trainer_create(&trainer, model, &options), TW_ERROR_ARGUMENT, refused[i].says);
        assert_null(trainer);
    }
    CHECK_FAILS(tw_trainer_create(&trainer, NULL, NULL), TW_ERROR_ARGUMENT, "model is NULL");
    CHECK_OK(tw_model_create(&unbuilt, task_context));
    CHECK_FAILS(tw_trainer_create(&trainer, unbuilt, NULL), TW_ERROR_STATE, "tw_model_build");
    CHECK_OK(tw_model_create(&image, task_context));
    CHECK_OK(tw_model_build(image, tw_relu(image, tw_input(image, 1, 2, 2)), NULL));
    CHECK_FAILS(tw_trainer_create(&trainer, image, NULL), TW_ERROR_SHAPE, "[N, classes]");
    tw_model_destroy(image);
    tw_model_destroy(unbuilt);
    tw_model_destroy(model);
}

/* An image and something beside it, both of which the output is made from; and a second input that it is not. */
static void refuses_a_model_with_a_second_input(void **state) {
    (void)state;
    tw_model *model;
    tw_trainer *trainer;
    for (int used = 0; used < 2; used++) {
        CHECK_OK(tw_model_create(&model, task_context));
        tw_value *image = tw_flatten(model, tw_input(model, 1, 2, 2));
        tw_value *beside = tw_input_shaped(model, "beside", 1, (const int64_t[]){4});
        tw_value *x = tw_dense(model, used ? tw_add(model, image, beside) : image, 3, NULL);
        CHECK_OK(tw_model_build(model, tw_relu(model, x), NULL));
        if (used) {
            CHECK_FAILS(tw_trainer_create(&trainer, model, NULL), TW_ERROR_ARGUMENT, "needs the input 'beside'");
            assert_null(trainer);
        } else {
            tw_trainer_destroy(trainer_of(model, NULL));
        }
        tw_model_destroy(model);
    }
}

/* Values of the model's own under the trainer's names: other ops, or the same ones over something else. */
typedef tw_value *(*own_value_fn)(tw_model *model, tw_value *head, tw_value *labels);

static tw_value *own_loss(tw_model *model, tw_value *head, tw_value *labels) {
    return tw_cross_entropy(model, head, labels, TW_OPTIONS(cross_entropy, .name = "loss"));
}

static tw_value *own_smoothed_loss(tw_model *model, tw_value *head, tw_value *labels) {
    return tw_cross_entropy(model, head, labels, TW_OPTIONS(cross_entropy, .name = "loss_smoothed_0.125"));
}

static tw_value *own_rank(tw_model *model, tw_value *head, tw_value *labels) {
    (void)labels;
    return tw_dense(model, head, 3, TW_OPTIONS(dense, .name = "rank1"));
}

static tw_value *own_argmax(tw_model *model, tw_value *head, tw_value *labels) {
    (void)labels;
    return tw_argmax(model, head);
}

static tw_value *own_labels(tw_model *model, tw_value *head, tw_value *labels) {
    (void)labels;
    return tw_dense(model, head, 3, TW_OPTIONS(dense, .name = "labels"));
}

static void refuses_names_that_are_taken(void **state) {
    (void)state;
    static const struct {
        own_value_fn make;
        bool over_output; /* or over another head */
        const char *says; /* NULL: the very value the trainer would make */
    } cases[] = {
        {own_loss, false, "'trainer.loss'"},
        {own_loss, true, NULL},
        {own_smoothed_loss, true, "'trainer.loss_smoothed_0.125'"},
        {own_rank, true, "'trainer.rank1'"},
        {own_labels, true, "'trainer.labels'"},
        {own_argmax, false, "'trainer.argmax1'"},
        {own_argmax, true, NULL},
    };
    tw_dataset *data = task_data(task_context, 6, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tw_model *model;
        tw_trainer *trainer;
        CHECK_OK(tw_model_create(&model, task_context));
        tw_value *x = tw_flatten(model, tw_input(model, 1, TASK_SIDE, TASK_SIDE));
        tw_value *output = tw_dense(model, x, TASK_CLASSES, NULL), *other = tw_dense(model, x, TASK_CLASSES, NULL);
        tw_scope_begin(model, "trainer");
        tw_value *labels = cases[i].make == own_labels ? NULL : tw_input_labels(model, "labels");
        cases[i].make(model, cases[i].over_output ? output : other, labels);
        tw_scope_end(model);
        CHECK_OK(tw_model_build(model, output, NULL));
        const tw_trainer_options options = {sizeof options, .batch = 4, .label_smoothing = 0.125f};
        if (cases[i].says) {
            CHECK_FAILS(tw_trainer_create(&trainer, model, &options), TW_ERROR_ARGUMENT, cases[i].says);
            assert_null(trainer);
        } else {
            trainer = trainer_of(model, &options);
            CHECK_OK(tw_trainer_fit(trainer, data, data));
            tw_trainer_destroy(trainer);
        }
        tw_model_destroy(model);
    }
    tw_dataset_destroy(data);
}

static void refuses_calls_that_come_too_early(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 6, 1);
    tw_model *model = task_plain_model(task_context, 1);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .batch = 8, .drop_last = true));
    tw_metrics metrics;
    int32_t classes[6];
    CHECK_FAILS(tw_trainer_evaluate(trainer, data, &metrics), TW_ERROR_STATE, "fit first");
    CHECK_FAILS(tw_trainer_predict(trainer, data, classes), TW_ERROR_STATE, "fit first");
    CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_ARGUMENT, "drop_last leaves no batch");
    CHECK_FAILS(tw_trainer_fit(trainer, NULL, NULL), TW_ERROR_ARGUMENT, "training set is NULL");
    CHECK_FAILS(tw_trainer_evaluate(trainer, NULL, &metrics), TW_ERROR_ARGUMENT, "dataset is NULL");
    tw_trainer_destroy(trainer);
    tw_trainer_destroy(NULL);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

static void note_warning(void *user, tw_log_level level, const char *line) {
    if (level == TW_LOG_WARNING) snprintf(user, 512, "%s%s;", strlen(user) < 256 ? (char *)user : "", line);
}

/* The loss takes logits: probabilities for them are warned of, once a trainer, and nothing else is. */
static void warns_of_a_softmax_at_the_end(void **state) {
    (void)state;
    char warned[512] = "";
    tw_context *context;
    CHECK_OK(
        tw_context_create(&context, check_device_or_cpu(),
                          TW_OPTIONS(context, .log_level = TW_LOG_WARNING, .log = note_warning, .log_user = warned)));
    tw_dataset *data = task_data(context, 6, 1);
    for (int ends = 0; ends < 2; ends++) {
        tw_model *model;
        CHECK_OK(tw_model_create(&model, context));
        tw_value *x = tw_dense(model, tw_input(model, 1, TASK_SIDE, TASK_SIDE), TASK_CLASSES, NULL);
        CHECK_OK(tw_model_build(model, ends ? tw_softmax(model, x) : x, NULL));
        tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .batch = 4));
        for (int fits = 0; fits < 2; fits++) CHECK_OK(tw_trainer_fit(trainer, data, NULL));
        const char *first = strstr(warned, "'softmax1'");
        assert_int_equal(first != NULL, ends);
        if (first) assert_non_null(strstr(first, "leave it out"));
        if (first) assert_null(strstr(first + 1, "'softmax1'"));
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
    }
    tw_dataset_destroy(data);
    tw_context_destroy(context);
}

static void keep_lines(void *user, tw_log_level level, const char *line) {
    (void)level;
    char *kept = user;
    snprintf(kept + strlen(kept), 4096 - strlen(kept), "%s\n", line);
}

static void logs_one_of_something_as_one(void **state) {
    (void)state;
    if (check_device()) skip();
    char lines[4096] = "";
    tw_context *context;
    CHECK_OK(tw_context_create(
        &context, "cpu",
        TW_OPTIONS(context, .threads = 1, .log_level = TW_LOG_DEBUG, .log = keep_lines, .log_user = lines)));
    tw_dataset *data = task_data(context, 1, 1);
    tw_model *model = task_plain_model(context, 1);
    for (int workers = 0; workers < 2; workers++) {
        tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .workers = workers));
        CHECK_OK(tw_trainer_fit(trainer, data, NULL));
        tw_trainer_destroy(trainer);
    }
    static const char *const said[] = {", 1 thread\n", "fit: 1 sample, ", ", 1 step an epoch, ", "feed: 1 sample, "};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (!strstr(lines, said[i])) fail_msg("no '%s' in\n%s", said[i], lines);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
    tw_context_destroy(context);
}

/* ---- data ---- */

/* Every failing fit leaves the parameters, bit for bit, and the counters; then good data trains. */
static void assert_fit_fails(tw_model *model, tw_trainer *trainer, const tw_dataset *train, const tw_dataset *test,
                             tw_status status, const char *says) {
    size_t count;
    uint64_t updates = tw_model_get_updates(model);
    float *before = task_parameters(model, &count);
    CHECK_FAILS(tw_trainer_fit(trainer, train, test), status, says);
    assert_true(task_unchanged(model, before));
    assert_int_equal(tw_model_get_updates(model), updates);
    free(before);
}

static void refuses_labels_outside(void **state) {
    (void)state;
    const int32_t labels[] = {0, 1, 2, 0, 1, 3, 0};
    tw_dataset *good = task_data(task_context, 12, 1), *bad = task_data_labelled(task_context, 7, 1, labels, 4);
    tw_dataset *roomy = task_data_labelled(task_context, 5, 1, labels, 4);
    tw_model *model = task_model(task_context, 1);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .batch = 4, .optimizer = ADAM));
    tw_metrics metrics;
    int64_t matrix[TASK_CLASSES * TASK_CLASSES];
    int32_t predicted[7];
    assert_fit_fails(model, trainer, bad, NULL, TW_ERROR_LABEL,
                     "the training set: label 3 of sample 5 is outside 0 .. 2");
    assert_fit_fails(model, trainer, good, bad, TW_ERROR_LABEL, "the test set: label 3 of sample 5 is outside 0 .. 2");
    CHECK_OK(tw_trainer_fit(trainer, good, good));
    CHECK_FAILS(tw_trainer_evaluate(trainer, bad, &metrics), TW_ERROR_LABEL, "label 3 of sample 5");
    CHECK_FAILS(tw_trainer_confusion(trainer, bad, matrix), TW_ERROR_LABEL, "label 3 of sample 5");
    CHECK_OK(tw_trainer_predict(trainer, bad, predicted)); /* asks for no label */
    CHECK_OK(tw_trainer_fit(trainer, roomy, NULL));        /* more classes than the model has, but none of them used */
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(roomy);
    tw_dataset_destroy(good);
    tw_dataset_destroy(bad);
}

static void refuses_samples_that_do_not_fit(void **state) {
    (void)state;
    static const float images[3 * 12 * 12] = {0};
    const int32_t label = 0;
    tw_dataset *good = task_data(task_context, 12, 1), *colour;
    CHECK_OK(tw_dataset_create_from(&colour, task_context, TW_F32, images, 1, 3, 12, 12, &label, NULL));
    tw_model *model = task_model(task_context, 1);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .batch = 4));
    assert_fit_fails(model, trainer, colour, NULL, TW_ERROR_MISMATCH,
                     "[3, 12, 12] (channels, height, width), the model's input 'input1' takes [1, 12, 12]");
    assert_fit_fails(model, trainer, good, colour, TW_ERROR_MISMATCH, "the test set");
    CHECK_OK(tw_trainer_fit(trainer, good, NULL));
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(colour);
    tw_dataset_destroy(good);
}

static void a_loss_that_is_not_finite_changes_nothing(void **state) {
    (void)state;
    enum { COUNT = 8 };
    float images[COUNT * TASK_PIXELS];
    int32_t labels[COUNT];
    for (int i = 0; i < COUNT * TASK_PIXELS; i++) images[i] = (float)(i % 7) - 3;
    for (int i = 0; i < COUNT; i++) labels[i] = i % TASK_CLASSES;
    images[5 * TASK_PIXELS + 3] = INFINITY;
    tw_dataset *good = task_data(task_context, 12, 1), *bad, *mended;
    const int64_t first[] = {0, 1, 2, 3};
    CHECK_OK(tw_dataset_create_from(&bad, task_context, TW_F32, images, COUNT, 1, TASK_SIDE, TASK_SIDE, labels, NULL));
    CHECK_OK(tw_dataset_create_subset(&mended, bad, first, 4));
    tw_model *model = task_model(task_context, 1), *twin = task_model(task_context, 1);
    const tw_trainer_options options = {sizeof options, .no_normalization = true, .no_shuffle = true, .batch = 4,
                                        .optimizer = ADAM};
    tw_trainer *trainer = trainer_of(model, &options), *other = trainer_of(twin, &options);
    CHECK_FAILS(tw_trainer_fit(trainer, bad, NULL), TW_ERROR_NUMERIC, "tw_trainer_fit: epoch 1, step 2: ");
    assert_non_null(strstr(tw_last_error(), "the loss is"));
    assert_int_equal(tw_model_get_updates(model), 1);
    CHECK_OK(
        tw_trainer_fit(other, mended, NULL)); /* the first step alone: running statistics, too, are those it left */
    size_t count;
    float *expected = task_parameters(twin, &count);
    assert_true(task_unchanged(model, expected));
    free(expected);
    CHECK_OK(tw_trainer_fit(trainer, good, good));
    tw_trainer_destroy(other);
    tw_trainer_destroy(trainer);
    tw_model_destroy(twin);
    tw_model_destroy(model);
    tw_dataset_destroy(mended);
    tw_dataset_destroy(bad);
    tw_dataset_destroy(good);
}

/* ---- memory ---- */

typedef struct memory_log {
    tw_memory_stats first, last;
} memory_log;

static bool log_memory(void *user, const tw_progress *p) {
    memory_log *log = user;
    *(p->epoch == 0 && p->step == 1 ? &log->first : &log->last) = tw_context_get_memory(task_context);
    return false;
}

static void training_takes_no_memory(void **state) {
    (void)state;
    tw_dataset *train = task_data(task_context, 70, 1), *test = task_data(task_context, 30, 2);
    tw_model *model = task_model(task_context, 1);
    for (int workers = 0; workers < 3; workers += 2) {
        memory_log log;
        tw_trainer *trainer =
            trainer_of(model, TW_OPTIONS(trainer, .epochs = 50, .batch = 16, .evaluation_batch = 16, .workers = workers,
                                         .flip = true, .on_step = log_memory, .on_epoch = log_memory, .user = &log));
        CHECK_OK(tw_trainer_fit(trainer, train, test));
        assert_int_equal(log.last.allocations, log.first.allocations);
        assert_int_equal(log.last.bytes, log.first.bytes);
        tw_trainer_destroy(trainer);
    }
    tw_model_destroy(model);
    tw_dataset_destroy(train);
    tw_dataset_destroy(test);
}

typedef struct endless {
    uint64_t allocations; /* after the first epoch */
    int end, refuse;      /* the epochs, in all, after which to stop, and to refuse memory; 0: never */
} endless;

static bool fail_always(void *user, uint64_t index, size_t bytes) {
    (void)user, (void)index, (void)bytes;
    return true;
}

static bool watch_endless(void *user, const tw_progress *p) {
    endless *e = user;
    const uint64_t allocations = tw_context_get_memory(task_context).allocations;
    if (p->epoch == 0) e->allocations = allocations;
    if (p->epoch < 1024) assert_int_equal(allocations, e->allocations);
    if (p->epoch + 1 == e->refuse) tw_context_set_memory_hook(task_context, fail_always, NULL);
    return p->epoch + 1 == e->end;
}

/* As many epochs as can be counted stand for "until I stop", in a first fit and in one that goes on. */
static void endless_fits_grow_their_history(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 4, 1);
    tw_model *model = task_plain_model(task_context, 1);
    endless e = {.refuse = 1024};
    tw_history_row row;
    tw_trainer *trainer =
        trainer_of(model, TW_OPTIONS(trainer, .epochs = INT_MAX, .batch = 4, .on_epoch = watch_endless, .user = &e));
    CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, "history");
    tw_context_set_memory_hook(task_context, NULL, NULL);
    assert_int_equal(tw_trainer_count_history(trainer), 1024);
    assert_int_equal(tw_model_get_updates(model), 1024);
    e = (endless){.end = 1030};
    CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_STOPPED, "epoch 1030");
    CHECK_OK(tw_trainer_get_history(trainer, 1029, &row));
    assert_int_equal(row.epoch, 1030);
    tw_trainer_destroy(trainer);
    e = (endless){.end = 2050}; /* in one go, over two doublings */
    trainer =
        trainer_of(model, TW_OPTIONS(trainer, .epochs = INT_MAX, .batch = 4, .on_epoch = watch_endless, .user = &e));
    CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_STOPPED, "epoch 2050");
    assert_int_equal(tw_context_get_memory(task_context).allocations, e.allocations + 2);
    assert_int_equal(tw_trainer_count_history(trainer), 2050);
    for (int i = 0; i < 2050; i++) {
        CHECK_OK(tw_trainer_get_history(trainer, i, &row));
        assert_int_equal(row.epoch, i + 1);
    }
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

typedef struct refusal {
    uint64_t at;
    bool met; /* there was such an allocation */
} refusal;

static bool fail_at(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    refusal *r = user;
    r->met |= index == r->at;
    return index == r->at;
}

/* The larger data set needs a larger arena, to which the programs made before must move. */
static tw_status fit_and_measure(tw_trainer *trainer, const tw_dataset *data, const tw_dataset *larger) {
    tw_metrics metrics;
    int64_t matrix[TASK_CLASSES * TASK_CLASSES];
    tw_status status = tw_trainer_fit(trainer, data, data);
    if (status == TW_OK) status = tw_trainer_evaluate(trainer, larger, &metrics);
    if (status == TW_OK) status = tw_trainer_confusion(trainer, data, matrix);
    return status;
}

/* Each allocation in turn is refused; model and trainer that met with it work as soon as there is memory. */
static void any_allocation_may_fail(void **state) {
    (void)state;
    const tw_trainer_options options = {sizeof options, .batch = 4, .workers = 1, .optimizer = ADAM};
    tw_dataset *data = task_data(task_context, 10, 1), *larger = task_data(task_context, 100, 1);
    uint64_t blocks = tw_context_get_memory(task_context).blocks;
    refusal r = {0, true};
    for (; r.met; r.at++) { /* a fit may plan anew and go on, so it is not over with the first that does */
        tw_status status;
        r.met = false;
        tw_model *model = task_plain_model(task_context, 1);
        tw_trainer *trainer;
        tw_context_set_memory_hook(task_context, fail_at, &r);
        status = tw_trainer_create(&trainer, model, &options);
        if (status == TW_OK) status = fit_and_measure(trainer, data, larger);
        tw_context_set_memory_hook(task_context, NULL, NULL);
        if (status && status != TW_ERROR_OUT_OF_MEMORY)
            fail_msg("allocation %d refused: %s", (int)r.at, tw_last_error());
        if (!trainer) trainer = trainer_of(model, &options);
        tw_metrics metrics;
        if (status && tw_trainer_count_history(trainer))
            CHECK_OK(tw_trainer_evaluate(trainer, data, &metrics)); /* programs that are there still */
        if (status) CHECK_OK(fit_and_measure(trainer, data, larger));
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
        assert_int_equal(tw_context_get_memory(task_context).blocks, blocks);
    }
    assert_true(r.at > 50); /* it was a real run */
    tw_dataset_destroy(larger);
    tw_dataset_destroy(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(refuses_options_and_models),
        with_context(refuses_a_model_with_a_second_input),
        with_context(refuses_names_that_are_taken),
        with_context(refuses_calls_that_come_too_early),
        with_context(warns_of_a_softmax_at_the_end),
        cmocka_unit_test(logs_one_of_something_as_one),
        with_context(refuses_labels_outside),
        with_context(refuses_samples_that_do_not_fit),
        with_context(a_loss_that_is_not_finite_changes_nothing),
        with_context(training_takes_no_memory),
        with_context(endless_fits_grow_their_history),
        with_context(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Fits that keep within memory: by smaller workspaces, recomputation and batches in parts, each of which leaves what is learned as it
 * was; and fits that run out of it. */
#include "small_task.h"
#include "program/program.h"
#include "trainer/trainer.h"

#include <math.h>
#include <stdio.h>

/* ---- what was logged ---- */

typedef struct lines {
    char text[8192];
} lines;

static void keep_line(void *user, tw_log_level level, const char *line) {
    lines *l = user;
    if (level > TW_LOG_INFO) return;
    strncat(l->text, line, sizeof l->text - 2 - strlen(l->text));
    strcat(l->text, "\n");
}

/* ---- nets and data ---- */

static tw_value *lenet(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, 10); }
static tw_value *resnet20(tw_model *model, tw_value *x) { return tw_zoo_resnet20(model, x, 10, NULL); }
static tw_value *resnet18(tw_model *model, tw_value *x) { return tw_zoo_resnet18(model, x, 10, NULL); }
static tw_value *convolutions(tw_model *model, tw_value *x) {
    for (int i = 0; i < 4; i++) x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_dense(model, tw_dropout(model, tw_max_pool(model, x, 2, NULL), 0.3f), 10, NULL);
    return x;
}

typedef struct setting {
    const char *name;
    tw_value *(*build)(tw_model *, tw_value *);
    int channels, side, batch, samples;
} setting;

static tw_model *open_model(tw_context *context, const setting *s) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *logits = s->build(model, tw_input(model, s->channels, s->side, s->side));
    CHECK_OK(tw_model_build(model, logits, TW_OPTIONS(model, .seed = 3)));
    return model;
}

static tw_dataset *open_data(tw_context *context, const setting *s) {
    const size_t pixels = (size_t)s->samples * (size_t)(s->channels * s->side * s->side);
    float *images = malloc(pixels * sizeof *images);
    int32_t *labels = malloc((size_t)s->samples * sizeof *labels);
    uint32_t draw = 7;
    tw_dataset *data;
    assert_true(images && labels);
    for (size_t i = 0; i < pixels; i++) {
        draw = draw * 1664525u + 1013904223u;
        images[i] = (float)(draw >> 8) / (float)(1 << 24) + (float)(i / (pixels / (size_t)s->samples) % 10) / 10;
    }
    for (int i = 0; i < s->samples; i++) labels[i] = i % 10;
    CHECK_OK(tw_dataset_create_from(&data, context, TW_F32, images, s->samples, s->channels, s->side, s->side, labels,
                                    TW_OPTIONS(dataset, .classes = 10)));
    free(images);
    free(labels);
    return data;
}

/* Bytes that the plain plan of a fit takes: in all, and of that activations and workspaces. */
static void plan_plain(tw_model *model, const tw_trainer_options *options, size_t *fixed, size_t *planned,
                       size_t *gradients) {
    tw_trainer *trainer;
    tw_program_stats stats;
    size_t bytes;
    CHECK_OK(tw_trainer_create(&trainer, model, options));
    CHECK_OK(twi_trainer_plan(trainer, TWI_USE_TRAIN, trainer->options.batch, &stats, &bytes));
    *planned = stats.arena_bytes + stats.scratch_bytes;
    *fixed = bytes - *planned;
    *gradients = stats.gradient_bytes;
    tw_trainer_destroy(trainer);
}

/* ---- limits ---- */

static void fit_within(const setting *s, double share) {
    lines log = {""};
    tw_context *context;
    tw_trainer *trainer;
    size_t fixed, planned, gradients;
    CHECK_OK(tw_context_create(
        &context, check_device_or_cpu(),
        TW_OPTIONS(context, .threads = 2, .log = keep_line, .log_user = &log, .log_level = TW_LOG_INFO)));
    tw_model *model = open_model(context, s);
    tw_dataset *data = open_data(context, s);
    tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
    options.batch = s->batch;
    options.optimizer = (tw_optimizer_options){.learning_rate = 0.01f, .momentum = 0.9f};
    plan_plain(model, &options, &fixed, &planned, &gradients);
    /* The shares are of activations and workspaces. Where they are small, batches in parts have their sums of gradients beside. */
    options.memory_limit = fixed + (size_t)(share * (double)planned) + (share < 0.6 ? gradients : 0);
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    CHECK_OK(tw_trainer_fit(trainer, data, data));
    print_message("%s, %.0f %%: %s\n", s->name, 100 * share, log.text);
    assert_true(model->arena_bytes + model->scratch_bytes <=
                options.memory_limit - fixed - (trainer->parts > 1 ? gradients : 0));
    assert_true(twi_model_bytes(model) <= options.memory_limit);
    assert_int_equal(tw_model_get_updates(model), (s->samples + s->batch - 1) / s->batch);
    tw_history_row row;
    CHECK_OK(tw_trainer_get_history(trainer, 0, &row));
    assert_int_equal(row.test.samples, s->samples);
    assert_true(strstr(log.text, "plan of batch") || strstr(log.text, "fit: batches of"));
    if (strstr(log.text, "fit: batches of"))
        assert_true(!strstr(log.text, "statistics of each part") == (model->store.buffer_count == 0));
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
    tw_context_destroy(context);
}

static void three_networks_finish_within_less(void **state) {
    (void)state;
    static const setting settings[] = {{"LeNet-5", lenet, 1, 28, 64, 150},
                                       {"ResNet-20", resnet20, 3, 32, 64, 70},
                                       {"ResNet-18", resnet18, 3, 64, 32, 34}};
    static const double shares[] = {0.9, 0.7, 0.5, 0.3};
    if (check_device()) skip(); /* an emulated device takes too long */
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) fit_within(&settings[i], shares[k]);
}

/* ---- what is learned ---- */

typedef struct learned {
    float *parameters;
    size_t count;
    double loss; /* of the last epoch */
    int parts;
    int64_t steps[64];
    int calls;
} learned;

static bool note(void *user, const tw_progress *progress) {
    learned *l = user;
    if (l->calls < 64) l->steps[l->calls++] = progress->step;
    return false;
}

/* The last batch is of one sample. An emulated device is slow. */
static const setting host_task = {"convolutions", convolutions, 1, 12, 48, 145},
                     device_task = {"convolutions", convolutions, 1, 8, 8, 17};
static const setting *task(void) { return check_device() ? &device_task : &host_task; }
static int epochs(void) { return check_device() ? 1 : 3; }

/* `arrange` may change the context before fit. */
static learned learn(const setting *s, tw_trainer_options options, double share, void (*arrange)(tw_context *)) {
    learned l = {0};
    tw_context *context;
    tw_trainer *trainer;
    size_t fixed, planned, gradients;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    tw_model *model = open_model(context, s);
    tw_dataset *data = open_data(context, s);
    options.size = sizeof options;
    options.batch = s->batch;
    options.epochs = epochs();
    options.optimizer = (tw_optimizer_options){.learning_rate = 0.01f, .momentum = 0.9f};
    options.on_step = note;
    options.user = &l;
    if (share > 0) plan_plain(model, &options, &fixed, &planned, &gradients);
    if (share > 0) options.memory_limit = fixed + (size_t)(share * (double)planned);
    if (arrange) arrange(context);
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    CHECK_OK(tw_trainer_fit(trainer, data, data));
    l.parts = trainer->parts;
    tw_history_row row;
    CHECK_OK(tw_trainer_get_history(trainer, epochs() - 1, &row));
    l.loss = row.test.loss;
    l.parameters = task_parameters(model, &l.count);
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
    tw_context_destroy(context);
    return l;
}

static void assert_near(const learned *a, const learned *b) {
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++)
        if (!(fabs((double)a->parameters[i] - (double)b->parameters[i]) <= 1e-4)) /* a relu that rounding decides */
            fail_msg("parameter %zu: %.9g and %.9g", i, (double)a->parameters[i], (double)b->parameters[i]);
    if (fabs(a->loss - b->loss) > 1e-5) fail_msg("loss %.9g and %.9g", a->loss, b->loss);
    assert_int_equal(a->calls, b->calls);
    for (int i = 0; i < a->calls; i++) assert_int_equal(a->steps[i], b->steps[i]);
}

static void drop(learned *l) { free(l->parameters); }

/* The last batch, of one sample, is counted right; dropout's masks are those of the whole batch. */
static void parts_learn_what_the_batch_does(void **state) {
    (void)state;
    tw_trainer_options off = {.recompute = TW_RECOMPUTE_OFF};
    learned whole = learn(task(), off, 0, NULL), parts = learn(task(), off, 0.4, NULL);
    assert_int_equal(whole.parts, 1);
    assert_true(parts.parts > 1 && task()->batch % parts.parts == 0);
    assert_near(&whole, &parts);
    assert_int_equal(whole.calls, epochs() * (task()->samples / task()->batch + 1)); /* callbacks tell batches */
    assert_int_equal(whole.steps[1], 2);
    drop(&parts);
    off.accumulate = 2;
    learned windows = learn(task(), off, 0, NULL), more = learn(task(), off, 0.4, NULL);
    assert_true(more.parts > 1);
    assert_near(&windows, &more);
    off.accumulate = 1;
    off.workers = 2; /* batches made by a loader */
    learned loaded = learn(task(), off, 0.4, NULL);
    assert_near(&whole, &loaded);
    off.drop_last = true;
    learned dropped = learn(task(), off, 0, NULL), fewer = learn(task(), off, 0.4, NULL);
    assert_int_equal(dropped.calls, epochs() * (task()->samples / task()->batch));
    assert_near(&dropped, &fewer);
    drop(&whole);
    drop(&windows);
    drop(&more);
    drop(&loaded);
    drop(&dropped);
    drop(&fewer);
}

static void recomputing_learns_the_same_bits(void **state) {
    (void)state;
    static const setting small = {"ResNet-20", resnet20, 3, 16, 16, 34};
    if (check_device()) skip();
    learned plain = learn(&small, (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, 0, NULL),
            blocks = learn(&small, (tw_trainer_options){.recompute = TW_RECOMPUTE_BLOCKS}, 0, NULL);
    assert_int_equal(blocks.parts, 1);
    assert_int_equal(plain.count, blocks.count);
    assert_memory_equal(plain.parameters, blocks.parameters, plain.count * sizeof(float));
    drop(&plain);
    drop(&blocks);
}

/* ---- too little ---- */

static void too_little_is_refused_with_the_floor(void **state) {
    (void)state;
    tw_trainer *trainer;
    tw_dataset *data = open_data(task_context, task());
    tw_model *model = open_model(task_context, task());
    size_t count;
    float *before = task_parameters(model, &count);
    tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
    for (int fits = 0; fits < 2; fits++) {
        options.memory_limit = 1000;
        options.on_out_of_memory = fits ? TW_OUT_OF_MEMORY_FIT : TW_OUT_OF_MEMORY_STOP;
        CHECK_OK(tw_trainer_create(&trainer, model, &options));
        CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, "the least that batch 1 was planned");
        assert_non_null(strstr(tw_last_error(), "optimizer"));
        tw_trainer_destroy(trainer);
    }
    assert_true(task_unchanged(model, before));
    options.memory_limit = 0;
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    CHECK_OK(tw_trainer_fit(trainer, data, NULL)); /* all still works */
    tw_trainer_destroy(trainer);
    free(before);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* ---- memory that is gone ---- */

static twi_backend failing;
static const twi_backend *real;
static int runs_left, runs_failed;

static tw_status run_or_fail(tw_context *context, void *prepared, int first, int count) {
    if (runs_left > 0 && --runs_left == 0) {
        runs_failed++;
        return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY, "run: the device has no memory left");
    }
    return real->run(context, prepared, first, count);
}

static int fail_at;
static void fail_a_run(tw_context *context) {
    real = context->backend;
    failing = *real;
    failing.run = run_or_fail;
    context->backend = &failing;
    runs_left = fail_at;
    runs_failed = 0;
}

/* In training, in the middle of an epoch and at its beginning, and in an evaluation: nothing is lost, nothing done twice. */
static void a_fit_goes_on_from_where_memory_ran_out(void **state) {
    (void)state;
    tw_trainer_options options = {.on_out_of_memory = TW_OUT_OF_MEMORY_FIT, .accumulate = 1};
    learned whole = learn(task(), options, 0, NULL);
    /* Of the whole batch, and of the second batch of a window. */
    static const int runs[][2] = {{1, 1}, {3, 1}, {5, 1}, {8, 1}, {2, 2}};
    for (size_t i = check_device() ? 3 : 0; i < sizeof runs / sizeof *runs; i++) {
        fail_at = check_device() && runs[i][1] == 1 ? 3 : runs[i][0];
        if (options.accumulate != runs[i][1]) {
            drop(&whole);
            options.accumulate = runs[i][1];
            whole = learn(task(), options, 0, NULL);
        }
        learned broken = learn(task(), options, 0, fail_a_run);
        assert_int_equal(runs_failed, 1);
        assert_near(&whole, &broken);
        drop(&broken);
    }
    drop(&whole);
}

static void or_stops_and_the_context_works(void **state) {
    (void)state;
    tw_trainer *trainer;
    tw_dataset *data = open_data(task_context, task());
    tw_model *model = open_model(task_context, task());
    tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
    options.batch = task()->batch;
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    fail_at = 2;
    fail_a_run(task_context);
    CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, "no memory left");
    assert_int_equal(tw_model_get_updates(model), 1);
    CHECK_OK(tw_trainer_fit(trainer, data, NULL));
    task_context->backend = real;
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* Every request for memory fails once: the fit goes on with less, or says what it needed; nothing else happens. */
static size_t refused_bytes;
static int refusals;
static bool refuse_large(void *user, uint64_t index, size_t bytes) {
    (void)user, (void)index;
    return bytes >= refused_bytes && refusals++ == 0;
}

static void memory_that_is_refused_is_done_without(void **state) {
    (void)state;
    tw_trainer *trainer;
    if (check_device()) skip(); /* the hook is of the host's memory */
    for (int fits = 0; fits < 2; fits++) {
        tw_dataset *data = open_data(task_context, task());
        tw_model *model = open_model(task_context, task());
        tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
        size_t fixed, planned, gradients;
        options.batch = task()->batch;
        options.on_out_of_memory = fits ? TW_OUT_OF_MEMORY_FIT : TW_OUT_OF_MEMORY_STOP;
        plan_plain(model, &options, &fixed, &planned, &gradients);
        CHECK_OK(tw_trainer_create(&trainer, model, &options));
        refused_bytes = planned / 4;
        refusals = 0;
        tw_context_set_memory_hook(task_context, refuse_large, NULL);
        if (fits) {
            CHECK_OK(tw_trainer_fit(trainer, data, NULL));
            assert_true(trainer->parts > 1);
        } else {
            CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, " takes parameters ");
            assert_non_null(strstr(tw_last_error(), "workspaces"));
        }
        assert_true(refusals > 0);
        tw_context_set_memory_hook(task_context, NULL, NULL);
        CHECK_OK(tw_trainer_fit(trainer, data, NULL));
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
        tw_dataset_destroy(data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_learn_what_the_batch_does),   cmocka_unit_test(recomputing_learns_the_same_bits),
        with_context(too_little_is_refused_with_the_floor),  cmocka_unit_test(a_fit_goes_on_from_where_memory_ran_out),
        with_context(or_stops_and_the_context_works),        with_context(memory_that_is_refused_is_done_without),
        cmocka_unit_test(three_networks_finish_within_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

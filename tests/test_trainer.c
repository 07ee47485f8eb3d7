/* Fitting: what it learns, the same bytes for any number of threads and workers, batches and averages, rates, stopping,
 * progress. */
#define _POSIX_C_SOURCE 200809L /* sigaction, nanosleep */
#include "small_task.h"
#include "trainer/trainer.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define ADAM \
    { .kind = TW_ADAMW, .learning_rate = 0.02 }
/* A rate at which nothing moves: 0 would mean the default. */
#define STANDSTILL \
    { .kind = TW_SGD, .learning_rate = 1e-30 }

static tw_trainer *trainer_of(tw_model *model, const tw_trainer_options *options) {
    tw_trainer *trainer;
    CHECK_OK(tw_trainer_create(&trainer, model, options));
    return trainer;
}

static tw_history_row row_of(const tw_trainer *trainer, int index) {
    tw_history_row row;
    CHECK_OK(tw_trainer_get_history(trainer, index, &row));
    return row;
}

/* ---- learning ---- */

static void learns_a_separable_task(void **state) {
    (void)state;
    tw_dataset *train = task_data(task_context, 120, 1), *test = task_data(task_context, 30, 99);
    tw_model *model = task_model(task_context, 1);
    tw_trainer *trainer =
        trainer_of(model, TW_OPTIONS(trainer, .epochs = 8, .batch = 16, .evaluation_batch = 16, .optimizer = ADAM));
    CHECK_OK(tw_trainer_fit(trainer, train, test));
    assert_int_equal(tw_trainer_count_history(trainer), 8);
    tw_history_row first = row_of(trainer, 0), last = row_of(trainer, 7);
    assert_int_equal(first.epoch, 1);
    assert_int_equal(last.epoch, 8);
    assert_int_equal(last.train.samples, 120);
    assert_int_equal(last.test.samples, 30);
    assert_true(last.train.loss < first.train.loss / 2 && last.test.loss < 0.3);
    assert_true(last.test.top1 == 1 && last.test.top5 == 1 && last.train.top1 > 0.9);
    assert_true(last.learning_rate == 0.02 && last.seconds > 0 && last.images_per_second > 0);
    assert_int_equal(tw_model_get_updates(model), 8 * 8);
    int32_t classes[30];
    CHECK_OK(tw_trainer_predict(trainer, test, classes));
    for (int i = 0; i < 30; i++) assert_int_equal(classes[i], i % TASK_CLASSES); /* in the data set's order */
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(train);
    tw_dataset_destroy(test);
}

/* ---- the same bytes ---- */

typedef struct setup {
    int threads, workers;
    uint64_t seed, order_seed;
    bool no_shuffle, no_flip;
} setup;

static float *bytes_of(const setup *s, size_t *count) {
    tw_context *context;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = s->threads)));
    tw_dataset *train = task_data(context, 201, 1), *test = task_data(context, 10, 99);
    tw_model *model = task_model(context, s->seed);
    tw_trainer *trainer = trainer_of(
        model, TW_OPTIONS(trainer, .epochs = 2, .batch = 64, .optimizer = ADAM, .workers = s->workers,
                          .seed = s->order_seed, .flip = !s->no_flip, .crop_padding = 1, .no_shuffle = s->no_shuffle));
    CHECK_OK(tw_trainer_fit(trainer, train, test));
    float *bytes = task_parameters(model, count);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(train);
    tw_dataset_destroy(test);
    tw_context_destroy(context);
    return bytes;
}

static bool same_bytes(const setup *a, const setup *b) {
    size_t count, other;
    float *x = bytes_of(a, &count), *y = bytes_of(b, &other);
    assert_int_equal(count, other);
    bool same = memcmp(x, y, count * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}

static void the_seed_alone_decides(void **state) {
    (void)state;
    const setup base = {1, 0, 7, 0, false, false};
    const setup same[] = {{1, 0, 7, 7, false, false},
                          {2, 0, 7, 0, false, false},
                          {1, 1, 7, 0, false, false},
                          {2, 4, 7, 0, false, false},
                          {4, 1, 7, 0, false, false}};
    const setup others[] = {
        {1, 0, 8, 0, false, false}, {1, 0, 0, 0, false, false}, {1, 0, (uint64_t)1 << 63, 0, false, false},
        {1, 0, 7, 8, false, false}, {1, 0, 7, 0, true, false},  {1, 0, 7, 0, false, true}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!same_bytes(&base, &same[i]))
            fail_msg("%d threads and %d workers give other bytes than 1 and 0", same[i].threads, same[i].workers);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (same_bytes(&base, &others[i])) fail_msg("set-up %zu makes no difference", i);
}

static int threads_now(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    while (readdir(tasks)) count++;
    closedir(tasks);
    return count;
}

static bool count_threads(void *user, const tw_progress *p) {
    (void)p;
    *(int *)user = threads_now();
    return false;
}

static void workers_live_as_long_as_fit(void **state) {
    (void)state;
    tw_dataset *train = task_data(task_context, 20, 1);
    tw_model *model = task_plain_model(task_context, 3);
    int before = threads_now(), during = 0;
    tw_trainer *trainer =
        trainer_of(model, TW_OPTIONS(trainer, .workers = 3, .on_step = count_threads, .user = &during));
    CHECK_OK(tw_trainer_fit(trainer, train, NULL));
    assert_int_equal(during, before + 3);
    assert_int_equal(threads_now(), before);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(train);
}

/* Two epochs at once, or one and then one more: the order of the second epoch is its own. */
static void fitting_again_goes_on(void **state) {
    (void)state;
    tw_dataset *train = task_data(task_context, 50, 1);
    tw_model *once = task_model(task_context, 3), *twice = task_model(task_context, 3);
    tw_trainer *a = trainer_of(once, TW_OPTIONS(trainer, .epochs = 2, .batch = 8, .optimizer = ADAM));
    tw_trainer *b = trainer_of(twice, TW_OPTIONS(trainer, .batch = 8, .optimizer = ADAM));
    CHECK_OK(tw_trainer_fit(a, train, NULL));
    CHECK_OK(tw_trainer_fit(b, train, NULL));
    CHECK_OK(tw_trainer_fit(b, train, NULL));
    assert_int_equal(row_of(b, 1).epoch, 2);
    assert_int_equal(row_of(b, 1).test.samples, 0);
    size_t count;
    float *bytes = task_parameters(once, &count);
    assert_true(task_unchanged(twice, bytes));
    free(bytes);

    CHECK_OK(tw_model_set_trainable(twice, "conv1", false)); /* noticed by the next fit */
    float before[9 * TASK_CHANNELS], after[9 * TASK_CHANNELS];
    CHECK_OK(tw_parameter_read(twice, "conv1.weight", before, 9 * TASK_CHANNELS));
    CHECK_OK(tw_trainer_fit(b, train, NULL));
    CHECK_OK(tw_parameter_read(twice, "conv1.weight", after, 9 * TASK_CHANNELS));
    assert_memory_equal(before, after, sizeof before);
    tw_trainer_destroy(a);
    tw_trainer_destroy(b);
    tw_model_destroy(once);
    tw_model_destroy(twice);
    tw_dataset_destroy(train);
}

/* Where nothing moves, the first batch's loss tells which samples are in it. */
static bool note_first_loss(void *user, const tw_progress *p) {
    if (p->step == 1) ((double *)user)[p->epoch] = p->train.loss;
    return false;
}

static void every_epoch_has_its_own_order(void **state) {
    (void)state;
    tw_dataset *train = task_data(task_context, 50, 1);
    tw_model *model = task_plain_model(task_context, 3);
    for (int kept = 0; kept < 2; kept++) {
        double loss[3];
        tw_trainer *trainer =
            trainer_of(model, TW_OPTIONS(trainer, .epochs = 3, .batch = 8, .no_shuffle = kept, .optimizer = STANDSTILL,
                                         .on_step = note_first_loss, .user = loss));
        CHECK_OK(tw_trainer_fit(trainer, train, NULL));
        assert_true(kept ? loss[0] == loss[1] && loss[1] == loss[2]
                         : loss[0] != loss[1] && loss[1] != loss[2] && loss[0] != loss[2]);
        tw_trainer_destroy(trainer);
    }
    tw_model_destroy(model);
    tw_dataset_destroy(train);
}

/* ---- batches, averages, rates ---- */

static bool count_steps(void *user, const tw_progress *p) {
    int64_t *steps = user;
    steps[0]++;
    steps[1] = p->train.samples;
    return false;
}

/* 10 samples in batches of 4: three steps, the last of two samples, which weigh as much as any other. */
static void a_short_last_batch_counts_by_its_samples(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 10, 5);
    tw_model *model = task_plain_model(task_context, 2);
    for (int drop = 0; drop < 2; drop++) {
        int64_t steps[2] = {0, 0};
        tw_trainer *trainer =
            trainer_of(model, TW_OPTIONS(trainer, .epochs = 3, .batch = 4, .drop_last = drop, .optimizer = STANDSTILL,
                                         .on_step = count_steps, .user = steps));
        CHECK_OK(tw_trainer_fit(trainer, data, data));
        assert_int_equal(steps[0], drop ? 3 * 2 : 3 * 3);
        assert_int_equal(steps[1], drop ? 8 : 10);
        tw_history_row row = row_of(trainer, 2);
        assert_int_equal(row.train.samples, drop ? 8 : 10);
        assert_int_equal(row.test.samples, 10);
        if (!drop) {
            assert_float_equal(row.train.loss, row.test.loss, 1e-6);
            assert_float_equal(row.train.top1, row.test.top1, 1e-12);
        }
        tw_trainer_destroy(trainer);
    }
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

static void a_last_batch_of_one_is_never_fatal(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 9, 5), *one = task_data(task_context, 1, 6);
    tw_model *model = task_model(task_context, 2);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .epochs = 2, .batch = 4, .optimizer = ADAM));
    CHECK_OK(tw_trainer_fit(trainer, data, one));
    CHECK_OK(tw_trainer_fit(trainer, one, data));
    for (int i = 0; i < 4; i++)
        assert_true(isfinite(row_of(trainer, i).train.loss) && isfinite(row_of(trainer, i).test.loss));
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
    tw_dataset_destroy(one);
}

/* Three steps an epoch, half an epoch of warm-up, four epochs: the rates are those of tw_schedule_rate. */
static void the_schedule_spans_the_fit(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 12, 5);
    tw_model *model = task_plain_model(task_context, 2);
    tw_optimizer_options cosine = {
        .size = sizeof cosine, .learning_rate = 0.5, .schedule = {.kind = TW_SCHEDULE_COSINE, .warmup = 1}};
    tw_trainer *trainer =
        trainer_of(model, TW_OPTIONS(trainer, .epochs = 4, .batch = 4, .optimizer = cosine, .warmup_epochs = 1));
    for (int fit = 1; fit <= 2; fit++) {
        CHECK_OK(tw_trainer_fit(trainer, data, NULL));
        cosine.schedule.warmup = 4;
        cosine.schedule.total = fit * 12;
        for (int epoch = (fit - 1) * 4; epoch < fit * 4; epoch++) {
            double rate;
            CHECK_OK(tw_schedule_rate(&cosine, epoch * 3 + 2, &rate));
            assert_float_equal(row_of(trainer, epoch).learning_rate, rate, 1e-12);
        }
    }
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* ---- stopping ---- */

typedef struct stopper {
    tw_trainer *trainer;
    int64_t step; /* of the second epoch, after which to stop */
    void (*stop)(struct stopper *stopper);
    bool asked;
} stopper;

static tw_trainer *interrupted;
static void on_signal(int number) {
    (void)number;
    tw_trainer_stop(interrupted);
}

static void by_return(stopper *s) { s->asked = true; }
static void by_signal(stopper *s) {
    interrupted = s->trainer;
    raise(SIGUSR1);
}
static void *ask(void *trainer) {
    tw_trainer_stop(trainer);
    return NULL;
}
static void by_thread(stopper *s) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, ask, s->trainer), 0);
    pthread_join(thread, NULL);
}

static bool stop_in_second_epoch(void *user, const tw_progress *p) {
    stopper *s = user;
    if (p->epoch == 1 && p->step == s->step) s->stop(s);
    return s->asked;
}

static void a_stop_keeps_what_was_done(void **state) {
    (void)state;
    void (*const ways[])(stopper *) = {by_return, by_signal, by_thread};
    struct sigaction action = {.sa_handler = on_signal}, before;
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    tw_dataset *data = task_data(task_context, 40, 5);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        for (int64_t step = 2; step <= 5; step += 3) { /* in the middle of the epoch, and after its last step */
            tw_model *model = task_plain_model(task_context, 2);
            stopper s = {.step = step, .stop = ways[i]};
            s.trainer = trainer_of(
                model, TW_OPTIONS(trainer, .epochs = 3, .batch = 8, .on_step = stop_in_second_epoch, .user = &s));
            CHECK_FAILS(tw_trainer_fit(s.trainer, data, data), TW_STOPPED, "in epoch 2 after step");
            assert_int_equal(tw_model_get_updates(model), 5 + step);
            assert_int_equal(tw_trainer_count_history(s.trainer), step == 5 ? 2 : 1);
            s = (stopper){.trainer = s.trainer, .step = -1};
            CHECK_OK(tw_trainer_fit(s.trainer, data, data)); /* the request is used up */
            assert_int_equal(row_of(s.trainer, tw_trainer_count_history(s.trainer) - 1).epoch, step == 5 ? 5 : 4);
            tw_trainer_stop(s.trainer); /* asked for in between: after one step */
            CHECK_FAILS(tw_trainer_fit(s.trainer, data, data), TW_STOPPED, "after step 1 of 5");
            tw_trainer_destroy(s.trainer);
            tw_model_destroy(model);
        }
    }
    tw_dataset_destroy(data);
    sigaction(SIGUSR1, &before, NULL);
}

static bool stop_now(void *user, const tw_progress *p) {
    (void)p;
    ++*(int *)user;
    return true;
}

static void a_callback_stops_after_an_epoch(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 40, 5);
    tw_model *model = task_plain_model(task_context, 2);
    int calls = 0;
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .epochs = 3, .on_epoch = stop_now, .user = &calls));
    CHECK_FAILS(tw_trainer_fit(trainer, data, data), TW_STOPPED, "epoch 1");
    assert_int_equal(calls, 1);
    assert_int_equal(row_of(trainer, 0).test.samples, 40);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

static void a_stop_ends_an_evaluation(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 40, 5);
    tw_model *model = task_plain_model(task_context, 2);
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .no_normalization = true));
    twi_feed feed;
    tw_metrics metrics;
    CHECK_OK(twi_feed_open(&feed, trainer, TWI_USE_EVALUATE, data));
    CHECK_OK(twi_trainer_measure(&feed, true, &metrics));
    assert_int_equal(metrics.samples, 40);
    tw_trainer_stop(trainer);
    CHECK_OK(twi_trainer_measure(&feed, true, &metrics)); /* within fit */
    assert_int_equal(metrics.samples, 0);
    CHECK_OK(twi_trainer_measure(&feed, false, &metrics)); /* on its own */
    assert_int_equal(metrics.samples, 40);
    twi_feed_close(&feed);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* ---- progress ---- */

enum { SLOW_STEPS = 10, NAP_MS = 10 };

typedef struct watcher {
    bool slow;
    double after_half, last;
} watcher;

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000L}, NULL); }

static bool watch(void *user, const tw_progress *p) {
    watcher *w = user;
    assert_true(p->seconds_left >= 0 && p->seconds >= 0 && p->images_per_second >= 0);
    assert_int_equal(p->steps, SLOW_STEPS);
    if (w->slow) nap();
    if (p->step == SLOW_STEPS / 2) w->after_half = p->seconds_left;
    w->last = p->seconds_left;
    return false;
}

/* After many quick steps, ten slow ones: halfway through these, half of their time is left, whatever went before. */
static void time_left_is_that_of_this_call(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, SLOW_STEPS * 2, 5);
    tw_model *model = task_plain_model(task_context, 2);
    watcher w = {.slow = false};
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .epochs = 1, .batch = 2, .on_step = watch, .user = &w));
    for (int i = 0; i < 20; i++) CHECK_OK(tw_trainer_fit(trainer, data, NULL));
    w.slow = true;
    CHECK_OK(tw_trainer_fit(trainer, data, NULL));
    assert_true(w.after_half >= 0.75 * 1e-3 * NAP_MS * (SLOW_STEPS / 2)); /* 4 naps in the mean over 5 steps */
    assert_true(w.last == 0);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

typedef struct calls {
    int steps, epochs;
    double left;
} calls;

static bool on_step(void *user, const tw_progress *p) {
    calls *c = user;
    assert_int_equal(p->epoch, c->epochs);
    assert_int_equal(p->step, c->steps++ % 4 + 1);
    assert_int_equal(p->updates, c->steps);
    assert_int_equal(p->train.samples, p->step * 8);
    assert_true(p->seconds_left > 0); /* there is an evaluation to come */
    return false;
}

static bool on_epoch(void *user, const tw_progress *p) {
    calls *c = user;
    assert_int_equal(p->epoch, c->epochs++);
    assert_int_equal(p->epochs, 3);
    assert_int_equal(p->test.samples, p->epoch == 0 ? 0 : 6); /* every second epoch, and the last one */
    c->left = p->seconds_left;
    return false;
}

static void callbacks_see_every_step_and_epoch(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 32, 5), *test = task_data(task_context, 6, 5);
    tw_model *model = task_plain_model(task_context, 2);
    calls c = {0};
    tw_trainer *trainer = trainer_of(model, TW_OPTIONS(trainer, .epochs = 3, .batch = 8, .evaluate_every = 2,
                                                       .on_step = on_step, .on_epoch = on_epoch, .user = &c));
    CHECK_OK(tw_trainer_fit(trainer, data, test));
    assert_int_equal(c.steps, 12);
    assert_int_equal(c.epochs, 3);
    assert_true(c.left == 0);
    const int64_t tested[] = {0, 6, 6};
    for (int i = 0; i < 3; i++) assert_int_equal(row_of(trainer, i).test.samples, tested[i]);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
    tw_dataset_destroy(test);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(learns_a_separable_task),
        cmocka_unit_test(the_seed_alone_decides),
        with_context(workers_live_as_long_as_fit),
        with_context(fitting_again_goes_on),
        with_context(every_epoch_has_its_own_order),
        with_context(a_short_last_batch_counts_by_its_samples),
        with_context(a_last_batch_of_one_is_never_fatal),
        with_context(the_schedule_spans_the_fit),
        with_context(a_stop_keeps_what_was_done),
        with_context(a_stop_ends_an_evaluation),
        with_context(a_callback_stops_after_an_epoch),
        with_context(time_left_is_that_of_this_call),
        with_context(callbacks_see_every_step_and_epoch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

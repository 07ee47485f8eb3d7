/* Checkpoints on the emulated device: written in the middle of an epoch, with batches on their way, from callbacks and by
 * fit, and gone on from, bit for bit; and a run that began on the CPU, which goes on and says that it is not exact. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "back_end_task.h"

#include <stdio.h>
#include <unistd.h>

static char folder[64], path[128];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/talweg-back-end-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/run.safetensors", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    remove(path);
    return rmdir(folder);
}

static void close_all(task *t) {
    tw_context *context = t->context;
    task_drop(t);
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
}

static task_state uncut(void) {
    const tw_trainer_options options = task_options();
    task t;
    CHECK_OK(task_run(&t, task_device(), &options, NULL));
    assert_true(tw_trainer_is_exact(t.trainer));
    task_state outcome = task_outcome(&t);
    close_all(&t);
    return outcome;
}

/* Goes on from the file, in a process's first context as it were. */
static void check_goes_on(const task_state *whole, const char *how, int at) {
    const tw_trainer_options options = task_options();
    task t;
    CHECK_OK(task_make(&t, task_device(), &options));
    CHECK_OK(tw_trainer_load(t.trainer, path));
    CHECK_OK(tw_trainer_fit(t.trainer, t.train, NULL));
    assert_true(tw_trainer_is_exact(t.trainer));
    CHECK_OK(tw_trainer_evaluate(t.trainer, t.test, &t.tested));
    task_state outcome = task_outcome(&t);
    if (!task_same(&outcome, whole)) fail_msg("%s update %d: another outcome", how, at);
    free(outcome.bytes);
    tw_history_row row;
    CHECK_OK(tw_trainer_get_history(t.trainer, 0, &row));
    assert_int_equal(row.train.samples, TASK_SAMPLES);
    close_all(&t);
}

typedef struct cut {
    int64_t at; /* update */
    bool save, stop, ahead;
    task *task;
} cut;

static bool on_step(void *user, const tw_progress *p) {
    const cut *c = user;
    if (p->updates != c->at) return false;
    if (c->save) {
        tw_metrics metrics;
        if (!c->ahead) CHECK_OK(tw_trainer_evaluate(c->task->trainer, c->task->test, &metrics));
        CHECK_OK(tw_trainer_save(c->task->trainer, path));
    }
    return c->stop;
}

static void run_cut(cut *c, int64_t checkpoint_every, const task_state *whole) {
    tw_trainer_options options = task_options();
    task t;
    options.on_step = on_step;
    options.run_ahead = c->ahead;
    options.user = c;
    c->task = &t;
    if (!c->save) {
        options.checkpoint = path;
        options.checkpoint_every = checkpoint_every;
    }
    CHECK_OK(task_make(&t, task_device(), &options));
    tw_status status = tw_trainer_fit(t.trainer, t.train, NULL);
    assert_int_equal(status, c->stop ? TW_STOPPED : TW_OK);
    if (!c->stop) {
        CHECK_OK(tw_trainer_evaluate(t.trainer, t.test, &t.tested));
        task_state outcome = task_outcome(&t);
        assert_true(task_same(&outcome, whole));
        free(outcome.bytes);
    }
    close_all(&t);
}

static void cut_after_every_step(void **state) {
    (void)state;
    task_state whole = uncut();
    for (int64_t at = 1; at <= 2 * TASK_STEPS; at++) {
        const struct {
            cut cut;
            int64_t every;
            const char *how;
        } ways[] = {{{.at = at, .stop = true}, 1, "stopped at"},
                    {{.at = at, .stop = true, .ahead = true}, 1, "stopped, and saved exactly at"},
                    {{.at = at, .stop = true, .ahead = true}, 0, "stopped, with batches on their way, at"},
                    {{.at = at, .save = true}, 0, "saved by a callback at"},
                    {{.at = at, .save = true, .ahead = true}, 0, "saved, with batches on their way, at"},
                    {{.at = at, .save = true, .stop = true, .ahead = true}, 0, "saved and stopped at"}};
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            cut c = ways[i].cut;
            run_cut(&c, ways[i].every, &whole);
            check_goes_on(&whole, ways[i].how, (int)at);
        }
    }
    free(whole.bytes);
}

/* ---- from the CPU ---- */

static void note(void *user, tw_log_level level, const char *message) {
    (void)level;
    if (strstr(message, "another plan")) *(bool *)user = true;
}

static void what_the_cpu_began_goes_on(void **state) {
    (void)state;
    tw_trainer_options options = task_options();
    cut c = {.at = 3, .stop = true};
    task t;
    c.task = &t;
    options.on_step = on_step;
    options.user = &c;
    options.checkpoint = path;
    tw_context *context;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(task_make(&t, context, &options));
    CHECK_FAILS(tw_trainer_fit(t.trainer, t.train, NULL), TW_STOPPED, "after step 3");
    close_all(&t);
    bool warned = false;
    options = task_options();
    CHECK_OK(tw_context_create(
        &context, check_device(),
        TW_OPTIONS(context, .threads = 1, .log = note, .log_user = &warned, .log_level = TW_LOG_WARNING)));
    CHECK_OK(task_make(&t, context, &options));
    CHECK_OK(tw_trainer_load(t.trainer, path));
    CHECK_OK(tw_trainer_fit(t.trainer, t.train, NULL));
    assert_false(tw_trainer_is_exact(t.trainer));
    assert_true(warned);
    assert_int_equal(tw_model_get_updates(t.model), 2 * TASK_STEPS);
    CHECK_OK(tw_trainer_evaluate(t.trainer, t.test, &t.tested));
    const double on_both = t.tested.loss;
    close_all(&t);
    options = task_options();
    CHECK_OK(task_run(&t, task_device(), &options, NULL)); /* the numbers hardly differ */
    assert_float_equal(t.tested.loss, on_both, 1e-4);
    close_all(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cut_after_every_step, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_the_cpu_began_goes_on, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A run that is interrupted and goes on gives the bytes of the run that was not: cut after every step, cut after each
 * step in one run, stopped at the ends of epochs, and killed at any moment. */
#define _GNU_SOURCE
#include "checkpoint_run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], path[96];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/talweg-checkpoint-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/run.safetensors", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

typedef struct outcome {
    char *bytes;
    size_t size;
} outcome;

static outcome outcome_of(const run *r) {
    outcome o;
    o.bytes = run_outcome(r, &o.size);
    return o;
}

static void assert_same(const outcome *one, const outcome *other, const char *what, int64_t at) {
    if (one->size != other->size || memcmp(one->bytes, other->bytes, one->size) != 0)
        fail_msg("%s, cut after update %lld: another outcome", what, (long long)at);
}

static outcome uncut(const run_kind *kind) {
    run r;
    tw_trainer_options options = run_options(kind);
    run_open(&r, kind, &options, 1);
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    assert_true(tw_trainer_is_exact(r.trainer));
    outcome o = outcome_of(&r);
    run_close(&r);
    return o;
}

/* ---- stopped, saved and taken up by another trainer ---- */

static bool stop_at(void *user, const tw_progress *p) { return p->updates == *(const int64_t *)user; }

/* Trains until so many updates are done, from the file on if there is one, and leaves the file. */
static void train_until(const run_kind *kind, int64_t updates, bool by_fit, int threads) {
    run r;
    tw_trainer_options options = run_options(kind);
    options.on_step = stop_at;
    options.user = &updates;
    if (by_fit) options.checkpoint = path;
    run_open(&r, kind, &options, threads);
    if (access(path, F_OK) == 0) CHECK_OK(tw_trainer_load(r.trainer, path));
    CHECK_FAILS(tw_trainer_fit(r.trainer, r.train, r.test), TW_STOPPED, "stopped on request");
    if (!by_fit) CHECK_OK(tw_trainer_save(r.trainer, path));
    assert_int_equal(tw_model_get_updates(r.model), updates);
    run_close(&r);
}

static outcome go_on(const run_kind *kind, int threads) {
    run r;
    tw_trainer_options options = run_options(kind);
    options.workers = 2 - options.workers; /* others than before */
    run_open(&r, kind, &options, threads);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    assert_true(tw_trainer_is_exact(r.trainer));
    assert_string_equal(r.log, "");
    outcome o = outcome_of(&r);
    run_close(&r);
    return o;
}

static int64_t updates_of(const run_kind *kind) {
    const int64_t batch = kind->options.batch ? kind->options.batch : RUN_BATCH,
                  steps = (RUN_SAMPLES + (kind->options.drop_last ? 0 : batch - 1)) / batch,
                  every = kind->options.accumulate ? kind->options.accumulate : 1;
    return RUN_EPOCHS * ((steps + every - 1) / every);
}

static void cut_after_every_step(void **state) {
    (void)state;
    for (int k = 0; k < RUN_KINDS; k++) {
        const run_kind *kind = &run_kinds[k];
        outcome whole = uncut(kind);
        for (int64_t at = 1; at <= updates_of(kind); at++) {
            train_until(kind, at, at % 2, 1);
            outcome o = go_on(kind, 1 + (int)(at % 2));
            assert_same(&o, &whole, kind->name, at);
            free(o.bytes);
            remove(path);
        }
        free(whole.bytes);
    }
}

static void cut_again_and_again(void **state) {
    (void)state;
    for (int k = 0; k < RUN_KINDS; k++) {
        const run_kind *kind = &run_kinds[k];
        outcome whole = uncut(kind);
        for (int64_t at = 1; at <= updates_of(kind); at++) train_until(kind, at, true, 1);
        outcome o = go_on(kind, 1);
        assert_same(&o, &whole, kind->name, -1);
        free(o.bytes);
        free(whole.bytes);
        remove(path);
    }
}

/* ---- the ends of epochs ---- */

static bool stop_now(void *user, const tw_progress *p) {
    (void)user;
    return p->epoch == 1;
}

/* Asks from within the evaluation, where no callback comes. */
static tw_trainer *evaluating;
static void ask(int number) {
    (void)number;
    tw_trainer_stop(evaluating);
}

static bool alarm_after_last_step(void *user, const tw_progress *p) {
    (void)user;
    if (p->epoch == 1 && p->step == p->steps) ualarm(300, 0);
    return false;
}

static void stopped_at_the_end_of_an_epoch(void **state) {
    (void)state;
    run_kind slow = run_kinds[0], *kind = &slow;
    slow.options.evaluation_batch = 1; /* so that the evaluation takes its time */
    outcome whole = uncut(kind);
    run r;
    struct sigaction action = {.sa_handler = ask};
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    for (int i = 0; i < 6; i++) {
        tw_trainer_options options = run_options(kind);
        options.checkpoint = path;
        if (i)
            options.on_step = alarm_after_last_step;
        else
            options.on_epoch = stop_now;
        run_open(&r, kind, &options, 1);
        evaluating = r.trainer;
        tw_status status = tw_trainer_fit(r.trainer, r.train, r.test);
        ualarm(0, 0);
        assert_true(status == TW_STOPPED || (i && status == TW_OK)); /* the signal may have come too late */
        run_close(&r);
        outcome o = go_on(kind, 1);
        assert_same(&o, &whole, kind->name, -2);
        free(o.bytes);
        remove(path);
    }
    free(whole.bytes);
}

/* What is done is done; further epochs are trained on request, and the same schedule goes on where it has no end. */
static void a_finished_run_goes_on_with_more_epochs(void **state) {
    (void)state;
    const run_kind *kind = &run_kinds[RUN_SMALL];
    run r;
    tw_trainer_options options = run_options(kind);
    outcome short_run = uncut(kind);
    options.checkpoint = path;
    run_open(&r, kind, &options, 1);
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    run_close(&r);
    outcome again = go_on(kind, 1); /* nothing is left to do */
    assert_same(&again, &short_run, kind->name, -3);
    options.epochs = RUN_EPOCHS + 2;
    options.checkpoint = NULL;
    run_open(&r, kind, &options, 1);
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    outcome long_run = outcome_of(&r);
    run_close(&r);
    run_open(&r, kind, &options, 1);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    assert_int_equal(tw_trainer_count_history(r.trainer), RUN_EPOCHS);
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    assert_true(tw_trainer_is_exact(r.trainer));
    outcome longer = outcome_of(&r);
    assert_same(&longer, &long_run, kind->name, -4);
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test)); /* and a fit after it is a new one */
    assert_int_equal(tw_trainer_count_history(r.trainer), 2 * (RUN_EPOCHS + 2));
    run_close(&r);
    free(longer.bytes);
    free(long_run.bytes);
    free(again.bytes);
    free(short_run.bytes);
}

/* The library does not know what weights given by hand mean for the result; other trainers' updates are no better. */
static void weights_changed_after_loading_are_told(void **state) {
    (void)state;
    const run_kind *kind = &run_kinds[RUN_SMALL];
    for (int by_trainer = 0; by_trainer < 2; by_trainer++) {
        run r;
        tw_trainer_options options = run_options(kind);
        train_until(kind, 2, true, 1);
        run_open(&r, kind, &options, 1);
        CHECK_OK(tw_trainer_load(r.trainer, path));
        if (by_trainer) {
            tw_trainer *other;
            CHECK_OK(tw_trainer_create(&other, r.model, &options));
            CHECK_OK(tw_trainer_fit(other, r.train, NULL));
            tw_trainer_destroy(other);
        } else {
            CHECK_OK(tw_model_load(r.model, path, TW_OPTIONS(load, .partial = true)));
        }
        r.log[0] = 0;
        CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
        assert_false(tw_trainer_is_exact(r.trainer));
        assert_non_null(strstr(r.log, "weights that were changed"));
        run_close(&r);
        remove(path);
    }
}

typedef struct saver {
    tw_trainer *trainer;
    char name[128];
    int saves;
} saver;

static bool save_own(void *user, const tw_progress *p) {
    saver *s = user;
    snprintf(s->name, sizeof s->name, "%s/%lld", folder, (long long)p->updates);
    CHECK_OK(tw_trainer_save(s->trainer, s->name));
    s->saves++;
    CHECK_FAILS(tw_trainer_load(s->trainer, s->name), TW_ERROR_STATE, "from a callback");
    return false;
}

static void callbacks_may_save(void **state) {
    (void)state;
    const run_kind *kind = &run_kinds[RUN_SMALL];
    outcome whole = uncut(kind);
    run r;
    saver s = {0};
    tw_trainer_options options = run_options(kind);
    options.on_step = options.on_epoch = save_own;
    options.user = &s;
    run_open(&r, kind, &options, 1);
    s.trainer = r.trainer;
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    outcome watched = outcome_of(&r);
    assert_same(&watched, &whole, "watched", 0);
    run_close(&r);
    assert_int_equal(s.saves, RUN_EPOCHS * (RUN_STEPS + 1));
    for (int at = 1; at <= RUN_EPOCHS * RUN_STEPS; at++) {
        snprintf(s.name, sizeof s.name, "%s/%d", folder, at);
        assert_int_equal(rename(s.name, path), 0);
        outcome o = go_on(kind, 1);
        assert_same(&o, &whole, "saved by a callback", at);
        free(o.bytes);
    }
    free(watched.bytes);
    free(whole.bytes);
}

/* How often fit writes: a new file each time. */
static bool count_files(void *user, const tw_progress *p) {
    int64_t *last = user;
    run r;
    (void)p;
    if (access(path, F_OK)) return false;
    tw_trainer_options options = run_options(&run_kinds[RUN_SMALL]);
    run_open(&r, &run_kinds[RUN_SMALL], &options, 1);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    *last = (int64_t)tw_model_get_updates(r.model);
    run_close(&r);
    assert_int_equal(*last, (p->updates - 1) / 4 * 4);
    return false;
}

static void every_so_many_updates(void **state) {
    (void)state;
    run r;
    int64_t last = 0;
    tw_trainer_options options = run_options(&run_kinds[RUN_SMALL]);
    options.checkpoint = path;
    options.checkpoint_every = 4;
    options.on_step = count_files;
    options.user = &last;
    run_open(&r, &run_kinds[RUN_SMALL], &options, 1);
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    assert_int_equal(last, 16);
    run_close(&r);
    assert_int_equal(access(path, F_OK), 0);
}

/* ---- killed ---- */

/* A program of its own: goes on from the file if there is one, and writes it after every step. */
static int child(const char *file, const char *result) {
    const run_kind *kind = &run_kinds[1];
    run r;
    tw_trainer_options options = run_options(kind);
    options.checkpoint = file;
    options.checkpoint_every = 1;
    run_open(&r, kind, &options, 2);
    if (access(file, F_OK) == 0) CHECK_OK(tw_trainer_load(r.trainer, file));
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    outcome o = outcome_of(&r);
    run_close(&r);
    FILE *out = fopen(result, "wb");
    const bool written = out && fwrite(o.bytes, 1, o.size, out) == o.size && !fclose(out);
    free(o.bytes);
    return !written;
}

static void killed_at_any_moment(void **state) {
    (void)state;
    outcome whole = uncut(&run_kinds[1]), o;
    char result[128];
    unsigned wait = 20000;
    int kills = 0;
    snprintf(result, sizeof result, "%s/result", folder);
    for (int status = 1, round = 0; status; round++) {
        assert_true(round < 400);
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            execl("/proc/self/exe", "test_checkpoint", path, result, (char *)NULL);
            _exit(127);
        }
        wait = wait + wait / 16 + 1000u * (unsigned)(round % 7); /* longer each time, so that it comes to its end */
        usleep(wait);
        kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        kills += status != 0;
    }
    print_message("killed %d times\n", kills);
    o.bytes = run_read(result, &o.size);
    assert_same(&o, &whole, "killed", kills);
    free(o.bytes);
    free(whole.bytes);
}

#define in_folder(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(int argc, char **argv) {
    if (argc == 3) return child(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        in_folder(cut_after_every_step),
        in_folder(cut_again_and_again),
        in_folder(stopped_at_the_end_of_an_epoch),
        in_folder(a_finished_run_goes_on_with_more_epochs),
        in_folder(weights_changed_after_loading_are_told),
        in_folder(callbacks_may_save),
        in_folder(every_so_many_updates),
        in_folder(killed_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Checkpoints that do not fit, that are damaged, that cannot be written or for which memory lacks: an error that says
 * why, and a trainer and a file that are as they were. And what is said where a continuation is not exact. */
#define _GNU_SOURCE
#include "checkpoint_run.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIND (&run_kinds[RUN_SMALL])

static char path[] = "/tmp/talweg-checkpoint-file-XXXXXX";

static int make_path(void **state) {
    (void)state;
    strcpy(path + strlen(path) - 6, "XXXXXX");
    const int descriptor = mkstemp(path);
    return descriptor < 0 ? -1 : close(descriptor);
}

static int remove_path(void **state) {
    (void)state;
    return remove(path);
}

/* ---- a trainer in the middle of an epoch ---- */

static bool stop_in_the_middle(void *user, const tw_progress *p) {
    (void)user;
    return p->epoch == 1 && p->step == 3;
}

static void open_in_the_middle(run *r, tw_trainer_options *options) {
    options->on_step = stop_in_the_middle;
    run_open(r, KIND, options, 1);
    CHECK_FAILS(tw_trainer_fit(r->trainer, r->train, r->test), TW_STOPPED, "epoch 2 after step 3");
}

static void open_plain(run *r) {
    tw_trainer_options options = run_options(KIND);
    run_open(r, KIND, &options, 1);
}

/* A checkpoint of the middle of the second epoch. */
static void save_one(void) {
    run r;
    tw_trainer_options options = run_options(KIND);
    open_in_the_middle(&r, &options);
    CHECK_OK(tw_trainer_save(r.trainer, path));
    run_close(&r);
}

/* ---- what comes back ---- */

static void a_checkpoint_is_what_it_was_made_of(void **state) {
    (void)state;
    run r;
    size_t size, again_size;
    save_one();
    char *saved = run_read(path, &size);
    open_plain(&r);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    char *again = run_all_of(&r, &again_size);
    assert_int_equal(again_size, size);
    assert_memory_equal(again, saved, size);
    assert_int_equal(tw_model_get_updates(r.model), RUN_STEPS + 3);
    assert_int_equal(tw_model_get_attempts(r.model), RUN_STEPS + 3);
    assert_int_equal(tw_trainer_count_history(r.trainer), 1);
    tw_metrics metrics;
    CHECK_OK(tw_trainer_evaluate(r.trainer, r.test, &metrics)); /* it knows how samples are normalised */
    run_close(&r);
    free(again);
    free(saved);
}

/* Before anything was learned there is a state to save, too. */
static void a_trainer_that_never_trained_can_be_saved(void **state) {
    (void)state;
    char *outcome[2];
    size_t size[2];
    for (int loaded = 0; loaded < 2; loaded++) {
        run r;
        open_plain(&r);
        if (!loaded) CHECK_OK(tw_trainer_save(r.trainer, path));
        if (loaded) CHECK_OK(tw_trainer_load(r.trainer, path));
        CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
        assert_true(tw_trainer_is_exact(r.trainer));
        outcome[loaded] = run_outcome(&r, &size[loaded]);
        run_close(&r);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(outcome[0], outcome[1], size[0]);
    free(outcome[0]);
    free(outcome[1]);
}

/* ---- what does not fit ---- */

#define REFUSED(text, ...)                                                          \
    do {                                                                            \
        tw_trainer_options options = run_options(KIND);                             \
        __VA_ARGS__;                                                                \
        run other;                                                                  \
        size_t size;                                                                \
        run_open(&other, KIND, &options, 1);                                        \
        char *before = run_all_of(&other, &size);                                       \
        CHECK_FAILS(tw_trainer_load(other.trainer, path), TW_ERROR_MISMATCH, text); \
        assert_non_null(strstr(tw_last_error(), path));                             \
        run_assert_all_is(&other, before, size);                                        \
        free(before);                                                               \
        run_close(&other);                                                          \
    } while (0)

static void other_options_are_named(void **state) {
    (void)state;
    save_one();
    REFUSED("another batch (9 here, 8 there): go on with the options", options.batch = 9);
    REFUSED(" seed (5 here, 11 there)", options.seed = 5);
    REFUSED("optimizer.kind (sgd here, adamw there)", options.optimizer.kind = TW_SGD);
    REFUSED("optimizer.learning_rate (0.5 here, 0.01 there)", options.optimizer.learning_rate = 0.5);
    REFUSED("optimizer.weight_decay (0.125 here, 0 there)", options.optimizer.weight_decay = 0.125f);
    REFUSED("schedule.kind (step here, constant there), schedule.every (3 here, 0 there)",
            options.optimizer.schedule = ((tw_schedule){.kind = TW_SCHEDULE_STEP, .every = 3}));
    REFUSED("no_shuffle (1 here, 0 there)", options.no_shuffle = true);
    REFUSED("drop_last (1 here, 0 there)", options.drop_last = true);
    REFUSED("flip (1 here, 0 there), crop_padding (2 here, 0 there)", options.flip = true, options.crop_padding = 2);
    REFUSED("label_smoothing (0.100000001 here, 0 there)", options.label_smoothing = 0.1f);
    REFUSED("warmup_epochs (1.5 here, 0 there)", options.warmup_epochs = 1.5);
    REFUSED("normalization (1 0.5 0.25 here, 0 there)",
            options.normalization = ((tw_normalization){1, {0.5f}, {0.25f}}));
    REFUSED("no_normalization (1 here, 0 there)", options.no_normalization = true);
    tw_trainer_options options = run_options(KIND); /* what may differ */
    run r;
    options.epochs = 20;
    options.evaluation_batch = 3;
    options.evaluate_every = 2;
    options.workers = 1;
    options.on_epoch = stop_in_the_middle;
    options.checkpoint = path;
    options.checkpoint_every = 2;
    run_open(&r, KIND, &options, 2);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    run_close(&r);
}

static void another_network_is_named(void **state) {
    (void)state;
    run r;
    size_t size;
    save_one();
    tw_trainer_options options = run_options(KIND);
    run_open(&r, &run_kinds[0], &options, 1);
    char *before = run_all_of(&r, &size);
    CHECK_FAILS(tw_trainer_load(r.trainer, path), TW_ERROR_MISMATCH, "missing 'conv1.weight'");
    assert_non_null(strstr(tw_last_error(), "unexpected 'bn1.weight'"));
    run_assert_all_is(&r, before, size);
    free(before);
    run_close(&r);
}

static void other_data_are_refused_at_the_next_fit(void **state) {
    (void)state;
    run r;
    tw_dataset *fewer;
    int64_t indices[RUN_SAMPLES];
    save_one();
    open_plain(&r);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    for (int i = 0; i < RUN_SAMPLES; i++) indices[i] = i;
    CHECK_OK(tw_dataset_create_subset(&fewer, r.train, indices, RUN_SAMPLES - 1));
    CHECK_FAILS(tw_trainer_fit(r.trainer, fewer, NULL), TW_ERROR_MISMATCH,
                "data.samples (44 here, 45 there), data.hash");
    tw_dataset_destroy(fewer);
    indices[0] = 10; /* the same label, another image */
    CHECK_OK(tw_dataset_create_subset(&fewer, r.train, indices, RUN_SAMPLES));
    CHECK_FAILS(tw_trainer_fit(r.trainer, fewer, NULL), TW_ERROR_MISMATCH, "with another data.hash");
    tw_dataset_destroy(fewer);
    CHECK_OK(tw_model_set_trainable(r.model, "fc1", false));
    CHECK_FAILS(tw_trainer_fit(r.trainer, r.train, NULL), TW_ERROR_MISMATCH, "trainable (4 here, 6 there)");
    CHECK_OK(tw_model_set_trainable(r.model, "fc1", true));
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, NULL));
    assert_int_equal(tw_model_get_updates(r.model), RUN_EPOCHS * RUN_STEPS);
    run_close(&r);
}

static void other_files_are_refused(void **state) {
    (void)state;
    run r;
    size_t size;
    open_plain(&r);
    CHECK_OK(tw_model_save(r.model, path));
    CHECK_FAILS(tw_trainer_load(r.trainer, path), TW_ERROR_FORMAT, "is no checkpoint; weights alone");
    CHECK_FAILS(tw_trainer_load(r.trainer, "/nowhere/x"), TW_ERROR_FILE, "/nowhere/x");
    CHECK_FAILS(tw_trainer_load(r.trainer, NULL), TW_ERROR_ARGUMENT, "path is NULL");
    CHECK_FAILS(tw_trainer_load(NULL, path), TW_ERROR_ARGUMENT, "trainer is NULL");
    CHECK_FAILS(tw_trainer_save(r.trainer, NULL), TW_ERROR_ARGUMENT, "path is NULL");
    CHECK_FAILS(tw_trainer_save(NULL, path), TW_ERROR_ARGUMENT, "trainer is NULL");
    assert_false(tw_trainer_is_exact(NULL));
    run_close(&r);
    /* of another format, with a text missing, with texts that are no numbers */
    static const struct {
        const char *from, *to, *says;
    } changes[] = {
        {"\"talweg.checkpoint\":\"1\"", "\"talweg.checkpoint\":\"2\"", "is a checkpoint of format 2"},
        {"\"attempts\"", "\"attemptz\"", "do not hold 'attempts'"},
        {"\"updates\":\"9\"", "\"updates\":\"-\"", "'updates' of its metadata cannot be '-'"},
        {"\"step\":\"3\"", "\"step\":\" \"", "'step' of its metadata cannot be ' '"},
        {"\"exact\":\"1\"", "\"exact\":\"2\"", "'exact' of its metadata cannot be '2'"},
        {"\"epoch\":\"1\"", "\"epoch\":\"2\"", "'history' of its metadata is not the 2 epochs"},
        {"\"fit.first_epoch\":\"0\"", "\"fit.first_epoch\":\"7\"", "its fit began with epoch 7, after the 1"},
        {"\"history\":\"1 ", "\"history\":\"2 ", "'history' of its metadata"},
    };
    save_one();
    char *saved = run_read(path, &size);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char *at = memmem(saved, size, changes[i].from, strlen(changes[i].from));
        assert_non_null(at);
        memcpy(at, changes[i].to, strlen(changes[i].to));
        run_write_signed(path, saved, size);
        memcpy(at, changes[i].from, strlen(changes[i].from));
        open_plain(&r);
        CHECK_FAILS(tw_trainer_load(r.trainer, path), TW_ERROR_FORMAT, changes[i].says);
        run_close(&r);
    }
    free(saved);
}

static void a_name_of_the_optimizers_is_refused(void **state) {
    (void)state;
    run r;
    tw_model *model;
    tw_trainer *trainer;
    open_plain(&r);
    CHECK_OK(tw_model_create(&model, r.context));
    tw_value *x = tw_dense(model, tw_input(model, 1, 28, 28), 10, TW_OPTIONS(dense, .name = "optimizer.momentum.fc1"));
    CHECK_OK(tw_model_build(model, x, NULL));
    CHECK_OK(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .checkpoint = path)));
    CHECK_FAILS(tw_trainer_fit(trainer, r.train, NULL), TW_ERROR_UNSUPPORTED, "'optimizer.momentum.fc1.weight'");
    CHECK_FAILS(tw_trainer_save(trainer, path), TW_ERROR_UNSUPPORTED, "another name");
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    run_close(&r);
}

/* ---- exactness ---- */

/* The same file with another text of the same length. */
static void change_text(const char *key, const char *to) {
    size_t size;
    char *saved = run_read(path, &size), *at = memmem(saved, size, key, strlen(key));
    assert_non_null(at);
    memcpy(at + strlen(key), to, strlen(to));
    run_write_signed(path, saved, size);
    free(saved);
}

static void another_machine_is_not_exact(void **state) {
    (void)state;
    run r;
    save_one();
    change_text("\"talweg.writer\":\"", "tblweg");
    open_plain(&r);
    assert_true(tw_trainer_is_exact(r.trainer));
    CHECK_OK(tw_trainer_load(r.trainer, path));
    assert_false(tw_trainer_is_exact(r.trainer));
    assert_non_null(strstr(r.log, "written by tblweg"));
    assert_non_null(strstr(r.log, "not bit for bit"));
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    assert_int_equal(tw_model_get_updates(r.model), RUN_EPOCHS * RUN_STEPS);
    CHECK_OK(tw_trainer_save(r.trainer, path)); /* by this machine: it is known all the same */
    run_close(&r);
    open_plain(&r);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    assert_string_equal(r.log, "");
    assert_false(tw_trainer_is_exact(r.trainer));
    run_close(&r);
}

static void another_plan_is_not_exact(void **state) {
    (void)state;
    run r;
    save_one();
    change_text("\"plan\":\"", "1");
    change_text("\"plan\":\"1", "0");
    open_plain(&r);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    assert_true(tw_trainer_is_exact(r.trainer)); /* nothing is planned yet */
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    assert_false(tw_trainer_is_exact(r.trainer));
    assert_non_null(strstr(r.log, "another plan"));
    run_close(&r);
}

static void a_schedule_of_another_length_is_not_exact(void **state) {
    (void)state;
    static const tw_schedule_kind kinds[] = {TW_SCHEDULE_CONSTANT, TW_SCHEDULE_COSINE};
    for (int i = 0; i < 2; i++) {
        run r;
        tw_trainer_options options = run_options(KIND);
        options.optimizer.schedule.kind = kinds[i];
        open_in_the_middle(&r, &options);
        CHECK_OK(tw_trainer_save(r.trainer, path));
        run_close(&r);
        options.on_step = NULL;
        options.epochs++;
        run_open(&r, KIND, &options, 1);
        CHECK_OK(tw_trainer_load(r.trainer, path));
        CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
        assert_int_equal(tw_trainer_is_exact(r.trainer), kinds[i] == TW_SCHEDULE_CONSTANT);
        assert_int_equal(strstr(r.log, "spread over them anew") != NULL, kinds[i] == TW_SCHEDULE_COSINE);
        assert_int_equal(tw_model_get_updates(r.model), (RUN_EPOCHS + 1) * RUN_STEPS);
        run_close(&r);
    }
}

/* ---- damage ---- */

/* Loads what lies there: an error that changes nothing, or a trainer whose fit ends with a status. */
static void try_damaged(run *r, const char *before, size_t before_size, int *loaded) {
    tw_status status = tw_trainer_load(r->trainer, path);
    if (status) {
        assert_true(strlen(tw_last_error()) > 0);
        if (rand() % 64 == 0) run_assert_all_is(r, before, before_size);
        return;
    }
    ++*loaded;
    if (rand() % 8 == 0 && tw_trainer_fit(r->trainer, r->train, NULL)) assert_true(strlen(tw_last_error()) > 0);
    run_close(r);
    open_plain(r);
}

static void damaged_files_are_an_error_or_a_state(void **state) {
    (void)state;
    run r;
    size_t size, before_size;
    int loaded = 0;
    save_one();
    char *saved = run_read(path, &size);
    const size_t header = 8 + (size_t)((unsigned char)saved[0] | (unsigned char)saved[1] << 8);
    open_plain(&r);
    char *before = run_all_of(&r, &before_size);
    for (size_t cut = 0; cut < size; cut += cut < header + 64 ? 1 : 61) {
        run_write(path, saved, cut);
        try_damaged(&r, before, before_size, &loaded);
        assert_non_null(strstr(tw_last_error(), "cut off: get the file again"));
    }
    assert_int_equal(loaded, 0);
    srand(1);
    for (int i = 0; i < 6000; i++) {
        const size_t at = (size_t)rand() % (i % 8 ? header : size);
        const char kept = saved[at];
        saved[at] = (char)(kept ^ (i % 2 ? 1 << rand() % 8 : rand() % 255 + 1));
        if (i < 1000)
            run_write(path, saved, size);
        else /* what the checksum cannot tell */
            run_write_signed(path, saved, size);
        saved[at] = kept;
        try_damaged(&r, before, before_size, &loaded);
        if (i == 999) assert_true(loaded < 20); /* where its own name is hit, nobody looks for it */
    }
    print_message("%d of 6000 damaged files were loaded\n", loaded);
    run_close(&r);
    free(before);
    free(saved);
}

/* A value that is a number all the same. */
static void a_damaged_value_is_told(void **state) {
    (void)state;
    run r;
    size_t size;
    save_one();
    char *saved = run_read(path, &size);
    saved[size - 3] ^= 1;
    run_write(path, saved, size);
    open_plain(&r);
    CHECK_FAILS(tw_trainer_load(r.trainer, path), TW_ERROR_FORMAT, "is damaged: its bytes have the checksum ");
    run_write_signed(path, saved, size);
    CHECK_OK(tw_trainer_load(r.trainer, path));
    free(saved);
    run_close(&r);
}

/* ---- no room ---- */

static void a_full_disk_costs_nothing(void **state) {
    (void)state;
    run r;
    size_t size, now_size;
    struct rlimit limit, low;
    tw_trainer_options options = run_options(KIND);
    save_one();
    char *saved = run_read(path, &size), *now;
    options.checkpoint = path;
    run_open(&r, KIND, &options, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    low = limit;
    low.rlim_cur = size / 2;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    tw_status status = tw_trainer_fit(r.trainer, r.train, r.test);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, TW_ERROR_FILE);
    assert_non_null(strstr(tw_last_error(), path));
    now = run_read(path, &now_size);
    assert_int_equal(now_size, size);
    assert_memory_equal(now, saved, size);
    assert_int_equal(tw_model_get_updates(r.model), RUN_STEPS); /* what was learned is kept */
    CHECK_OK(tw_trainer_save(r.trainer, path));
    run_close(&r);
    free(now);
    free(saved);
    options.checkpoint = "/nowhere/run.safetensors"; /* said before the first step */
    run_open(&r, KIND, &options, 1);
    CHECK_FAILS(tw_trainer_fit(r.trainer, r.train, r.test), TW_ERROR_FILE, "/nowhere/run.safetensors");
    assert_int_equal(tw_model_get_updates(r.model), 0);
    run_close(&r);
}

typedef struct plan {
    uint64_t at;
} plan;

static bool fail_planned(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    return index == ((plan *)user)->at;
}

static void any_allocation_may_fail(void **state) {
    (void)state;
    run r;
    plan p = {0};
    struct stat first, second;
    size_t size;
    tw_trainer_options options = run_options(KIND);
    open_in_the_middle(&r, &options);
    CHECK_OK(tw_trainer_save(r.trainer, path));
    assert_int_equal(stat(path, &first), 0);
    uint64_t held = tw_context_get_memory(r.context).blocks;
    for (tw_status status = TW_ERROR_OUT_OF_MEMORY; status; p.at++) {
        assert_true(p.at < 1000);
        tw_context_set_memory_hook(r.context, fail_planned, &p);
        status = tw_trainer_save(r.trainer, path);
        tw_context_set_memory_hook(r.context, NULL, NULL);
        assert_true(status == TW_OK || status == TW_ERROR_OUT_OF_MEMORY);
        assert_int_equal(stat(path, &second), 0);
        assert_int_equal(first.st_ino == second.st_ino, status != TW_OK);
        assert_int_equal(tw_context_get_memory(r.context).blocks, held);
    }
    assert_true(p.at > 20);
    run_close(&r);
    open_plain(&r);
    char *before = run_all_of(&r, &size);
    held = tw_context_get_memory(r.context).blocks;
    p.at = 0;
    for (tw_status status = TW_ERROR_OUT_OF_MEMORY; status; p.at++) {
        assert_true(p.at < 1000);
        tw_context_set_memory_hook(r.context, fail_planned, &p);
        status = tw_trainer_load(r.trainer, path);
        tw_context_set_memory_hook(r.context, NULL, NULL);
        assert_true(status == TW_OK || status == TW_ERROR_OUT_OF_MEMORY);
        if (status) run_assert_all_is(&r, before, size);
        assert_int_equal(tw_context_get_memory(r.context).blocks, held + (status == TW_OK)); /* the history */
    }
    assert_true(p.at > 20);
    CHECK_OK(tw_trainer_fit(r.trainer, r.train, r.test));
    assert_int_equal(tw_model_get_updates(r.model), RUN_EPOCHS * RUN_STEPS);
    free(before);
    run_close(&r);
}

#define with_path(test) cmocka_unit_test_setup_teardown(test, make_path, remove_path)

int main(void) {
    const struct CMUnitTest tests[] = {
        with_path(a_checkpoint_is_what_it_was_made_of),
        with_path(a_trainer_that_never_trained_can_be_saved),
        with_path(other_options_are_named),
        with_path(another_network_is_named),
        with_path(other_data_are_refused_at_the_next_fit),
        with_path(other_files_are_refused),
        with_path(a_name_of_the_optimizers_is_refused),
        with_path(another_machine_is_not_exact),
        with_path(another_plan_is_not_exact),
        with_path(a_schedule_of_another_length_is_not_exact),
        with_path(damaged_files_are_an_error_or_a_state),
        with_path(a_damaged_value_is_told),
        with_path(a_full_disk_costs_nothing),
        with_path(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

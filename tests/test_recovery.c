/* What fit does about numbers that are not finite: it stops and names the samples of the data set, leaves updates out, or goes back
 * to a snapshot; and a run that is cut in the middle of all that goes on to the same bytes. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "program/model.h"
#include <talweg/talweg.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { SAMPLES = 60, PIXELS = 16, CLASSES = 3, BAD = 37 };

typedef struct task {
    tw_context *context;
    tw_dataset *data;
    tw_model *model;
    tw_trainer *trainer;
    uint64_t blocks;
    char log[4096];
    int64_t stop_after; /* steps of the fit; 0: none */
    int64_t steps, updates[64];
    double scale[64];
} task;

static void note(void *user, tw_log_level level, const char *message) {
    task *t = user;
    const size_t length = strlen(t->log);
    if (level <= TW_LOG_WARNING) snprintf(t->log + length, sizeof t->log - length, "%s\n", message);
}

static bool count(void *user, const tw_progress *p) {
    task *t = user;
    const int64_t at = t->steps < 63 ? t->steps : 63;
    t->updates[at] = p->updates;
    t->scale[at] = tw_model_get_guard(t->model).loss_scale;
    t->steps++;
    return t->steps == t->stop_after;
}

/* Values of about 1; `bad` ones from sample BAD on are `value`. */
static void open_task(task *t, const tw_trainer_options *options, int bad, float value) {
    static float images[SAMPLES * PIXELS];
    int32_t labels[SAMPLES];
    memset(t, 0, sizeof *t);
    CHECK_OK(
        tw_context_create(&t->context, check_device_or_cpu(),
                          TW_OPTIONS(context, .threads = 2, .log = note, .log_user = t, .log_level = TW_LOG_WARNING)));
    t->blocks = tw_context_get_memory(t->context).blocks;
    for (int i = 0; i < SAMPLES * PIXELS; i++)
        images[i] = (float)((i * 7919) % 1009) / 505 - 1 + (float)(i / PIXELS % CLASSES);
    for (int i = 0; i < SAMPLES; i++) labels[i] = i % CLASSES;
    for (int i = 0; i < bad; i++) images[(BAD + i) * PIXELS + 3] = value;
    CHECK_OK(tw_dataset_create_from(&t->data, t->context, TW_F32, images, SAMPLES, 1, 4, 4, labels, NULL));
    CHECK_OK(tw_model_create(&t->model, t->context));
    tw_value *x = tw_dense(t->model, tw_input(t->model, 1, 4, 4), 8, NULL);
    x = tw_dropout(t->model, tw_relu(t->model, tw_batch_norm(t->model, x, NULL)), 0.2f);
    CHECK_OK(tw_model_build(t->model, tw_dense(t->model, x, CLASSES, NULL), TW_OPTIONS(model, .seed = 4)));
    tw_trainer_options own = *options;
    own.size = sizeof own;
    own.no_normalization = true;
    own.batch = own.batch ? own.batch : 8;
    own.on_step = count;
    own.user = t;
    own.optimizer.momentum = 0.9f;
    own.optimizer.learning_rate = 0.05;
    CHECK_OK(tw_trainer_create(&t->trainer, t->model, &own));
}

static void close_task(task *t) {
    tw_trainer_destroy(t->trainer);
    tw_model_destroy(t->model);
    tw_dataset_destroy(t->data);
    if (!check_device()) assert_int_equal(tw_context_get_memory(t->context).blocks, t->blocks);
    tw_context_destroy(t->context);
}

static float *weights_of(const task *t, size_t *size) {
    const twi_store *store = &t->model->store;
    float *values = calloc((size_t)(2 * store->learned_count + store->buffer_count), sizeof *values), *at = values;
    for (int i = 0; i < store->count; i++) {
        CHECK_OK(twi_store_read(store, twi_store_values(store, i), i, at));
        at += twi_shape_count(&store->parameter[i].shape);
        if (!store->parameter[i].learned) continue;
        CHECK_OK(twi_store_read(store, store->moment[0], i, at));
        at += twi_shape_count(&store->parameter[i].shape);
    }
    *size = (size_t)(at - values) * sizeof *values;
    return values;
}

/* ---- stop ---- */

static void the_sample_of_the_data_set_is_named(void **state) {
    (void)state;
    for (int workers = 0; workers <= 2; workers += 2)
        for (int accumulate = 1; accumulate <= 3; accumulate += 2)
            for (int callback = 0; callback < 2; callback++) {
                task t;
                open_task(&t,
                          &(tw_trainer_options){.workers = workers, .accumulate = accumulate, .run_ahead = !callback},
                          1, INFINITY);
                tw_status status = tw_trainer_fit(t.trainer, t.data, NULL);
                assert_int_equal(status, TW_ERROR_NUMERIC);
                if (!strstr(tw_last_error(), "input 'input1' holds inf in sample") ||
                    !strstr(tw_last_error(), "(in the data set: 37)") || !strstr(tw_last_error(), "epoch 1, step"))
                    fail_msg("\"%s\"", tw_last_error());
                close_task(&t);
            }
}

static void evaluation_names_it_too(void **state) {
    (void)state;
    for (int workers = 0; workers <= 2; workers += 2) {
        task t;
        tw_metrics metrics;
        open_task(&t, &(tw_trainer_options){.workers = workers, .evaluation_batch = 16}, 1, NAN);
        CHECK_FAILS(tw_trainer_evaluate(t.trainer, t.data, &metrics), TW_ERROR_NUMERIC, "(in the data set: 37)");
        close_task(&t);
    }
}

/* ---- skip ---- */

static void fit_goes_on_without_the_batch(void **state) {
    (void)state;
    for (int workers = 0; workers <= 2; workers += 2)
        for (int accumulate = 1; accumulate <= 3; accumulate += 2) {
            task t;
            open_task(
                &t,
                &(tw_trainer_options){
                    .epochs = 3, .workers = workers, .accumulate = accumulate, .on_non_finite = TW_NON_FINITE_SKIP},
                1, NAN);
            CHECK_OK(tw_trainer_fit(t.trainer, t.data, NULL));
            const int all = accumulate == 1 ? 3 * 8 : 3 * 3;
            const tw_guard_stats guard = tw_model_get_guard(t.model);
            assert_int_equal(guard.skipped, 3);
            assert_int_equal(tw_model_get_updates(t.model), all - 3);
            assert_int_equal(t.steps, all);
            tw_history_row row;
            CHECK_OK(tw_trainer_get_history(t.trainer, 2, &row));
            assert_true(isfinite(row.train.loss));
            /* Of a window, batches behind the bad one have no loss either where it has batch norm. */
            if (row.train.samples > SAMPLES - 4 || row.train.samples < SAMPLES - 8 * accumulate)
                fail_msg("%d workers, %d an update: %lld samples", workers, accumulate, (long long)row.train.samples);
            close_task(&t);
        }
}

/* Weights, moments and running statistics, to the bit. */
static void a_skip_leaves_every_byte(void **state) {
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++)
        for (int accumulate = 1; accumulate <= 2; accumulate++) {
            float *found[2];
            size_t size[2];
            for (int i = 0; i < 2; i++) { /* before the batch or window with sample 37, and after it */
                task t;
                open_task(&t,
                          &(tw_trainer_options){.no_shuffle = true,
                                                .accumulate = accumulate,
                                                .on_non_finite = scaled ? TW_NON_FINITE_STOP : TW_NON_FINITE_SKIP,
                                                .loss_scaling = {.initial = scaled ? 64 : 0}},
                          1, INFINITY);
                t.stop_after = (accumulate == 1 ? 4 : 2) + i;
                assert_int_equal(tw_trainer_fit(t.trainer, t.data, NULL), TW_STOPPED);
                assert_int_equal(tw_model_get_guard(t.model).skipped, i);
                found[i] = weights_of(&t, &size[i]);
                close_task(&t);
            }
            assert_int_equal(size[0], size[1]);
            assert_memory_equal(found[0], found[1], size[0]);
            free(found[0]);
            free(found[1]);
        }
}

/* ---- roll back ---- */

static void the_model_goes_back(void **state) {
    (void)state;
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        task t;
        open_task(
            &t,
            &(tw_trainer_options){
                .epochs = 2, .on_non_finite = TW_NON_FINITE_ROLL_BACK, .snapshot_every = 3, .accumulate = accumulate},
            1, NAN);
        CHECK_OK(tw_trainer_fit(t.trainer, t.data, NULL));
        assert_int_equal(tw_model_get_guard(t.model).rolled_back, 2);
        assert_non_null(strstr(t.log, "(in the data set: 37); the model goes back from update"));
        int64_t back = 0, before = 0;
        for (int64_t i = 0; i < t.steps; i++) {
            if (t.updates[i] == before + 1)
                before++;
            else { /* to the last multiple of 3 */
                assert_int_equal(t.updates[i], before / 3 * 3);
                before = t.updates[i];
                back++;
            }
        }
        assert_int_equal(back, 2);
        close_task(&t);
    }
}

/* All that training changed is as it was at the snapshot: a fit that fails at once after it has its bytes. */
static void what_it_goes_back_to_is_the_snapshot(void **state) {
    (void)state;
    task t;
    size_t size, other_size;
    open_task(&t,
              &(tw_trainer_options){
                  .epochs = 1, .no_shuffle = true, .on_non_finite = TW_NON_FINITE_ROLL_BACK, .snapshot_every = 3},
              1, NAN);
    t.stop_after = 3;
    assert_int_equal(tw_trainer_fit(t.trainer, t.data, NULL), TW_STOPPED);
    float *expected = weights_of(&t, &size);
    close_task(&t);
    open_task(&t,
              &(tw_trainer_options){
                  .epochs = 1, .no_shuffle = true, .on_non_finite = TW_NON_FINITE_ROLL_BACK, .snapshot_every = 3},
              1, NAN);
    t.stop_after = 5; /* sample 37 is in the fifth batch */
    assert_int_equal(tw_trainer_fit(t.trainer, t.data, NULL), TW_STOPPED);
    assert_int_equal(tw_model_get_updates(t.model), 3);
    assert_int_equal(tw_model_get_attempts(t.model), 5);
    float *found = weights_of(&t, &other_size);
    assert_int_equal(size, other_size);
    assert_memory_equal(expected, found, size);
    free(expected);
    free(found);
    close_task(&t);
}

static void going_back_twice_for_nothing_stops(void **state) {
    (void)state;
    task t;
    open_task(&t, &(tw_trainer_options){.no_shuffle = true, .on_non_finite = TW_NON_FINITE_ROLL_BACK}, 23, NAN);
    CHECK_FAILS(tw_trainer_fit(t.trainer, t.data, NULL), TW_ERROR_NUMERIC, "the model went back to update 0 before");
    assert_int_equal(tw_model_get_guard(t.model).rolled_back, 1);
    close_task(&t);
}

/* ---- cut and gone on with ---- */

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void resumes_to_the_same_bytes(const tw_trainer_options *options, int bad) {
    char path[] = "/tmp/talweg-recovery-XXXXXX", reference[] = "/tmp/talweg-recovery-XXXXXX";
    const int files[] = {mkstemp(path), mkstemp(reference)};
    task whole;
    open_task(&whole, options, bad, NAN);
    CHECK_OK(tw_trainer_fit(whole.trainer, whole.data, NULL));
    CHECK_OK(tw_model_save(whole.model, reference));
    const tw_guard_stats expected = tw_model_get_guard(whole.model);
    size_t size;
    char *bytes = read_file(reference, &size);
    const int64_t steps = whole.steps;
    int64_t seen = 0;
    for (int64_t cut = 1; cut < steps; cut++) {
        task t;
        size_t other;
        open_task(&t, options, bad, NAN);
        t.stop_after = cut;
        assert_int_equal(tw_trainer_fit(t.trainer, t.data, NULL), TW_STOPPED);
        CHECK_OK(tw_trainer_save(t.trainer, path));
        const tw_guard_stats saved = tw_model_get_guard(t.model);
        close_task(&t);
        open_task(&t, options, bad, NAN);
        CHECK_OK(tw_trainer_load(t.trainer, path));
        const tw_guard_stats loaded = tw_model_get_guard(t.model);
        assert_true(saved.loss_scale == loaded.loss_scale && saved.good == loaded.good &&
                    saved.skipped == loaded.skipped && saved.skipped_in_a_row == loaded.skipped_in_a_row &&
                    saved.rolled_back == loaded.rolled_back);
        if (loaded.loss_scale != 1 && loaded.loss_scale != 65536) seen++;
        CHECK_OK(tw_trainer_fit(t.trainer, t.data, NULL));
        assert_true(tw_trainer_is_exact(t.trainer));
        for (int64_t i = 0; i < t.steps && cut + i < 63; i++) {
            assert_true(t.scale[i] == whole.scale[cut + i]);
            assert_int_equal(t.updates[i], whole.updates[cut + i]);
        }
        CHECK_OK(tw_model_save(t.model, reference));
        char *again = read_file(reference, &other);
        if (size != other || memcmp(bytes, again, size) != 0) fail_msg("cut after step %lld", (long long)cut);
        const tw_guard_stats found = tw_model_get_guard(t.model);
        assert_int_equal(found.skipped, expected.skipped);
        assert_int_equal(found.rolled_back, expected.rolled_back);
        assert_true(found.loss_scale == expected.loss_scale);
        free(again);
        close_task(&t);
    }
    if (options->loss_scaling.initial != 0) assert_true(seen > 0);
    free(bytes);
    close_task(&whole);
    for (int i = 0; i < 2; i++) close(files[i]);
    remove(path);
    remove(reference);
}

static void a_scale_is_gone_on_with(void **state) {
    (void)state;
    resumes_to_the_same_bytes(
        &(tw_trainer_options){.epochs = 2, .loss_scaling = {.initial = 2048, .growth_interval = 3}}, 3);
    resumes_to_the_same_bytes(
        &(tw_trainer_options){
            .epochs = 2, .accumulate = 2, .workers = 2, .loss_scaling = {.initial = 256, .growth_interval = 2}},
        2);
}

static void snapshots_are_gone_on_with(void **state) {
    (void)state;
    resumes_to_the_same_bytes(
        &(tw_trainer_options){.epochs = 2, .on_non_finite = TW_NON_FINITE_ROLL_BACK, .snapshot_every = 3}, 1);
}

/* Three overflows take 2048 to 256; that is what the next fit begins with. */
static void three_overflows_are_remembered(void **state) {
    (void)state;
    char path[] = "/tmp/talweg-recovery-XXXXXX";
    const int file = mkstemp(path);
    const tw_trainer_options options = {.no_shuffle = true, .loss_scaling = {.initial = 2048}};
    task t;
    open_task(&t, &options, 19, NAN); /* batches 5, 6 and 7 */
    t.stop_after = 7;
    assert_int_equal(tw_trainer_fit(t.trainer, t.data, NULL), TW_STOPPED);
    CHECK_OK(tw_trainer_save(t.trainer, path));
    close_task(&t);
    open_task(&t, &options, 19, NAN);
    CHECK_OK(tw_trainer_load(t.trainer, path));
    assert_true(tw_model_get_guard(t.model).loss_scale == 256);
    assert_int_equal(tw_model_get_guard(t.model).skipped, 3);
    assert_int_equal(tw_model_get_guard(t.model).skipped_in_a_row, 3);
    CHECK_OK(tw_trainer_fit(t.trainer, t.data, NULL));
    assert_true(t.scale[0] == 256);
    assert_int_equal(tw_model_get_guard(t.model).good, 1);
    close_task(&t);
    close(file);
    remove(path);
}

/* A trainer with other rules does not go on with it. */
static void other_rules_are_refused(void **state) {
    (void)state;
    char path[] = "/tmp/talweg-recovery-XXXXXX";
    const int file = mkstemp(path);
    task t;
    open_task(&t, &(tw_trainer_options){.loss_scaling = {.initial = 2048}}, 0, 0);
    CHECK_OK(tw_trainer_save(t.trainer, path));
    close_task(&t);
    open_task(&t, &(tw_trainer_options){.on_non_finite = TW_NON_FINITE_SKIP}, 0, 0);
    CHECK_FAILS(tw_trainer_load(t.trainer, path), TW_ERROR_MISMATCH, "on_non_finite (skip here, stop there)");
    assert_non_null(strstr(tw_last_error(), "loss_scaling.initial"));
    close_task(&t);
    close(file);
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sample_of_the_data_set_is_named),
        cmocka_unit_test(evaluation_names_it_too),
        cmocka_unit_test(fit_goes_on_without_the_batch),
        cmocka_unit_test(a_skip_leaves_every_byte),
        cmocka_unit_test(the_model_goes_back),
        cmocka_unit_test(what_it_goes_back_to_is_the_snapshot),
        cmocka_unit_test(going_back_twice_for_nothing_stops),
        cmocka_unit_test(a_scale_is_gone_on_with),
        cmocka_unit_test(snapshots_are_gone_on_with),
        cmocka_unit_test(three_overflows_are_remembered),
        cmocka_unit_test(other_rules_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

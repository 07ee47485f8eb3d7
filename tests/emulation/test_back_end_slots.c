/* Streamed inputs on the emulated device: what a loader's batches teach is, bit for bit, what the same samples teach from device
 * memory, in any order that streams and events allow; feeding waits for no run; and any call of it may fail. */
#include "back_end_task.h"
#include "check_device.h"
#include "program/program.h"
#include "trainer/trainer.h"

#include <stdio.h>

static const char *self; /* this program, started again with other settings */

/* Batches whose images fit a small pinned place, and a large one only. The last one is shorter. */
enum { SAMPLES = 78, SMALL = 4, LARGE = 16 };

static tw_trainer_options options_of(int workers, int batch) {
    tw_trainer_options options = task_options();
    options.workers = workers;
    options.batch = options.evaluation_batch = batch;
    options.optimizer.schedule.kind = TW_SCHEDULE_CONSTANT; /* feeds are opened without a fit */
    return options;
}

/* A task with more samples. */
static task open_task(tw_context *context, const tw_trainer_options *options) {
    static uint8_t images[SAMPLES * TASK_PIXELS];
    static int32_t labels[SAMPLES];
    task t;
    task_images(images, SAMPLES);
    task_labels(labels, SAMPLES);
    CHECK_OK(task_make(&t, context, options));
    tw_dataset_destroy(t.train);
    CHECK_OK(tw_dataset_create_from(&t.train, context, TW_U8, images, SAMPLES, TASK_CHANNELS, TASK_SIDE, TASK_SIDE,
                                    labels, NULL));
    return t;
}

static task_state learn(int workers, int batch, int accumulate) {
    tw_trainer_options options = options_of(workers, batch);
    options.accumulate = accumulate;
    tw_context *context = task_device();
    task t = open_task(context, &options);
    CHECK_OK(tw_trainer_fit(t.trainer, t.train, t.test));
    CHECK_OK(tw_trainer_evaluate(t.trainer, t.train, &t.tested));
    task_state state = task_outcome(&t);
    task_drop(&t);
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
    return state;
}

static void what_is_learned_is_the_same(void **state) {
    (void)state;
    static const int batches[] = {SMALL, LARGE, LARGE}, accumulates[] = {1, 1, 2};
    for (int i = 0; i < 3; i++) {
        task_state resident = learn(0, batches[i], accumulates[i]);
        for (int workers = 1; workers <= 4; workers += 3) {
            task_state streamed = learn(workers, batches[i], accumulates[i]);
            assert_true(task_same(&streamed, &resident));
            free(streamed.bytes);
        }
        free(resident.bytes);
    }
}

/* ---- the plan ---- */

static void streaming_is_no_part_of_the_plans_identity(void **state) {
    (void)state;
    tw_context *context = task_device();
    const tw_trainer_options loaded = options_of(1, LARGE), gathered = options_of(0, LARGE);
    task streamed = open_task(context, &loaded), resident = open_task(context, &gathered);
    twi_feed feed[2];
    CHECK_OK(twi_feed_open(&feed[0], streamed.trainer, TWI_USE_TRAIN, streamed.train));
    CHECK_OK(twi_feed_open(&feed[1], resident.trainer, TWI_USE_TRAIN, resident.train));
    const char *dump = tw_program_dump(feed[0].full, TW_PASS_MEMORY);
    assert_non_null(strstr(dump, "feed.values"));
    assert_non_null(strstr(dump, "feed.labels"));
    assert_true(tw_program_get_plan_hash(feed[0].full) == tw_program_get_plan_hash(feed[1].full));
    /* Without labels there is nothing to take for them. */
    twi_feed predicting;
    CHECK_OK(twi_feed_open(&predicting, streamed.trainer, TWI_USE_PREDICT, streamed.train));
    dump = tw_program_dump(predicting.full, TW_PASS_MEMORY);
    assert_true(strstr(dump, "feed.values") && !strstr(dump, "feed.labels"));
    twi_feed_close(&predicting);
    for (int i = 0; i < 2; i++) twi_feed_close(&feed[i]);
    task_drop(&streamed);
    task_drop(&resident);
    tw_context_destroy(context);
}

static void a_slot_is_taken_once(void **state) {
    (void)state;
    tw_context *context = task_device();
    const tw_trainer_options options = options_of(1, LARGE);
    task t = open_task(context, &options);
    twi_feed feed;
    twi_fed fed;
    CHECK_OK(twi_feed_open(&feed, t.trainer, TWI_USE_TRAIN, t.train));
    CHECK_OK(twi_feed_start(&feed, 0, 0));
    CHECK_OK(twi_feed_next(&feed, &fed));
    CHECK_OK(tw_program_run(fed.program));
    CHECK_FAILS(tw_program_run(fed.program), TW_ERROR_STATE, "is not there");
    CHECK_OK(twi_feed_next(&feed, &fed));
    CHECK_OK(tw_program_run(fed.program));
    twi_feed_close(&feed);
    task_drop(&t);
    tw_context_destroy(context);
}

/* ---- waits ---- */

/* Launches as many runs as may be in flight; what the device did meanwhile. */
static uint64_t launch_all(twi_feed *feed) {
    twi_fed fed;
    const uint64_t before = emu_count_operations();
    for (int i = 0; i < TWI_IN_FLIGHT_MAX; i++) {
        CHECK_OK(twi_feed_next(feed, &fed));
        CHECK_OK(twi_program_launch(fed.program));
    }
    return emu_count_operations() - before;
}

static void land_all(tw_model *model) {
    twi_landed landed;
    while (model->flights.count) CHECK_OK(twi_program_land(model, &landed));
}

/* Batches that fit the small pinned places are all kept there. Of larger ones two are, and the next waits for the copies of
 * the first; never for a run. */
static void feeding_waits_for_no_run(void **state) {
    (void)state;
    static const int batches[] = {SMALL, LARGE};
    for (int i = 0; i < 2; i++) {
        tw_context *context = task_device();
        const tw_trainer_options options = options_of(1, batches[i]);
        task t = open_task(context, &options);
        twi_feed feed;
        CHECK_OK(twi_feed_open(&feed, t.trainer, TWI_USE_TRAIN, t.train));
        CHECK_OK(twi_feed_start(&feed, 0, 0));
        launch_all(&feed);
        land_all(t.model);
        CHECK_OK(twi_feed_start(&feed, 1, 0));
        const uint64_t copies = launch_all(&feed), before = emu_count_operations();
        land_all(t.model);
        const uint64_t runs = emu_count_operations() - before;
        assert_true(runs > 4 * 20);
        if (batches[i] == SMALL)
            assert_int_equal(copies, 0);
        else
            assert_int_equal(copies, 3); /* the third images wait for the first; the fourth for labels and the second */
        twi_feed_close(&feed);
        task_drop(&t);
        tw_context_destroy(context);
    }
}

/* ---- failures ---- */

/* The learning whose k-th call of that name fails; false if there is none. */
static bool fails_well(const char *name, uint64_t k, const task_state *expected) {
    const tw_trainer_options options = options_of(1, TASK_BATCH);
    tw_context *context;
    task t = {0};
    task_log log = {""};
    emu_fail_call(k, name);
    tw_status status = tw_context_create(
        &context, check_device(),
        TW_OPTIONS(context, .threads = 1, .log = task_listen, .log_user = &log, .log_level = TW_LOG_INFO));
    if (status == TW_OK) status = task_run(&t, context, &options, NULL);
    const bool failed = emu_failed_call() != NULL;
    emu_fail_call(0, NULL);
    const bool got_over = strstr(log.text, "fetched once more, since") || strstr(log.text, "than it could be, since");
    if (failed != (status != TW_OK || got_over))
        fail_msg("%s, call %d: %s", name, (int)k, status ? tw_last_error() : "unnoticed");
    if (status == TW_OK) assert_true(task_check_outcome(&t, expected, &log));
    task_drop(&t);
    if (context) { /* and it goes on to the right numbers */
        assert_int_equal(tw_context_get_device_memory(context).bytes, 0);
        CHECK_OK(task_run(&t, context, &options, NULL));
        task_state found = task_outcome(&t);
        assert_true(task_same(&found, expected));
        free(found.bytes);
        task_drop(&t);
    }
    tw_context_destroy(context);
    if (emu_count_live()) fail_msg("%s, call %d: %d left", name, (int)k, (int)emu_count_live());
    return failed;
}

/* Those that filling slots is made of; others are failed by test_back_end_failures.c. */
static void any_call_may_fail(void **state) {
    (void)state;
    static const char *const names[] = {"cudaStreamWaitEvent", "cudaMemcpyAsync", "cudaEventRecord",
                                        "cudaEventSynchronize"};
    const tw_trainer_options options = options_of(0, TASK_BATCH);
    tw_context *context = task_device();
    task t;
    CHECK_OK(task_run(&t, context, &options, NULL));
    task_state expected = task_outcome(&t);
    task_drop(&t);
    tw_context_destroy(context);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t k = 1;
        while (fails_well(names[i], k, &expected)) k += 1 + k / 4;
        assert_true(k > 10);
    }
    free(expected.bytes);
}

/* ---- orders ---- */

/* One test alone, by the argument that main takes; waits are counted where the device works only while the host waits. */
static void in_any_order(void **state) {
    (void)state;
    static const char *const settings[][2] = {{"TALWEG_EMU_SEED=2", "same"},        {"TALWEG_EMU_SEED=3", "same"},
                                              {"TALWEG_EMU_SEED=4", "same"},        {"TALWEG_EMU_STREAMS=lazy", "same"},
                                              {"TALWEG_EMU_STREAMS=eager", "same"}, {"TALWEG_SYNC=1", "same"},
                                              {"TALWEG_EMU_STREAMS=lazy", "waits"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char command[4352];
        snprintf(command, sizeof command, "%s '%s' %s", settings[i][0], self, settings[i][1]);
        const int status = system(command);
        if (status) fail_msg("%s: status %d", command, status);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_learned_is_the_same), cmocka_unit_test(streaming_is_no_part_of_the_plans_identity),
        cmocka_unit_test(a_slot_is_taken_once),        cmocka_unit_test(in_any_order),
        cmocka_unit_test(any_call_may_fail),
    };
    const struct CMUnitTest same[] = {cmocka_unit_test(what_is_learned_is_the_same)},
                            waits[] = {cmocka_unit_test(feeding_waits_for_no_run)};
    self = argv[0];
    if (argc > 1 && strcmp(argv[1], "same") == 0) return cmocka_run_group_tests(same, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "waits") == 0) return cmocka_run_group_tests(waits, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

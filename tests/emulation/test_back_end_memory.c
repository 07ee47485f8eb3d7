/* Device memory of the CUDA back end: counted as the device counts it, planned to the byte, and where there is too little
 * a status that says what holds how much. And a device that is lost: every call says so, and nothing else happens. */
#include "back_end_task.h"

#include <stdio.h>
#include <stdlib.h>

static tw_context *limited(size_t bytes) {
    tw_context *context;
    CHECK_OK(
        tw_context_create(&context, check_device(), TW_OPTIONS(context, .threads = 1, .device_memory_limit = bytes)));
    return context;
}

static void close_all(task *t) {
    tw_context *context = t->context;
    task_drop(t);
    assert_int_equal(tw_context_get_device_memory(context).bytes, 0);
    assert_int_equal(tw_context_get_device_memory(context).blocks, 0);
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
    emu_reset();
}

/* ---- what is held ---- */

static void memory_is_what_the_device_counts(void **state) {
    (void)state;
    const tw_trainer_options options = task_options();
    task t;
    tw_context *context = task_device();
    const size_t before = task_device_bytes();
    CHECK_OK(task_run(&t, context, &options, NULL));
    const tw_memory_stats stats = tw_context_get_device_memory(context);
    assert_true(stats.bytes > 0);
    assert_int_equal(task_device_bytes() - before, stats.bytes);
    assert_int_equal(emu_peak_memory() - before, stats.peak);
    assert_true(stats.peak > stats.bytes); /* the resident set is gone */
    close_all(&t);
}

/* A trained program's memory is the sum of what its plan says, and of the few arrays that belong to no program. */
static void memory_is_what_was_planned(void **state) {
    (void)state;
    tw_model *model;
    tw_context *context = task_device();
    CHECK_OK(task_network(&model, context));
    const size_t built = tw_context_get_device_memory(context).bytes;
    static const tw_optimizer_options adam = {.size = sizeof adam, .kind = TW_ADAMW};
    tw_value *loss = tw_cross_entropy(model, tw_model_get_output(model), tw_input_labels(model, NULL), NULL);
    const tw_loss losses = {loss, 1};
    size_t arena = 0, scratch = 0;
    tw_program *program[3];
    for (int i = 0; i < 3; i++) { /* growing and not: one arena as large as the largest needs */
        CHECK_OK(tw_program_create(
            &program[i], model, i == 1 ? 16 : 4,
            TW_OPTIONS(program, .train = true, .losses = &losses, .loss_count = 1, .optimizer = &adam)));
        const tw_program_stats plan = tw_program_get_stats(program[i]);
        if (plan.arena_bytes > arena) arena = plan.arena_bytes;
        if (plan.scratch_bytes > scratch) scratch = plan.scratch_bytes;
        assert_int_equal(tw_context_get_device_memory(context).bytes,
                         built + arena + scratch + plan.gradient_bytes + plan.state_bytes);
        assert_int_equal(tw_context_get_device_memory(context).bytes, task_device_bytes());
    }
    for (int i = 0; i < 3; i++) tw_program_destroy(program[i]);
    task t = {.context = context, .model = model};
    close_all(&t);
}

/* ---- too little of it ---- */

static void check_breakdown(void) {
    if (strstr(tw_last_error(), "the memory limit of") && strstr(tw_last_error(), "cannot be kept")) return;
    static const char *const says[] = {"out of device memory", "asked", "held here:", "smaller batch"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (!strstr(tw_last_error(), says[i])) fail_msg("\"%s\" does not say \"%s\"", tw_last_error(), says[i]);
}

/* The network and a program that trains it: with them all memory is taken. */
static tw_status make_program(task *t, tw_context *context, int batch) {
    static const tw_optimizer_options sgd = {.size = sizeof sgd, .momentum = 0.9f};
    tw_program *program = NULL;
    *t = (task){.context = context};
    tw_status status = task_network(&t->model, context);
    if (status) return status;
    const tw_loss losses = {
        tw_cross_entropy(t->model, tw_model_get_output(t->model), tw_input_labels(t->model, NULL), NULL), 1};
    status =
        tw_program_create(&program, t->model, batch,
                          TW_OPTIONS(program, .train = true, .losses = &losses, .loss_count = 1, .optimizer = &sgd));
    tw_program_destroy(program);
    return status;
}

static size_t program_peak(int batch) {
    task t;
    CHECK_OK(make_program(&t, task_device(), batch));
    const size_t peak = tw_context_get_device_memory(t.context).peak;
    close_all(&t);
    return peak;
}

/* With one byte less than what is needed there is no room, and a smaller batch has it: by a cap, and by the device. */
static void too_little_is_told_and_a_smaller_batch_fits(void **state) {
    (void)state;
    const size_t large = program_peak(14), little = program_peak(2);
    assert_true(little < large);
    for (int by_device = 0; by_device < 2; by_device++) {
        for (int short_of = 0; short_of < 2; short_of++) {
            const size_t room = large - (size_t)short_of;
            tw_context *context = limited(by_device ? 0 : room);
            if (by_device) emu_set_memory(room);
            task t;
            tw_status status = make_program(&t, context, 14);
            assert_int_equal(status, short_of ? TW_ERROR_OUT_OF_MEMORY : TW_OK);
            if (short_of) {
                check_breakdown();
                assert_non_null(strstr(tw_last_error(), "held here: parameters "));
            }
            task_drop(&t);
            CHECK_OK(make_program(&t, context, 2));
            assert_true(tw_context_get_device_memory(context).peak <= room);
            close_all(&t);
        }
    }
}

/* Does the task get through under a cap? Then to the outcome expected, but for norms in parts; if not, its text is one of two,
 * and *floor is what it is said to be planned with at least, if it is. */
static bool gets_through(size_t cap, const task_state *expected, bool frozen, size_t *floor) {
    const tw_trainer_options options = task_options();
    static const char least[] = "the least that batch 1 was planned with is ";
    task_log log = {""};
    tw_context *context;
    task t;
    CHECK_OK(tw_context_create(&context, check_device(),
                               TW_OPTIONS(context, .threads = 1, .device_memory_limit = cap, .log = task_listen,
                                          .log_user = &log, .log_level = TW_LOG_INFO)));
    tw_status status = task_run(&t, context, &options, NULL);
    if (status) {
        assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
        check_breakdown();
        const char *said = strstr(tw_last_error(), least);
        if (said) assert_int_equal(sscanf(strchr(said, '('), "(%zu bytes)", floor), 1);
    } else if (!task_check_outcome(&t, expected, &log)) {
        assert_false(frozen);
    }
    assert_true(tw_context_get_device_memory(context).peak <= cap);
    close_all(&t);
    return status == TW_OK;
}

/* From the least cap that does, all do, and that is the floor that is told for one byte less. */
static void check_caps(bool frozen, size_t caps) {
    const tw_trainer_options options = task_options();
    task t;
    task_freeze_norms(frozen);
    CHECK_OK(task_run(&t, task_device(), &options, NULL));
    task_state expected = task_outcome(&t);
    const size_t needed = tw_context_get_device_memory(t.context).peak;
    close_all(&t);
    size_t floor = 0, refused = 0, least = needed;
    for (size_t cap = needed; cap > needed / caps; cap -= needed / caps) {
        if (gets_through(cap, &expected, frozen, &floor)) {
            if (refused) fail_msg("%zu bytes do, and %zu do not", cap, refused);
            least = cap;
        } else if (!refused) {
            refused = cap;
        }
    }
    while (refused + 1 < least) {
        const size_t middle = refused + (least - refused) / 2;
        *(gets_through(middle, &expected, frozen, &floor) ? &least : &refused) = middle;
    }
    print_message("%s: of %zu bytes %zu do; the floor is %zu\n", frozen ? "frozen" : "moving", needed, least, floor);
    assert_int_equal(least, floor);
    assert_false(gets_through(1, &expected, frozen, &floor));
    free(expected.bytes);
    task_freeze_norms(false);
}

static size_t caps_tried = 23;

static void any_cap_is_kept_or_a_status(void **state) {
    (void)state;
    check_caps(true, caps_tried);
    check_caps(false, caps_tried / 2);
}

/* ---- a data set that there turns out to be no room for ---- */

/* A set larger than the slots of its programs. */
enum { LONG = 100, LONG_BYTES = LONG * (TASK_PIXELS + 8) }; /* samples; with labels and order */
static tw_dataset *long_set(tw_context *context) {
    static uint8_t images[LONG * TASK_PIXELS];
    int32_t labels[LONG];
    tw_dataset *set;
    task_images(images, LONG);
    task_labels(labels, LONG);
    CHECK_OK(
        tw_dataset_create_from(&set, context, TW_U8, images, LONG, TASK_CHANNELS, TASK_SIDE, TASK_SIDE, labels, NULL));
    return set;
}

/* Fits with the k-th allocation of device memory refused (0: none); *refused says whether there was one. */
static tw_status fit_refused(uint64_t k, size_t limit, tw_on_out_of_memory then, task *t, task_log *log,
                             bool *refused) {
    tw_trainer_options options = task_options();
    tw_context *context;
    *t = (task){0};
    *log = (task_log){""};
    options.epochs = 1;
    options.memory_limit = limit;
    options.on_out_of_memory = then;
    CHECK_OK(tw_context_create(
        &context, check_device(),
        TW_OPTIONS(context, .threads = 1, .log = task_listen, .log_user = log, .log_level = TW_LOG_INFO)));
    CHECK_OK(task_make(t, context, &options));
    tw_dataset *set = long_set(context);
    emu_fail_call(k, "cudaMalloc");
    tw_status status = tw_trainer_fit(t->trainer, set, NULL);
    *refused = emu_failed_call() != NULL;
    emu_fail_call(0, NULL);
    tw_dataset_destroy(set);
    return status;
}

/* Order, samples and labels may each be refused, whatever the device said of its memory: the batches are streamed. Where what
 * programs take is refused, batches are run in parts. */
static void a_set_that_is_refused_is_streamed(void **state) {
    (void)state;
    task t;
    task_log log;
    bool refused = true;
    int streamed = 0, parts = 0, tried = 0;
    task_freeze_norms(true);
    CHECK_OK(fit_refused(0, 0, TW_OUT_OF_MEMORY_STOP, &t, &log, &refused));
    assert_null(strstr(log.text, "streamed"));
    task_state expected = task_outcome(&t);
    close_all(&t);
    for (; refused || !tried; tried++) {
        CHECK_OK(fit_refused((uint64_t)tried + 1, 0, TW_OUT_OF_MEMORY_STOP, &t, &log, &refused));
        if (strstr(log.text, "streamed")) {
            assert_non_null(strstr(log.text, "resident"));
            assert_non_null(strstr(log.text, "out of device memory"));
            streamed++;
        }
        parts += strstr(log.text, "are run in") != NULL;
        assert_true(task_check_outcome(&t, &expected, &log));
        close_all(&t);
    }
    assert_int_equal(streamed, 3);
    assert_true(parts > 0 && streamed + parts == tried - 1); /* at last none was refused */
    task_freeze_norms(false);
    free(expected.bytes);
}

/* A limit that the user names, and that what is refused would have kept, is answered by a status, unless they ask for another
 * plan; but sets are streamed. */
static void check_refusals(tw_on_out_of_memory then) {
    const size_t limit = (size_t)64 << 20;
    task t;
    task_log log;
    bool refused = true;
    int streamed = 0, stopped = 0, parts = 0;
    CHECK_OK(fit_refused(0, limit, then, &t, &log, &refused));
    const task_log usual = log;
    task_state expected = task_outcome(&t);
    close_all(&t);
    refused = true;
    for (uint64_t k = 1; refused; k++) {
        tw_status status = fit_refused(k, limit, then, &t, &log, &refused);
        if (status) {
            assert_true(refused);
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
            check_breakdown();
            assert_non_null(strstr(tw_last_error(), "held here: parameters "));
            assert_memory_equal(log.text, usual.text, strlen(log.text)); /* no other plan */
            assert_int_equal(tw_model_get_updates(t.model), 0);
            tw_dataset *set = long_set(t.context); /* memory is there again */
            CHECK_OK(tw_trainer_fit(t.trainer, set, NULL));
            tw_dataset_destroy(set);
            stopped++;
        } else if (refused) {
            streamed += strstr(log.text, "streamed") != NULL;
            parts += strstr(log.text, "are run in") != NULL;
            assert_string_not_equal(log.text, usual.text);
        }
        (void)task_check_outcome(&t, &expected, &log);
        close_all(&t);
    }
    assert_int_equal(streamed, 3);
    assert_int_equal(stopped > 0, then == TW_OUT_OF_MEMORY_STOP);
    assert_int_equal(parts > 0, then == TW_OUT_OF_MEMORY_FIT);
    free(expected.bytes);
}

static void a_refusal_within_a_limit_is_a_status(void **state) {
    (void)state;
    check_refusals(TW_OUT_OF_MEMORY_STOP);
}

static void or_is_planned_around(void **state) {
    (void)state;
    check_refusals(TW_OUT_OF_MEMORY_FIT);
}

/* Also outside of a fit a set leaves a share of what is free to libraries: here it would fit to the byte. */
static void a_set_leaves_libraries_a_reserve(void **state) {
    (void)state;
    const tw_trainer_options options = task_options();
    for (int spare = 0; spare < 2; spare++) {
        task_log log = {""};
        tw_context *context;
        task t;
        CHECK_OK(tw_context_create(
            &context, check_device(),
            TW_OPTIONS(context, .threads = 1, .log = task_listen, .log_user = &log, .log_level = TW_LOG_INFO)));
        CHECK_OK(task_make(&t, context, &options));
        CHECK_OK(tw_trainer_fit(t.trainer, t.train, NULL));
        tw_dataset *set = long_set(context);
        tw_metrics resident, found;
        CHECK_OK(tw_trainer_evaluate(t.trainer, set, &resident));
        assert_null(strstr(log.text, "streamed"));
        emu_set_memory(task_device_bytes() + LONG_BYTES + (spare ? LONG_BYTES / 31 + 1 : 0));
        CHECK_OK(tw_trainer_evaluate(t.trainer, set, &found));
        assert_int_equal(strstr(log.text, "are left beside the programs") != NULL, !spare);
        assert_memory_equal(&found, &resident, sizeof found);
        tw_dataset_destroy(set);
        close_all(&t);
    }
}

/* ---- a lost device ---- */

#define CHECK_LOST(call) CHECK_FAILS(call, TW_ERROR_DEVICE, "the device was lost (")

static void check_every_call_says_so(task *t) {
    float values[TASK_CLASSES];
    tw_metrics metrics;
    tw_model *model = NULL;
    tw_resident *resident;
    static const uint8_t image[1];
    CHECK_LOST(tw_trainer_fit(t->trainer, t->train, NULL));
    CHECK_LOST(tw_trainer_evaluate(t->trainer, t->test, &metrics));
    CHECK_LOST(tw_parameter_read(t->model, "fc2.bias", values, TASK_CLASSES));
    CHECK_LOST(tw_parameter_write(t->model, "fc2.bias", values, TASK_CLASSES));
    CHECK_LOST(tw_model_save(t->model, "/tmp/talweg-never-written"));
    CHECK_LOST(tw_resident_create(&resident, t->context, TW_U8, image, 1, 1, 1, 1, (const int32_t[]){0}));
    CHECK_LOST(task_network(&model, t->context));
    tw_model_destroy(model);
}

static void a_lost_device_says_so_in_every_call(void **state) {
    (void)state;
    static const cudaError_t errors[] = {cudaErrorIllegalAddress, cudaErrorLaunchFailure};
    const tw_trainer_options options = task_options();
    task t;
    CHECK_OK(task_run(&t, task_device(), &options, NULL));
    const uint64_t operations = emu_count_operations();
    task_state expected = task_outcome(&t);
    close_all(&t);
    assert_true(operations > 200);
    for (uint64_t at = 1, i = 0; at < operations; at += 1 + operations / 40, i++) {
        tw_context *context = task_device();
        emu_break_device_after(at, errors[i % 2]);
        CHECK_LOST(task_run(&t, context, &options, NULL));
        assert_non_null(strstr(tw_last_error(), "destroy this context"));
        if (t.trainer) check_every_call_says_so(&t);
        task_drop(&t);
        tw_context_destroy(context);
        assert_int_equal(emu_count_live(), 0);
        emu_reset();
    }
    CHECK_OK(task_run(&t, task_device(), &options, NULL)); /* another one works */
    task_state outcome = task_outcome(&t);
    assert_true(task_same(&outcome, &expected));
    close_all(&t);
    free(outcome.bytes);
    free(expected.bytes);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_what_the_device_counts),
        cmocka_unit_test(memory_is_what_was_planned),
        cmocka_unit_test(too_little_is_told_and_a_smaller_batch_fits),
        cmocka_unit_test(any_cap_is_kept_or_a_status),
        cmocka_unit_test(a_set_that_is_refused_is_streamed),
        cmocka_unit_test(a_refusal_within_a_limit_is_a_status),
        cmocka_unit_test(or_is_planned_around),
        cmocka_unit_test(a_set_leaves_libraries_a_reserve),
        cmocka_unit_test(a_lost_device_says_so_in_every_call),
    };
    if (argc > 1 && strcmp(argv[1], "all") == 0) caps_tried = 500;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What a training step on a resident set costs the host: the same few calls each time, nothing allocated, no wait but for
 * the oldest run in flight. TALWEG_EMU_STREAMS=lazy for this test: the device works only while the host waits. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "back_end_task.h"
#include "backend/backend.h"

enum { MOST_STEPS = 64, FIRST = 6, LAST = 26 }; /* steps looked at: all within one epoch */

static const char *const calls[] = {"cudaGraphLaunch", "cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize",
                                    "cudaSetDevice"};
enum { CALLS = sizeof calls / sizeof *calls };
/* A copy of the control block in; control block, loss and ranks out. An event behind the copy in, for its slot, and one
 * behind the run. The slot's is waited for, sixteen copies later, when it is long done, and the run's. Each function of
 * the back end makes its device the thread's, which costs next to nothing. */
static const uint64_t a_step[CALLS] = {1, 4, 2, 2, 7};

typedef struct seen {
    uint64_t all, of[CALLS], operations, allocations;
} seen;
static seen at[MOST_STEPS + 1];

static bool note(void *user, const tw_progress *p) {
    const tw_context *context = user;
    seen *s = &at[p->step];
    s->all = emu_count_calls(NULL);
    for (int i = 0; i < CALLS; i++) s->of[i] = emu_count_calls(calls[i]);
    s->operations = emu_count_operations();
    s->allocations = tw_context_get_memory(context).allocations + tw_context_get_device_memory(context).allocations;
    return false;
}

static tw_dataset *larger_data(tw_context *context) {
    static uint8_t images[MOST_STEPS * TASK_BATCH * TASK_PIXELS];
    static int32_t labels[MOST_STEPS * TASK_BATCH];
    tw_dataset *data;
    task_images(images, MOST_STEPS * TASK_BATCH);
    task_labels(labels, MOST_STEPS * TASK_BATCH);
    CHECK_OK(tw_dataset_create_from(&data, context, TW_U8, images, MOST_STEPS * TASK_BATCH, TASK_CHANNELS, TASK_SIDE,
                                    TASK_SIDE, labels, NULL));
    return data;
}

static void a_step_is_a_few_calls_and_no_wait(void **state) {
    (void)state;
    tw_context *context = task_device();
    tw_trainer_options options = task_options();
    options.epochs = 1;
    options.on_step = note;
    options.run_ahead = true;
    options.user = context;
    task t;
    CHECK_OK(task_make(&t, context, &options));
    tw_dataset *data = larger_data(context);
    CHECK_OK(tw_trainer_fit(t.trainer, data, NULL));
    const uint64_t operations = at[FIRST + 1].operations - at[FIRST].operations;
    for (int step = FIRST; step < LAST; step++) {
        const seen *now = &at[step], *next = &at[step + 1];
        uint64_t all = 0;
        for (int i = 0; i < CALLS; i++) {
            assert_int_equal(next->of[i] - now->of[i], a_step[i]);
            all += a_step[i];
        }
        assert_int_equal(next->all - now->all, all); /* and no other call: no allocation, no launch but the graph's */
        assert_int_equal(next->allocations, now->allocations);
        /* The device did one step's work for it, and is behind the host by what is in flight. */
        assert_int_equal(next->operations - now->operations, operations);
    }
    /* Runs launched when step FIRST was told: it and those in flight. One step's operations are the graph's and the copies. */
    assert_int_equal(at[FIRST].of[0], FIRST + TWI_IN_FLIGHT_MAX - 1);
    assert_true(operations > a_step[1]);
    tw_dataset_destroy(data);
    task_drop(&t);
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
}

/* What a callback tries beside the steps that are under way, and how often that was refused. */
typedef struct intruder {
    task t;
    tw_program *program;
    int refused;
} intruder;

static bool intrude(void *user, const tw_progress *p) {
    intruder *i = user;
    const float images[TASK_BATCH * TASK_PIXELS] = {0};
    tw_program *another;
    tw_value *output = tw_model_get_output(i->t.model);
    tw_metrics metrics;
    if (p->step > 1) return false; /* later ones may be the last of the epoch */
    CHECK_OK(tw_program_write(i->program, tw_model_get_input(i->t.model), TW_F32, images, TASK_BATCH * TASK_PIXELS));
    CHECK_FAILS(tw_program_run(i->program), TW_ERROR_STATE, "run_ahead");
    CHECK_FAILS(
        tw_program_create(&another, i->t.model, TASK_BATCH, TW_OPTIONS(program, .outputs = &output, .output_count = 1)),
        TW_ERROR_STATE, "run_ahead");
    CHECK_FAILS(tw_trainer_evaluate(i->t.trainer, i->t.test, &metrics), TW_ERROR_STATE, "run_ahead");
    i->refused++;
    return false;
}

static void nothing_else_runs_beside_steps_under_way(void **state) {
    (void)state;
    tw_context *context = task_device();
    tw_trainer_options options = task_options();
    task plain;
    CHECK_OK(task_make(&plain, context, &options));
    CHECK_OK(tw_trainer_fit(plain.trainer, plain.train, NULL));
    const task_state expected = task_state_of(plain.model);
    intruder i = {.refused = 0};
    options.on_step = intrude;
    options.run_ahead = true;
    options.user = &i;
    CHECK_OK(task_make(&i.t, context, &options));
    tw_value *output = tw_model_get_output(i.t.model);
    CHECK_OK(tw_program_create(&i.program, i.t.model, TASK_BATCH,
                               TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    CHECK_OK(tw_trainer_fit(i.t.trainer, i.t.train, NULL));
    assert_int_equal(i.refused, options.epochs);
    const task_state found = task_state_of(i.t.model);
    assert_true(task_same(&found, &expected));
    free(found.bytes);
    free(expected.bytes);
    tw_program_destroy(i.program);
    task_drop(&i.t);
    task_drop(&plain);
    tw_context_destroy(context);
}

/* TALWEG_SYNC=1 is the opposite: it waits for every step, so that the one that fails can be named. */
static void waiting_for_every_step_names_it(void **state) {
    (void)state;
    const tw_trainer_options options = task_options();
    setenv("TALWEG_SYNC", "1", 1);
    tw_context *context = task_device();
    task t;
    CHECK_OK(task_make(&t, context, &options));
    const uint64_t graphs = emu_count_calls("cudaGraphLaunch");
    emu_fail_call(1, "cudnnBackendExecute");
    CHECK_FAILS(tw_trainer_fit(t.trainer, t.train, NULL), TW_ERROR_OUT_OF_MEMORY, "conv2d.forward 'conv1");
    emu_break_device_after(30, cudaErrorIllegalAddress);
    CHECK_FAILS(tw_trainer_fit(t.trainer, t.train, NULL), TW_ERROR_DEVICE, "waiting for the step");
    assert_int_equal(emu_count_calls("cudaGraphLaunch"), graphs);
    unsetenv("TALWEG_SYNC");
    task_drop(&t);
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
    emu_reset();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_a_few_calls_and_no_wait),
        cmocka_unit_test(nothing_else_runs_beside_steps_under_way),
        cmocka_unit_test(waiting_for_every_step_names_it),
    };
    setenv("TALWEG_EMU_STREAMS", "lazy", 1); /* before the device is there */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

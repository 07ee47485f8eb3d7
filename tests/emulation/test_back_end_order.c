/* Whatever the order in which the device works, the bytes are the same: over seeds of the emulation, over lazy and eager
 * streams, and without graphs, waiting for every step. And a fault with several runs in flight: told of the same step and
 * sample as on the CPU, with everything as it was before that step, from where training goes on as it does there. */
#define _POSIX_C_SOURCE 200809L /* popen, setenv */
#include "back_end_task.h"
#include "program/model.h"
#include "program/program.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

static const char *self; /* this program, started again with other settings */

static uint64_t fingerprint(const task_state *state) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < state->size; i++) hash = (hash ^ state->bytes[i]) * 1099511628211u;
    return hash;
}

static uint64_t outcome(void) {
    const tw_trainer_options options = task_options();
    task t;
    tw_context *context = task_device();
    CHECK_OK(task_run(&t, context, &options, NULL));
    task_state state = task_outcome(&t);
    const uint64_t hash = fingerprint(&state);
    free(state.bytes);
    task_drop(&t);
    tw_context_destroy(context);
    return hash;
}

static uint64_t outcome_with(const char *settings) {
    char command[4352], line[64] = "";
    snprintf(command, sizeof command, "%s '%s' outcome", settings, self);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    const char *read = fgets(line, sizeof line, pipe);
    const int status = pclose(pipe);
    if (!read || status) fail_msg("%s: status %d", command, status);
    return strtoull(line, NULL, 16);
}

static void any_order_gives_the_same_bytes(void **state) {
    (void)state;
    static const char *const settings[] = {
        "TALWEG_EMU_SEED=2",       "TALWEG_EMU_SEED=3",        "TALWEG_EMU_SEED=4", "TALWEG_EMU_SEED=5",
        "TALWEG_EMU_STREAMS=lazy", "TALWEG_EMU_STREAMS=eager", "TALWEG_SYNC=1",     "TALWEG_SYNC=1 TALWEG_EMU_SEED=6",
    };
    const uint64_t expected = outcome();
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (outcome_with(settings[i]) != expected) fail_msg("with %s: other bytes", settings[i]);
}

/* ---- faults ---- */

enum { RUNS = 9, FAULTY = 3, IN_ORDER = RUNS * TASK_BATCH };

typedef struct subject {
    tw_context *context;
    tw_model *model;
    tw_resident *resident;
    tw_program *program;
    float images[IN_ORDER * TASK_PIXELS];
    int32_t labels[IN_ORDER];
} subject;

/* Sample 2 of run FAULTY has a label that is none, or a pixel that is not finite. */
static void plant(subject *s, bool label) {
    uint8_t bytes[IN_ORDER * TASK_PIXELS];
    task_images(bytes, IN_ORDER);
    task_labels(s->labels, IN_ORDER);
    for (int i = 0; i < IN_ORDER * TASK_PIXELS; i++) s->images[i] = (float)bytes[i] / 255 - 0.5f;
    const int sample = FAULTY * TASK_BATCH + 2;
    if (label)
        s->labels[sample] = TASK_CLASSES + 4;
    else
        s->images[sample * TASK_PIXELS + 7] = INFINITY;
}

static void open_subject(subject *s, const char *device, bool label) {
    static const tw_optimizer_options adam = {.size = sizeof adam, .kind = TW_ADAMW, .learning_rate = 0.01};
    int32_t order[IN_ORDER];
    plant(s, label);
    for (int i = 0; i < IN_ORDER; i++) order[i] = i;
    CHECK_OK(tw_context_create(&s->context, device, TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(task_network(&s->model, s->context));
    CHECK_OK(tw_resident_create(&s->resident, s->context, TW_F32, s->images, IN_ORDER, TASK_CHANNELS, TASK_SIDE,
                                TASK_SIDE, s->labels));
    CHECK_OK(tw_resident_set_order(s->resident, 0, order, IN_ORDER));
    tw_value *labels = tw_input_labels(s->model, "labels");
    const tw_loss loss = {tw_cross_entropy(s->model, tw_model_get_output(s->model), labels, NULL), 1};
    CHECK_OK(
        tw_program_create(&s->program, s->model, TASK_BATCH,
                          TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &adam,
                                     .source = TW_OPTIONS(source, .resident = s->resident,
                                                          .images = tw_model_get_input(s->model), .labels = labels))));
}

static void close_subject(subject *s) {
    tw_program_destroy(s->program);
    tw_resident_destroy(s->resident);
    tw_model_destroy(s->model);
    tw_context_destroy(s->context);
}

typedef struct course {
    char error[512];
    task_state before, after; /* the faulty step */
    task_state end;
    double loss[RUNS];
    uint64_t attempts; /* after the fault */
    int64_t position;
} course;

/* As many runs in flight as asked for; when one fails, what follows begins behind it. */
static void train(subject *s, int depth, course *c) {
    int launched = 0, landed = 0;
    memset(c, 0, sizeof *c);
    while (landed < RUNS) {
        for (; launched < RUNS && launched - landed < depth; launched++) CHECK_OK(twi_program_launch(s->program));
        twi_landed result;
        tw_status status = twi_program_land(s->model, &result);
        c->loss[landed++] = result.loss;
        if (landed == FAULTY && depth == 1) c->before = task_state_of(s->model);
        if (landed != FAULTY + 1) {
            if (status) fail_msg("run %d: %s", landed, tw_last_error());
            continue;
        }
        assert_int_not_equal(status, TW_OK);
        snprintf(c->error, sizeof c->error, "%s", tw_last_error());
        c->after = task_state_of(s->model);
        c->attempts = s->model->store.attempts;
        c->position = tw_resident_get_position(s->resident);
        launched = landed; /* those behind it were dropped */
    }
    c->end = task_state_of(s->model);
}

/* What training changes, without the count of attempts, which goes on in a failed one. */
static bool same_but_attempts(const task_state *a, const task_state *b) {
    const size_t counters = 2 * sizeof(uint64_t);
    return a->size == b->size && memcmp(a->bytes, b->bytes, sizeof(uint64_t)) == 0 &&
           memcmp(a->bytes + counters, b->bytes + counters, a->size - counters) == 0;
}

static void free_course(course *c) {
    free(c->before.bytes);
    free(c->after.bytes);
    free(c->end.bytes);
}

static void a_fault_with_runs_in_flight_is_that_of_one_run(void **state) {
    (void)state;
    for (int label = 0; label < 2; label++) {
        subject cpu, device;
        course expected, one, many;
        open_subject(&cpu, "cpu", label);
        train(&cpu, 1, &expected);
        close_subject(&cpu);
        open_subject(&device, check_device(), label);
        train(&device, 1, &one);
        close_subject(&device);
        assert_int_equal(emu_count_live(), 0);
        open_subject(&device, check_device(), label);
        train(&device, TWI_IN_FLIGHT_MAX, &many);
        close_subject(&device);
        assert_string_equal(one.error, expected.error);
        assert_string_equal(many.error, expected.error);
        assert_non_null(strstr(expected.error, label ? "label 7 of sample 2" : "the loss is nan"));
        assert_true(same_but_attempts(&one.before, &one.after));
        assert_true(task_same(&many.after, &one.after));
        assert_int_equal(many.attempts, FAULTY + 1);
        assert_int_equal(many.attempts, expected.attempts);
        assert_int_equal(many.position, (FAULTY + 1) * TASK_BATCH);
        assert_int_equal(many.position, expected.position);
        assert_true(task_same(&many.end, &one.end));
        for (int i = 0; i < RUNS; i++)
            if (i != FAULTY) assert_true(fabs(many.loss[i] - expected.loss[i]) < 1e-4);
        free_course(&expected);
        free_course(&one);
        free_course(&many);
    }
}

/* ---- what a trainer makes of it ---- */

static void fit_tells_the_step_as_on_the_cpu(void **state) {
    (void)state;
    static subject s; /* for its data */
    char error[2][512];
    plant(&s, false);
    for (int i = 0; i < 2; i++) {
        tw_trainer_options options = task_options();
        options.no_normalization = options.no_shuffle = true;
        options.flip = false;
        options.crop_padding = 0;
        task t;
        tw_context *context;
        tw_dataset *data;
        CHECK_OK(tw_context_create(&context, i ? check_device() : "cpu", TW_OPTIONS(context, .threads = 1)));
        CHECK_OK(task_make(&t, context, &options));
        CHECK_OK(tw_dataset_create_from(&data, context, TW_F32, s.images, IN_ORDER, TASK_CHANNELS, TASK_SIDE, TASK_SIDE,
                                        s.labels, NULL));
        assert_int_equal(tw_trainer_fit(t.trainer, data, NULL), TW_ERROR_NUMERIC);
        snprintf(error[i], sizeof error[i], "%s", tw_last_error());
        assert_int_equal(tw_model_get_updates(t.model), FAULTY);
        CHECK_OK(tw_trainer_fit(t.trainer, t.train, NULL)); /* another set, and it goes on */
        tw_dataset_destroy(data);
        task_drop(&t);
        tw_context_destroy(context);
    }
    assert_string_equal(error[1], error[0]);
    assert_non_null(strstr(error[0], "epoch 1, step 4"));
}

/* ---- two devices ---- */

static void *fit_and_test(void *argument) {
    task *t = argument;
    CHECK_OK(tw_trainer_fit(t->trainer, t->train, t->test));
    CHECK_OK(tw_trainer_evaluate(t->trainer, t->test, &t->tested));
    return NULL;
}

/* Two contexts of one thread, each on its own device, and threads that have chosen none: every call enters its device. */
static void contexts_on_two_devices_go_their_ways(void **state) {
    (void)state;
    static const char *const names[] = {"cuda:0", "cuda:1"};
    const tw_trainer_options options = task_options();
    task t[2];
    task_state outcome[2];
    pthread_t thread;
    assert_int_equal(setenv("TALWEG_EMU_DEVICES", "2", 1), 0);
    emu_set_device_count(2);
    for (int i = 0; i < 2; i++) {
        tw_context *context;
        CHECK_OK(tw_context_create(&context, names[i], TW_OPTIONS(context, .threads = 1)));
        CHECK_OK(task_make(&t[i], context, &options));
    }
    for (int i = 0; i < 2; i++) { /* the thread stands on device 0, then on the other's */
        assert_int_equal(pthread_create(&thread, NULL, fit_and_test, &t[1 - i]), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        outcome[1 - i] = task_outcome(&t[1 - i]);
    }
    assert_true(task_same(&outcome[0], &outcome[1]));
    for (int i = 0; i < 2; i++) {
        tw_context *context = t[i].context;
        free(outcome[i].bytes);
        task_drop(&t[i]);
        tw_context_destroy(context);
    }
    assert_int_equal(emu_count_live(), 0);
    unsetenv("TALWEG_EMU_DEVICES");
    emu_reset();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_gives_the_same_bytes),
        cmocka_unit_test(a_fault_with_runs_in_flight_is_that_of_one_run),
        cmocka_unit_test(fit_tells_the_step_as_on_the_cpu),
        cmocka_unit_test(contexts_on_two_devices_go_their_ways),
    };
    self = argv[0];
    if (argc > 1 && strcmp(argv[1], "outcome") == 0) {
        printf("%016llx\n", (unsigned long long)outcome());
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

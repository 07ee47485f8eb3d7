/* Windows as calls: what may be called when, what is left of one that fails, and the memory they take. What they compute is
 * in test_accumulate.c. */
#include "program/model.h"
#include "small_task.h"
#include "subject.h"

#include <math.h>

static void windows_take_no_memory(void **state) {
    (void)state;
    subject s = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS);
    subject_samples(&s, 0, 41, SUBJECT_CLASSES);
    subject_step(&s, (int[]){16, 16, 9, 0});
    uint64_t before = tw_context_get_memory(task_context).allocations;
    for (int i = 0; i < 50; i++) subject_step(&s, (int[]){16, 16, 9, 0});
    assert_int_equal(tw_context_get_memory(task_context).allocations, before);
    subject_close(&s);
}

static void only_those_that_accumulate_sum(void **state) {
    (void)state;
    subject s = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS);
    tw_program *plain = subject_program(&s, 8, false);
    size_t gradients = tw_program_get_stats(plain).gradient_bytes;
    assert_null(strstr(tw_program_dump(plain, TW_PASS_LOWER), "accumulate"));
    assert_null(s.model->store.gradient_sums);
    tw_program *sums = subject_fed(&s, 0, 8);
    const char *dump = tw_program_dump(sums, TW_PASS_MEMORY), *update = strstr(dump, "update   commit.copy");
    assert_non_null(strstr(dump, "accumulate.gradient"));
    assert_non_null(strstr(dump, "accumulate.resume"));
    assert_true(update && strstr(update, "update   sgd.update")); /* running statistics wait for the update */
    assert_int_equal(tw_program_get_stats(sums).gradient_bytes, gradients); /* sums instead */
    tw_program_destroy(plain);
    subject_close(&s);
}

/* ---- windows that fail ---- */

static void a_fault_in_a_later_batch_changes_nothing(void **state) {
    (void)state;
    const int batches[] = {16, 16, 9, 0};
    subject s = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS),
            twin = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS);
    subject_samples(&s, 0, 41, SUBJECT_CLASSES);
    subject_samples(&twin, 0, 41, SUBJECT_CLASSES);
    subject_step(&s, batches);
    subject_step(&twin, batches);
    lasting before = subject_keep(&s);
    s.label[21] = 10;
    CHECK_OK(tw_window_open(s.model, 41));
    CHECK_OK(tw_program_run_gradients(subject_fed(&s, 0, 16)));
    CHECK_FAILS(tw_program_run_gradients(subject_fed(&s, 16, 16)), TW_ERROR_LABEL,
                "label 10 of sample 21 is outside 0 .. 9");
    CHECK_FAILS(tw_program_run_gradients(subject_fed(&s, 32, 9)), TW_ERROR_STATE, "a run of the open window failed");
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "a run of the open window failed");
    s.image[17 * SUBJECT_PIXELS] = INFINITY;
    CHECK_OK(tw_window_open(s.model, 41));
    CHECK_OK(tw_program_run_gradients(subject_fed(&s, 0, 16)));
    CHECK_FAILS(tw_program_run_gradients(subject_fed(&s, 16, 16)), TW_ERROR_LABEL, "sample 21");
    s.label[21] = twin.label[21];
    CHECK_OK(tw_window_open(s.model, 41));
    CHECK_OK(tw_program_run_gradients(subject_fed(&s, 0, 16)));
    CHECK_FAILS(tw_program_run_gradients(subject_fed(&s, 16, 16)), TW_ERROR_NUMERIC,
                "in run 4, batch 2 of its window; nothing was updated");
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "a run of the open window failed");
    tw_window_close(s.model);
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "no gradients of this program");
    assert_int_equal(tw_model_get_attempts(s.model), 4);
    subject_assert_kept(&s, &before);
    /* Neither sums nor shadows of what failed reach the next window. */
    s.image[17 * SUBJECT_PIXELS] = twin.image[17 * SUBJECT_PIXELS];
    twin.model->store.attempts = 4;
    assert_true(subject_step(&s, batches) == subject_step(&twin, batches));
    before = subject_keep(&twin);
    subject_assert_kept(&s, &before);
    subject_close(&s);
    subject_close(&twin);
}

/* ---- what may be called when ---- */

static void a_window_takes_what_was_announced(void **state) {
    (void)state;
    subject s = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS);
    subject_samples(&s, 0, 41, SUBJECT_CLASSES);
    subject_step(&s, (int[]){16, 0});
    lasting before = subject_keep(&s);
    tw_program *plain = subject_program(&s, 16, false), *evaluation;
    CHECK_OK(tw_program_create(&evaluation, s.model, 16,
                               TW_OPTIONS(program, .losses = &(tw_loss){s.loss, 0}, .loss_count = 1)));
    CHECK_FAILS(tw_window_open(NULL, 1), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_window_open(s.model, 0), TW_ERROR_ARGUMENT, "samples is 0");
    CHECK_OK(tw_window_open(s.model, 30));
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "has run 0 of its 30 samples");
    assert_true(isnan(tw_window_get_loss(s.model)));
    CHECK_OK(tw_program_run_gradients(subject_fed(&s, 0, 16)));
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "has run 16 of its 30 samples");
    CHECK_FAILS(tw_program_run_gradients(subject_fed(&s, 16, 16)), TW_ERROR_STATE,
                "batch is 16, but the open window lacks only 14 of its 30");
    CHECK_FAILS(tw_program_run(s.program[16]), TW_ERROR_STATE, "tw_program_run: a window of 30 samples is open");
    CHECK_FAILS(tw_program_run(plain), TW_ERROR_STATE,
                "a window of 30 samples is open (16 run), and this program does not sum");
    CHECK_FAILS(tw_program_run_gradients(plain), TW_ERROR_STATE, "does not sum gradients");
    CHECK_FAILS(tw_program_run_update(plain), TW_ERROR_STATE, "does not sum gradients");
    subject_assert_kept(&s, &before);
    /* What does not train may run in between, and what was refused has spoilt nothing. */
    s.program[0] = s.program[16];
    s.program[16] = evaluation;
    CHECK_OK(tw_program_run(subject_fed(&s, 0, 16)));
    s.program[16] = s.program[0];
    s.program[0] = NULL;
    CHECK_OK(tw_program_run_gradients(subject_fed(&s, 16, 14)));
    CHECK_OK(tw_program_run_update(s.program[14]));
    subject twin = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS);
    subject_samples(&twin, 0, 41, SUBJECT_CLASSES);
    subject_step(&twin, (int[]){16, 0});
    subject_step(&twin, (int[]){16, 14, 0});
    before = subject_keep(&twin);
    subject_assert_kept(&s, &before);
    CHECK_FAILS(tw_program_run_update(s.program[14]), TW_ERROR_STATE, "no gradients");
    tw_window_close(s.model);
    tw_window_close(NULL);
    assert_true(isnan(tw_window_get_loss(NULL)));
    tw_program_destroy(plain);
    tw_program_destroy(evaluation);
    subject_close(&twin);
    subject_close(&s);
}

static void a_window_left_open_is_dropped(void **state) {
    (void)state;
    subject s = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS),
            twin = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS);
    subject_samples(&s, 0, 41, SUBJECT_CLASSES);
    subject_samples(&twin, 0, 41, SUBJECT_CLASSES);
    CHECK_OK(tw_window_open(s.model, 32));
    CHECK_OK(tw_program_run_gradients(subject_fed(&s, 25, 16)));
    twin.model->store.attempts = 1;
    assert_true(subject_step(&s, (int[]){16, 16, 0}) == subject_step(&twin, (int[]){16, 16, 0}));
    CHECK_OK(tw_program_run_gradients(subject_fed(&s, 0, 16))); /* gradients of a run that is no window's .. */
    CHECK_OK(tw_window_open(s.model, 16));
    tw_window_close(s.model);
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "no gradients"); /* .. are dropped as well */
    lasting before = subject_keep(&twin);
    subject_assert_kept(&s, &before);
    tw_program *program;
    CHECK_FAILS(tw_program_create(&program, s.model, 4,
                                  TW_OPTIONS(program, .train = true, .losses = &(tw_loss){s.loss, 0}, .loss_count = 1,
                                             .accumulate = true)),
                TW_ERROR_ARGUMENT, "accumulate needs an optimizer");
    subject_close(&s);
    subject_close(&twin);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(windows_take_no_memory),
        with_context(only_those_that_accumulate_sum),
        with_context(a_fault_in_a_later_batch_changes_nothing),
        with_context(a_window_takes_what_was_announced),
        with_context(a_window_left_open_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

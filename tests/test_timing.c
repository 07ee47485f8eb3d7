/* Steps of a program are timed where that is asked for: who is counted, how often, and that results stay. */
#include "check_device.h"
#include "program_net.h"

#include <math.h>
#include <string.h>

enum { BATCH = 64, SIDE = 28, RUNS = 3 };

static tw_value *lenet(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, 10); }

static void run(const net *n, tw_program *program) {
    static float images[BATCH * SIDE * SIDE];
    static int32_t labels[BATCH];
    for (int i = 0; i < BATCH * SIDE * SIDE; i++) images[i] = (float)(i * 37 % 101) / 101 - 0.5f;
    for (int i = 0; i < BATCH; i++) labels[i] = i % 10;
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, BATCH * SIDE * SIDE));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, BATCH));
    CHECK_OK(tw_program_run(program));
}

static tw_step_info step_of(const tw_program *program, int index) {
    tw_step_info step = TW_STEP_INFO_INIT;
    CHECK_OK(tw_program_get_step(program, index, &step));
    return step;
}

/* One a chunk for what goes by sample; one a run for what is done at once; a few for a range. */
static uint64_t expected_calls(const tw_program *program, const tw_step_info *step, bool *exact) {
    const twi_segment *segment = &program->segment[step->segment];
    *exact = segment->split != TWI_BY_RANGE;
    if (segment->split == TWI_AT_ONCE) return 1;
    return segment->split == TWI_BY_RANGE ? 1 : (uint64_t)((segment->samples + segment->chunk - 1) / segment->chunk);
}

static void test_every_call_of_every_step_is_counted(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet, 1, SIDE);
    tw_program *program = make(&n, BATCH, false);
    CHECK_OK(tw_program_set_timing(program, true));
    for (int i = 0; i < RUNS; i++) run(&n, program);
    const tw_program_stats stats = tw_program_get_stats(program);
    double seconds = 0, flops = 0, bytes = 0, local = 0;
    for (int i = 0; i < stats.steps; i++) {
        bool exact;
        const tw_step_info step = step_of(program, i);
        const uint64_t calls = RUNS * expected_calls(program, &step, &exact);
        assert_true(exact ? step.calls == calls : step.calls >= calls);
        assert_true(step.seconds > 0 && step.seconds < 60);
        assert_string_equal(step.kernel, program->step[i].kernel->name);
        assert_string_equal(step.label, program->step[i].label);
        assert_string_equal(step.implementation, program->step[i].choice.implementation);
        assert_true(step.local_bytes >= 0 && step.local_bytes <= step.bytes);
        local += step.local_bytes;
        seconds += step.seconds;
        flops += step.flops;
        bytes += step.bytes;
    }
    assert_true(seconds < 600 && flops == stats.flops && bytes == stats.bytes);
    assert_true(local > 0.5 * bytes && local < bytes); /* most of LeNet is one segment */

    CHECK_OK(tw_program_set_timing(program, true)); /* from zero */
    assert_int_equal(step_of(program, 0).calls, 0);
    run(&n, program);
    assert_true(step_of(program, 1).calls > 0);
    CHECK_OK(tw_program_set_timing(program, false));
    run(&n, program);
    for (int i = 0; i < stats.steps; i++)
        assert_true(step_of(program, i).calls == 0 && step_of(program, i).seconds == 0);
    tw_program_destroy(program);
    close_net(&n);
}

/* The first weights after three steps, and the loss. */
static double trained(bool timed, float *weights, int64_t count) {
    net n;
    open_net(&n, lenet, 1, SIDE);
    tw_program *program = make(&n, BATCH, false);
    if (timed) CHECK_OK(tw_program_set_timing(program, true));
    for (int i = 0; i < RUNS; i++) run(&n, program);
    const double loss = tw_program_get_loss(program);
    CHECK_OK(tw_parameter_read(n.model, "conv1.weight", weights, count));
    tw_program_destroy(program);
    close_net(&n);
    return loss;
}

static void test_timing_changes_no_result(void **state) {
    (void)state;
    enum { COUNT = 6 * 1 * 5 * 5 };
    float plain[COUNT], timed[COUNT];
    assert_true(trained(false, plain, COUNT) == trained(true, timed, COUNT));
    assert_memory_equal(plain, timed, sizeof plain);
}

/* The arena moves when a larger program is made, and all are bound anew. */
static void test_timing_goes_on_when_memory_moves(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet, 1, SIDE);
    tw_program *program = make(&n, BATCH, false);
    CHECK_OK(tw_program_set_timing(program, true));
    run(&n, program);
    const uint64_t calls = step_of(program, 1).calls;
    tw_program *larger = make(&n, 8 * BATCH, false);
    run(&n, program);
    assert_int_equal(step_of(program, 1).calls, 2 * calls);
    tw_program_destroy(larger);
    tw_program_destroy(program);
    close_net(&n);
}

static void test_what_is_refused(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet, 1, SIDE);
    tw_program *program = make(&n, BATCH, false), *planned;
    tw_step_info step = TW_STEP_INFO_INIT;
    CHECK_OK(tw_program_create(&planned, n.model, BATCH,
                               TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1, .plan_only = true)));
    CHECK_FAILS(tw_program_set_timing(NULL, true), TW_ERROR_ARGUMENT, "program is NULL");
    CHECK_FAILS(tw_program_set_timing(planned, true), TW_ERROR_STATE, "plan_only");
    CHECK_FAILS(tw_program_get_step(NULL, 0, &step), TW_ERROR_ARGUMENT, "program is NULL");
    CHECK_FAILS(tw_program_get_step(program, 0, NULL), TW_ERROR_ARGUMENT, "out is NULL");
    CHECK_FAILS(tw_program_get_step(program, -1, &step), TW_ERROR_ARGUMENT, "no step -1");
    CHECK_FAILS(tw_program_get_step(program, tw_program_get_stats(program).steps, &step), TW_ERROR_ARGUMENT, "no step");
    step.size = 0;
    CHECK_FAILS(tw_program_get_step(program, 0, &step), TW_ERROR_ARGUMENT, "tw_program_get_step");
    assert_int_equal(step_of(planned, 0).calls, 0);
    tw_program_destroy(planned);
    tw_program_destroy(program);
    close_net(&n);
}

static void test_a_device_that_cannot_says_so(void **state) {
    (void)state;
    net n;
    if (!check_device() || strcmp(check_device(), "cpu") == 0) skip();
    open_net(&n, lenet, 1, SIDE);
    tw_program *program = make(&n, BATCH, false);
    CHECK_FAILS(tw_program_set_timing(program, true), TW_ERROR_UNSUPPORTED, "not timed on");
    CHECK_OK(tw_program_set_timing(program, false));
    tw_program_destroy(program);
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_of_every_step_is_counted),
        cmocka_unit_test(test_timing_changes_no_result),
        cmocka_unit_test(test_timing_goes_on_when_memory_moves),
        cmocka_unit_test(test_what_is_refused),
    };
    const struct CMUnitTest elsewhere[] = {
        cmocka_unit_test(test_a_device_that_cannot_says_so),
    };
    if (check_device() && strcmp(check_device(), "cpu") != 0) return cmocka_run_group_tests(elsewhere, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

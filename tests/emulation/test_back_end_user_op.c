/* A user's op with callbacks for both devices: enqueued into the program's graph it gives the CPU's numbers, its sums over
 * the batch begin at 0 in every run, it works in captured and plain runs alike, and a launch that fails names it. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "back_end_task.h"
#include "user_op_kernels.h"

#include <math.h>

enum { FEATURES = 5, COUNT = TASK_BATCH * FEATURES, STEPS = 5 };

static void forward_cuda(const tw_op_call *call) {
    *(int *)call->user += 1;
    square_forward(call->inputs[0].data, call->inputs[1].data, call->output->data, COUNT, call->stream);
}

static void backward_cuda(const tw_op_call *call) {
    square_backward(call->inputs[0].data, call->inputs[1].data, call->output_gradient->data,
                    call->input_gradients[0].data, call->input_gradients[1].data, COUNT, call->stream);
}

static void forward_cpu(const tw_op_call *call) {
    const float *x = call->inputs[0].data, *a = call->inputs[1].data;
    for (int64_t i = 0; i < call->output->dims[0] * FEATURES; i++)
        ((float *)call->output->data)[i] = a[0] * x[i] * x[i];
}

static void backward_cpu(const tw_op_call *call) {
    const float *x = call->inputs[0].data, *a = call->inputs[1].data, *dy = call->output_gradient->data;
    float *dx = call->input_gradients[0].data, *da = call->input_gradients[1].data;
    for (int64_t i = 0; i < call->inputs[0].dims[0] * FEATURES; i++) {
        if (dx) dx[i] = 2 * a[0] * x[i] * dy[i];
        da[0] += x[i] * x[i] * dy[i];
    }
}

typedef struct result {
    double loss[STEPS];
    float gradient, parameter;
    int enqueued; /* calls of forward_cuda */
} result;

static tw_status make_program(tw_program **out, tw_model *model, tw_value **labels) {
    static const tw_optimizer_options sgd = {.size = sizeof sgd, .learning_rate = 0.1};
    const int64_t one = 1;
    tw_value *x = tw_dense(model, tw_input_shaped(model, "x", 1, (int64_t[]){3}), FEATURES, NULL);
    tw_value *a = tw_weight(model, "a", 1, &one, TW_OPTIONS(weight, .init = {TW_INIT_CONSTANT, 0.5f}));
    x = tw_dense(model, tw_apply(model, "square", (tw_value *[]){x, a}, 2, NULL), TASK_CLASSES, NULL);
    *labels = tw_input_labels(model, "labels");
    const tw_loss loss = {tw_cross_entropy(model, x, *labels, NULL), 1};
    tw_status status = tw_model_build(model, x, TW_OPTIONS(model, .seed = 3));
    return status ? status
                  : tw_program_create(
                        out, model, TASK_BATCH,
                        TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &sgd));
}

static tw_context *context_with_op(const char *device, int *enqueued) {
    tw_context *context;
    CHECK_OK(tw_context_create(&context, device, TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(tw_op_register(context, "square",
                            TW_OPTIONS(op, .parameters = 1, .user = enqueued, .backward_ignores = TW_OP_OUTPUT,
                                       .forward_cpu = forward_cpu, .backward_cpu = backward_cpu,
                                       .forward_cuda = forward_cuda, .backward_cuda = backward_cuda)));
    return context;
}

static result train_on(const char *device) {
    result r = {.enqueued = 0};
    tw_context *context = context_with_op(device, &r.enqueued);
    tw_model *model;
    tw_program *program;
    tw_value *labels;
    float x[TASK_BATCH * 3];
    static const int32_t label[TASK_BATCH] = {0, 1, 2, 1};
    CHECK_OK(tw_model_create(&model, context));
    CHECK_OK(make_program(&program, model, &labels));
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < TASK_BATCH * 3; i++) x[i] = (float)((i * 7 + step) % 11) / 4 - 1;
        CHECK_OK(tw_program_write(program, tw_model_get_input(model), TW_F32, x, TASK_BATCH * 3));
        CHECK_OK(tw_program_write(program, labels, TW_I32, label, TASK_BATCH));
        CHECK_OK(tw_program_run(program));
        r.loss[step] = tw_program_get_loss(program);
    }
    CHECK_OK(tw_program_read_parameter_gradient(program, "a", &r.gradient, 1));
    CHECK_OK(tw_parameter_read(model, "a", &r.parameter, 1));
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
    return r;
}

static void it_is_a_part_of_the_graph(void **state) {
    (void)state;
    const result cpu = train_on("cpu"), device = train_on(check_device());
    setenv("TALWEG_SYNC", "1", 1);
    const result plain = train_on(check_device());
    unsetenv("TALWEG_SYNC");
    for (int step = 0; step < STEPS; step++) {
        assert_float_equal(device.loss[step], cpu.loss[step], 1e-6);
        assert_true(plain.loss[step] == device.loss[step]);
    }
    assert_true(fabsf(cpu.gradient) > 1e-3f);
    assert_float_equal(device.gradient, cpu.gradient, 1e-6);
    assert_float_equal(device.parameter, cpu.parameter, 1e-6);
    assert_int_equal(cpu.enqueued, 0);
    assert_int_equal(plain.enqueued, STEPS);
    assert_in_range(device.enqueued, 1, STEPS - 1); /* once a capture, not once a run */
}

static void a_launch_that_fails_names_it(void **state) {
    (void)state;
    int enqueued = 0;
    tw_context *context = context_with_op(check_device(), &enqueued);
    for (uint64_t k = 1;; k++) {
        tw_model *model;
        tw_program *program;
        tw_value *labels;
        CHECK_OK(tw_model_create(&model, context));
        enqueued = 0;
        emu_fail_call(k, "cudaLaunchKernel");
        tw_status status = make_program(&program, model, &labels);
        const bool failed = emu_failed_call() != NULL;
        emu_fail_call(0, NULL);
        const bool named = strstr(tw_last_error(), "square") != NULL;
        tw_program_destroy(program);
        tw_model_destroy(model);
        assert_true(failed);
        assert_int_equal(status, TW_ERROR_DEVICE);
        if (named) break;
        assert_int_equal(enqueued, 0); /* a step before it */
    }
    assert_int_equal(enqueued, 1);
    assert_non_null(strstr(tw_last_error(), "a user's op"));
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_a_part_of_the_graph),
        cmocka_unit_test(a_launch_that_fails_names_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

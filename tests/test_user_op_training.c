/* Ops of a user's in a network that is trained, saved and loaded: for any number of threads, and with every allocation
 * failing in turn. On the CPU, where such callbacks are; one for CUDA is in tests/emulation/test_back_end_user_op.c. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "program/model.h"
#include "small_task.h"
#include "user_ops.h"

#include <stdio.h>
#include <unistd.h>

enum { BATCH = 20, SAMPLES = 90, EPOCHS = 4, MOST = 5000 };

static tw_status register_all(tw_context *context, tw_op_layout layout) {
    tw_status status = user_ops_prelu(context, layout, NULL);
    if (status == TW_OK) status = user_ops_running_tanh(context);
    if (status == TW_OK) status = user_ops_noise(context);
    return status ? status : user_ops_center(context);
}

/* Beside batch norm and dropout, every kind of op: any layout or row-major, with workspace, random, at once. */
static tw_status build(tw_model *model) {
    tw_value *x = tw_input(model, 1, TASK_SIDE, TASK_SIDE);
    x = tw_batch_norm(model, tw_conv2d(model, x, TASK_CHANNELS, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL);
    x = tw_max_pool(model, user_ops_apply_prelu(model, x, "prelu1.weight"), 2, NULL);
    x = tw_dense(model, tw_dropout(model, x, 0.2f), 24, NULL);
    x = tw_apply(model, "noise", &x, 1, NULL);
    tw_value *b = tw_weight(model, "center1.bias", 1, (int64_t[]){24}, NULL);
    x = tw_apply(model, "center", (tw_value *[]){x, b}, 2, NULL);
    x = tw_dense(model, tw_apply(model, "running_tanh", &x, 1, NULL), TASK_CLASSES, NULL);
    return tw_model_build(model, x, TW_OPTIONS(model, .seed = 5));
}

static tw_status fit(tw_model *model, tw_dataset *data, int epochs) {
    tw_trainer *trainer;
    tw_status status = tw_trainer_create(
        &trainer, model, TW_OPTIONS(trainer, .epochs = epochs, .batch = BATCH, .no_normalization = true));
    if (status == TW_OK) status = tw_trainer_fit(trainer, data, NULL);
    tw_trainer_destroy(trainer);
    return status;
}

/* Trained with 1 thread or 2 the bits are the same, with copies and without; and what is learned shows. */
static void test_trains_alike(void **state) {
    (void)state;
    float *first[2] = {NULL, NULL};
    size_t count;
    for (int threads = 1; threads <= 2; threads++)
        for (int layout = TW_OP_ROW_MAJOR; layout <= TW_OP_ANY_LAYOUT; layout++) {
            tw_context *context;
            tw_model *model;
            CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = threads)));
            CHECK_OK(register_all(context, (tw_op_layout)layout));
            tw_dataset *data = task_data(context, SAMPLES, 1);
            CHECK_OK(tw_model_create(&model, context));
            CHECK_OK(build(model));
            CHECK_OK(fit(model, data, EPOCHS));
            float slopes[TASK_CHANNELS];
            CHECK_OK(tw_parameter_read(model, "prelu1.weight", slopes, TASK_CHANNELS));
            for (int c = 0; c < TASK_CHANNELS; c++) assert_true(slopes[c] != 0.25f);
            if (first[layout])
                assert_true(task_unchanged(model, first[layout]));
            else
                first[layout] = task_parameters(model, &count);
            tw_model_destroy(model);
            tw_dataset_destroy(data);
            tw_context_destroy(context);
        }
    for (int layout = 0; layout < 2; layout++) free(first[layout]);
}

/* Over several chunks every element has a draw of its own, the backward has the forward's, and the next run has others; a
 * batch cut into a window of two has those of the whole. */
static void test_draws(void **state) {
    (void)state;
    enum { FEATURES = 6, ROWS = 64, COUNT = ROWS * FEATURES, RUNS = 3 };
    static float ones[COUNT], y[RUNS][COUNT], dx[COUNT];
    static const tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    CHECK_OK(user_ops_noise(task_context));
    for (int cut = 0; cut < 2; cut++) {
        tw_model *model;
        tw_program *program;
        int rows = cut ? ROWS / 2 : ROWS, count = rows * FEATURES;
        CHECK_OK(tw_model_create(&model, task_context));
        tw_value *x = tw_input_shaped(model, "x", 1, (int64_t[]){FEATURES});
        tw_value *g = tw_input_shaped(model, "g", 1, (int64_t[]){FEATURES});
        tw_value *out = tw_apply(model, "noise", &x, 1, NULL);
        const tw_loss loss = {twi_graph_node(&model->graph, "dot", "loss", 2, (tw_value *[]){out, g}, NULL), 1};
        CHECK_OK(tw_model_build(model, out, TW_OPTIONS(model, .seed = 9)));
        CHECK_OK(tw_program_create(&program, model, rows,
                                   TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .outputs = &out,
                                              .output_count = 1, .gradients = &x, .gradient_count = 1,
                                              .optimizer = &sgd, .accumulate = cut)));
        if (cut) CHECK_OK(tw_window_open(model, ROWS));
        for (int run = 0; run < 2; run++) {
            float *found = cut ? &y[2][run * count] : y[run];
            CHECK_OK(tw_program_write(program, x, TW_F32, ones, count));
            CHECK_OK(tw_program_write(program, g, TW_F32, ones, count));
            CHECK_OK(tw_program_run_gradients(program));
            CHECK_OK(tw_program_read(program, out, found, count));
            CHECK_OK(tw_program_read_gradient(program, x, dx, count));
            for (int i = 0; i < count; i++) assert_true(dx[i] * ROWS == found[i]); /* a mean over the samples */
        }
        tw_program_destroy(program);
        tw_model_destroy(model);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_true(y[0][i] >= 0.5f && y[0][i] < 1.5f && y[0][i] != y[1][i]);
        for (int k = 0; k < i; k++) assert_true(y[0][i] != y[0][k]);
    }
    assert_memory_equal(y[0], y[2], sizeof y[0]);
}

static void test_learns_saves_and_loads(void **state) {
    (void)state;
    char folder[64] = "/tmp/talweg-user-op-XXXXXX", path[96];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    CHECK_OK(register_all(task_context, TW_OP_ANY_LAYOUT));
    tw_dataset *data = task_data(task_context, SAMPLES, 1), *test = task_data(task_context, SAMPLES, 2);
    tw_model *model[2];
    tw_metrics result[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tw_model_create(&model[i], task_context));
        CHECK_OK(build(model[i]));
        if (i == 0) CHECK_OK(fit(model[0], data, 8 * EPOCHS));
        if (i == 0) CHECK_OK(tw_model_save(model[0], path));
        if (i == 1) CHECK_OK(tw_model_load(model[1], path, NULL));
        tw_trainer *trainer;
        CHECK_OK(tw_trainer_create(&trainer, model[i], TW_OPTIONS(trainer, .batch = BATCH, .no_normalization = true)));
        CHECK_OK(tw_trainer_evaluate(trainer, test, &result[i]));
        tw_trainer_destroy(trainer);
    }
    assert_true(result[0].top1 > 0.9);
    assert_true(result[0].loss == result[1].loss && result[0].top1 == result[1].top1);
    size_t count;
    float *trained = task_parameters(model[0], &count);
    assert_true(task_unchanged(model[1], trained));
    free(trained);
    for (int i = 0; i < 2; i++) tw_model_destroy(model[i]);
    tw_dataset_destroy(test);
    tw_dataset_destroy(data);
    remove(path);
    rmdir(folder);
}

static bool fail_at(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    return index == *(const uint64_t *)user;
}

static void test_each_allocation(void **state) {
    (void)state;
    uint64_t at = 0;
    for (tw_status status = TW_ERROR_OUT_OF_MEMORY; status; at++) {
        tw_context *context;
        assert_true(at < MOST);
        CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 1)));
        tw_dataset *data = task_data(context, BATCH, 1);
        tw_model *model = NULL;
        tw_context_set_memory_hook(context, fail_at, &at);
        status = register_all(context, TW_OP_ROW_MAJOR);
        if (status == TW_OK) status = tw_model_create(&model, context);
        if (status == TW_OK) status = build(model);
        if (status == TW_OK) status = fit(model, data, 1);
        tw_context_set_memory_hook(context, NULL, NULL);
        if (status && status != TW_ERROR_OUT_OF_MEMORY) fail_msg("allocation %d: %s", (int)at, tw_last_error());
        tw_model_destroy(model);
        tw_dataset_destroy(data);
        tw_context_destroy(context);
    }
    assert_true(at > 50);
}

static int open_cpu(void **state) {
    (void)state;
    CHECK_OK(tw_context_create(&task_context, "cpu", TW_OPTIONS(context, .threads = 1)));
    return 0;
}

/* What was registered stays as long as the context. */
static int drop_context(void **state) {
    (void)state;
    tw_context_destroy(task_context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trains_alike),
        cmocka_unit_test_setup_teardown(test_draws, open_cpu, drop_context),
        cmocka_unit_test_setup_teardown(test_learns_saves_and_loads, open_cpu, drop_context),
        cmocka_unit_test(test_each_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

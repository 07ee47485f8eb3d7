/* Odd situations of memory, through the public functions: what is refused says by what and what would do, and nothing is lost; what is
 * possible works. And cases from other libraries' trouble: workspaces that are too large, memory that grows with every answer. */
#include "fit_floor.h"

#include <math.h>
#include <string.h>

static const setting small = {"convolutions", convolutions, 1, 8, 8, 19};

/* ---- workspaces ---- */

/* The loss of a run of a convolution of large workspaces under a limit, 0: none; what the limit can be, and what was told. */
static double loss_within(size_t limit, size_t *needed, lines *log) {
    enum { BATCH = 8, CHANNELS = 48, SIDE = 12 };
    static float x[BATCH * CHANNELS * SIDE * SIDE];
    const int32_t labels[BATCH] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = sinf((float)i);
    tw_context *context;
    tw_model *model;
    tw_program *program;
    double loss;
    CHECK_OK(tw_context_create(
        &context, check_device_or_cpu(),
        TW_OPTIONS(context, .threads = 2, .log = keep_line, .log_user = log, .log_level = TW_LOG_INFO)));
    CHECK_OK(tw_model_create(&model, context));
    tw_value *input = tw_input(model, CHANNELS, SIDE, SIDE), *target = tw_input_labels(model, "labels"),
             *y = tw_conv2d(model, tw_relu(model, tw_conv2d(model, input, 64, 3, TW_OPTIONS(conv2d, .padding = 1))), 8,
                            5, TW_OPTIONS(conv2d, .padding = 2)),
             *logits = tw_flatten(model, tw_global_avg_pool(model, y)),
             *value = tw_cross_entropy(model, logits, target, NULL);
    CHECK_OK(tw_model_build(model, logits, TW_OPTIONS(model, .seed = 9)));
    const tw_loss losses[] = {{value, 1}};
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.train = true;
    options.losses = losses;
    options.loss_count = 1;
    options.recompute = TW_RECOMPUTE_OFF;
    options.memory_limit = 1;
    CHECK_FAILS(tw_program_create(&program, model, BATCH, &options), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
    *needed = floor_named(tw_last_error());
    *log->text = 0;
    options.memory_limit = limit;
    CHECK_OK(tw_program_create(&program, model, BATCH, &options));
    CHECK_OK(tw_program_write(program, input, TW_F32, x, sizeof x / sizeof *x));
    CHECK_OK(tw_program_write(program, target, TW_I32, labels, BATCH));
    CHECK_OK(tw_program_run(program));
    loss = tw_program_get_loss(program);
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_context_destroy(context);
    return loss;
}

/* Without a limit they are what is fastest; with one the next smaller way is taken, and one line says so. */
static void a_workspace_that_does_not_fit_is_done_without(void **state) {
    (void)state;
    static lines plain, limited;
    size_t floor;
    const double free = loss_within(0, &floor, &plain), held = loss_within(floor, &floor, &limited);
    assert_true(fabs(free - held) <= 1e-5 * fabs(free));
    assert_null(strstr(plain.text, "workspaces of at most"));
    assert_true(check_device() || strstr(limited.text, "workspaces of at most")); /* an emulated one has none here */
}

/* ---- answers ---- */

static uint64_t requests;
static bool count_requests(void *user, uint64_t index, size_t bytes) {
    (void)user, (void)index, (void)bytes;
    requests++;
    return false;
}

/* Outputs are the caller's: a program takes nothing for an answer, and a trainer gives back all that it takes for a set. */
static void answers_take_no_memory(void **state) {
    (void)state;
    tw_model *model = open_model(task_context, &small);
    tw_dataset *data = open_data(task_context, &small);
    tw_value *input = tw_model_get_input(model), *output = tw_model_get_output(model);
    tw_program *program;
    tw_trainer *trainer;
    float x[64], y[10];
    int32_t classes[19];
    for (int i = 0; i < 64; i++) x[i] = (float)i / 64;
    CHECK_OK(tw_program_create(&program, model, 1, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    CHECK_OK(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .no_normalization = true)));
    CHECK_OK(tw_trainer_predict(trainer, data, classes));
    const int answers = check_device() ? 20 : 20000, sets = check_device() ? 3 : 300;
    size_t bytes = 0;
    for (int i = 0; i < answers + 2; i++) {
        if (i == 2) { /* the first may make what they share */
            bytes = tw_context_get_memory(task_context).bytes;
            requests = 0;
            tw_context_set_memory_hook(task_context, count_requests, NULL);
        }
        CHECK_OK(tw_program_write(program, input, TW_F32, x, 64));
        CHECK_OK(tw_program_run(program));
        CHECK_OK(tw_program_read(program, output, y, 10));
    }
    assert_int_equal(requests, 0);
    tw_context_set_memory_hook(task_context, NULL, NULL);
    for (int i = 0; i < sets; i++) CHECK_OK(tw_trainer_predict(trainer, data, classes));
    assert_int_equal(tw_context_get_memory(task_context).bytes, bytes);
    tw_trainer_destroy(trainer);
    tw_program_destroy(program);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
    tw_trainer_destroy(NULL);
    tw_program_destroy(NULL);
    tw_dataset_destroy(NULL);
    tw_model_destroy(NULL);
    tw_context_destroy(NULL);
}

/* ---- odd limits and batches ---- */

static tw_status fit_of(const setting *s, tw_trainer_options options, uint64_t *updates) {
    tw_model *model = open_model(task_context, s);
    tw_dataset *data = open_data(task_context, s);
    tw_trainer *trainer;
    size_t count;
    float *before = task_parameters(model, &count);
    options.size = sizeof options;
    if (!options.batch) options.batch = s->batch;
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    tw_status status = tw_trainer_fit(trainer, data, data);
    *updates = tw_model_get_updates(model);
    assert_true(status != TW_ERROR_OUT_OF_MEMORY || task_unchanged(model, before));
    free(before);
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
    return status;
}

static void odd_limits_are_kept_or_refused(void **state) {
    (void)state;
    uint64_t updates;
    CHECK_OK(fit_of(&small, (tw_trainer_options){.memory_limit = 0}, &updates)); /* none */
    assert_int_equal(updates, 3);
    CHECK_FAILS(fit_of(&small, (tw_trainer_options){.memory_limit = 1}, &updates), TW_ERROR_OUT_OF_MEMORY,
                "tw_trainer_fit: the memory limit of 1 B (1 bytes) cannot be kept: the least that batch");
    assert_non_null(strstr(tw_last_error(), "raise the limit, or use a smaller batch or model"));
    assert_int_equal(updates, 0);
    CHECK_OK(fit_of(&small, (tw_trainer_options){.memory_limit = SIZE_MAX}, &updates));
    CHECK_OK(fit_of(&small, (tw_trainer_options){.batch = 1}, &updates));
    assert_int_equal(updates, 19);
    CHECK_OK(fit_of(&small, (tw_trainer_options){.batch = 1000}, &updates)); /* more than there are */
    assert_int_equal(updates, 1);
    CHECK_FAILS(fit_of(&small, (tw_trainer_options){.batch = 1000, .drop_last = true}, &updates), TW_ERROR_ARGUMENT,
                "drop_last leaves no batch: batch is 1000, the data set has 19 samples");
}

/* More than there are samples, under a limit: run in parts, it is one update all the same. */
static void a_batch_of_all_and_more_is_run_in_parts(void **state) {
    (void)state;
    const setting s = {"convolutions", convolutions, 1, 8, 64, 19};
    learned whole = learn(&s, (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, 0, NULL);
    tw_trainer_options options = {.recompute = TW_RECOMPUTE_OFF, .memory_limit = 1};
    fit f;
    open_fit(&f, &s, options, 0);
    CHECK_FAILS(tw_trainer_fit(f.trainer, f.data, f.data), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
    options.memory_limit = floor_named(tw_last_error());
    close_fit(&f);
    learned parts = learn(&s, options, 0, NULL);
    assert_true(parts.parts > 64 / 19);
    assert_int_equal(whole.calls, epochs());
    assert_near(&whole, &parts);
    drop(&whole);
    drop(&parts);
}

/* Windows of three batches, of which the last has one of a single sample; under the floor, which is that of the window too. */
static void a_short_window_fits_the_floor(void **state) {
    (void)state;
    const setting s = {"convolutions", convolutions, 1, 8, 6, 25};
    uint64_t updates;
    tw_trainer_options options = {.accumulate = 3, .memory_limit = 1};
    CHECK_FAILS(fit_of(&s, options, &updates), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
    options.memory_limit = floor_named(tw_last_error());
    CHECK_OK(fit_of(&s, options, &updates));
    assert_int_equal(updates, 2); /* 18 samples, and 7 */
}

/* Masks are drawn again as they were. */
static void dropout_is_done_again_to_the_bit(void **state) {
    (void)state;
    learned plain = learn(&small, (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, 0, NULL),
            blocks = learn(&small, (tw_trainer_options){.recompute = TW_RECOMPUTE_BLOCKS}, 0, NULL);
    assert_int_equal(plain.count, blocks.count);
    assert_memory_equal(plain.parameters, blocks.parameters, plain.count * sizeof(float));
    drop(&plain);
    drop(&blocks);
}

/* An infinity in a weight: no scale helps, the collapse names where it comes from, and under a limit too. */
static void a_scale_that_collapses_says_so_under_a_limit(void **state) {
    (void)state;
    tw_model *model = open_model(task_context, &small);
    tw_dataset *data = open_data(task_context, &small);
    tw_trainer *trainer;
    size_t limit = 1, count;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tw_trainer_create(
            &trainer, model,
            TW_OPTIONS(trainer, .batch = 8, .epochs = 40, .precision = TW_PRECISION_F16, .memory_limit = limit)));
        if (!i) {
            CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
            limit = 4 * floor_named(tw_last_error()); /* with room to look for the culprit */
            tw_trainer_destroy(trainer);
        }
    }
    float weight[16 * 9] = {0};
    weight[5] = INFINITY;
    CHECK_OK(tw_parameter_write(model, "conv1.weight", weight, 16 * 9));
    float *before = task_parameters(model, &count);
    CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_NUMERIC, "conv1.weight");
    assert_true(task_unchanged(model, before));
    assert_int_equal(tw_model_get_updates(model), 0);
    free(before);
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
}

/* There is nothing to go back to but the beginning, which is gone back to once. */
static void going_back_in_the_first_step_ends(void **state) {
    (void)state;
    tw_model *model = open_model(task_context, &small);
    tw_dataset *data = open_data(task_context, &small);
    tw_trainer *trainer;
    size_t count;
    float bias[10] = {0};
    bias[3] = NAN;
    CHECK_OK(tw_parameter_write(model, "fc1.bias", bias, 10));
    float *before = task_parameters(model, &count);
    CHECK_OK(tw_trainer_create(&trainer, model,
                               TW_OPTIONS(trainer, .batch = 8, .epochs = 3, .on_non_finite = TW_NON_FINITE_ROLL_BACK)));
    CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_NUMERIC, "fc1.bias");
    assert_non_null(strstr(tw_last_error(), "the model went back to update 0 before, and has made none since"));
    assert_int_equal(tw_model_get_updates(model), 0);
    assert_true(task_unchanged(model, before));
    free(before);
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_workspace_that_does_not_fit_is_done_without),
        with_context(answers_take_no_memory),
        with_context(odd_limits_are_kept_or_refused),
        cmocka_unit_test(a_batch_of_all_and_more_is_run_in_parts),
        with_context(a_short_window_fits_the_floor),
        cmocka_unit_test(dropout_is_done_again_to_the_bit),
        with_context(a_scale_that_collapses_says_so_under_a_limit),
        with_context(going_back_in_the_first_step_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

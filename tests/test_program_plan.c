/* What a program is made of and for: the plan's fingerprint, contexts that only plan, a user's own ops. */
#include "program_net.h"

#include <math.h>

/* The same plan for any number of workers; another one for another batch or without fusion. */
static void test_plan_hash(void **state) {
    (void)state;
    uint64_t hash[4];
    for (int i = 0; i < 4; i++) {
        net n;
        CHECK_OK(tw_context_create(&n.context, i == 3 ? "plan:cpu" : "cpu", TW_OPTIONS(context, .threads = 1 + i)));
        CHECK_OK(tw_model_create(&n.model, n.context));
        n.x = tw_input(n.model, 3, 32, 32);
        n.labels = tw_input_labels(n.model, NULL);
        n.logits = resnet20(n.model, n.x);
        n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
        CHECK_OK(tw_model_build(n.model, n.logits, NULL));
        tw_program *program = make(&n, i == 2 ? 12 : 8, false);
        hash[i] = tw_program_get_plan_hash(program);
        tw_program *unfused = make(&n, 8, true);
        assert_true(tw_program_get_plan_hash(unfused) != hash[i]);
        tw_program_destroy(unfused);
        tw_program_destroy(program);
        close_net(&n);
    }
    assert_true(hash[0] == hash[1]);
    assert_true(hash[0] != hash[2]);
    assert_true(hash[0] == hash[3]);
    assert_true(tw_program_get_plan_hash(NULL) == 0);
}

/* A context that only plans knows the peak, takes none of it, and says so when asked to run. */
static void test_planning_context(void **state) {
    (void)state;
    net n;
    CHECK_OK(tw_context_create(&n.context, "plan:cpu", NULL));
    assert_string_equal(tw_context_get_device(n.context), "plan:cpu");
    CHECK_OK(tw_model_create(&n.model, n.context));
    n.x = tw_input(n.model, 3, 32, 32);
    n.labels = tw_input_labels(n.model, NULL);
    n.logits = resnet20(n.model, n.x);
    n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
    CHECK_OK(tw_model_build(n.model, n.logits, NULL));
    tw_program *program = make(&n, 4096, false);
    const size_t gigabyte = (size_t)1 << 30;
    assert_true(tw_program_get_stats(program).arena_bytes > gigabyte);
    assert_true(tw_context_get_memory(n.context).peak < gigabyte / 16);
    const int32_t label = 0;
    CHECK_FAILS(tw_program_run(program), TW_ERROR_STATE, "to plan only");
    CHECK_FAILS(tw_program_run_gradients(program), TW_ERROR_STATE, "to plan only");
    CHECK_FAILS(tw_program_write(program, n.labels, TW_I32, &label, 4096), TW_ERROR_STATE, "to plan only");
    assert_non_null(tw_program_dump(program, TW_PASS_MEMORY));
    tw_program_destroy(program);
    close_net(&n);
}

/* On any device: a program that is only planned has the plan of one that runs, and nothing is taken for it. */
static void test_plan_only(void **state) {
    (void)state;
    net n;
    open_net(&n, resnet20, 3, 32);
    tw_optimizer_options adamw = {.size = sizeof adamw, .kind = TW_ADAMW};
    tw_program *planned, *real;
    const int32_t label = 0;
    const tw_program_options *options = TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1,
                                                   .optimizer = &adamw, .accumulate = true, .plan_only = true);
    const size_t before = tw_context_get_device_memory(n.context).bytes;
    CHECK_OK(tw_program_create(&planned, n.model, 8, options));
    const tw_program_stats plan = tw_program_get_stats(planned);
    assert_true(tw_context_get_device_memory(n.context).bytes - before < plan.arena_bytes / 2);
    CHECK_FAILS(tw_program_run(planned), TW_ERROR_STATE, "plan_only");
    CHECK_FAILS(tw_program_write(planned, n.labels, TW_I32, &label, 8), TW_ERROR_STATE, "plan_only");
    tw_program_options running = *options;
    running.plan_only = false;
    CHECK_OK(tw_program_create(&real, n.model, 8, &running));
    const tw_program_stats stats = tw_program_get_stats(real);
    assert_memory_equal(&plan, &stats, sizeof stats);
    assert_true(plan.gradient_bytes > 0 && plan.state_bytes == 2 * plan.gradient_bytes); /* two moments, the sums */
    assert_true(tw_program_get_plan_hash(planned) == tw_program_get_plan_hash(real));
    tw_program_destroy(real);
    tw_program_destroy(planned);
    close_net(&n);
}

/* --- chunks --- */

static tw_value *wide(tw_model *model, tw_value *x) {
    return tw_dense(model, tw_global_avg_pool(model, tw_conv2d(model, x, 512, 1, NULL)), 10, NULL);
}
static tw_value *narrow(tw_model *model, tw_value *x) {
    return tw_dense(model, tw_global_avg_pool(model, tw_conv2d(model, x, 8, 1, NULL)), 10, NULL);
}

/* Samples of a chunk of the convolution of a net of 2048 channels on 7x7, half a megabyte a sample, batch 32. */
static int64_t chunk_of(tw_value *(*make)(tw_model *, tw_value *)) {
    net n;
    tw_program *program;
    int64_t chunk = 0;
    open_net(&n, make, 2048, 7);
    CHECK_OK(tw_program_create(&program, n.model, 32,
                               TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1, .plan_only = true)));
    for (int s = 0; s < program->step_count; s++)
        if (strncmp(program->step[s].kernel->name, "conv2d.forward", 14) == 0) chunk = program->step[s].chunk;
    tw_program_destroy(program);
    close_net(&n);
    return chunk;
}

/* One sample fills a chunk; 4 MB of weights want more of them, as long as there are eight chunks. */
static void test_chunks_of_many_weights(void **state) {
    (void)state;
    if (check_device()) skip();
    assert_int_equal(chunk_of(narrow), 1);
    assert_int_equal(chunk_of(wide), 4);
}

/* --- ops of a user's --- */

static tw_status square_infer(twi_infer *infer) {
    infer->output[0] = infer->input[0];
    return TW_OK;
}

static void square_run(const twi_call *call) { /* y = x^2 */
    const float *x = call->operand[0].data;
    float *y = call->operand[1].data;
    for (int64_t i = 0; i < twi_shape_count(&call->operand[1].shape); i++) y[i] = x[i] * x[i];
}

static void square_backward_run(const twi_call *call) { /* dx = 2 x dy */
    const float *dy = call->operand[0].data, *x = call->operand[1].data;
    float *dx = call->operand[2].data;
    for (int64_t i = 0; i < twi_shape_count(&call->operand[2].shape); i++) dx[i] = 2 * x[i] * dy[i];
}

static const twi_kernel square_kernel = {
    .name = "square.forward",
    .operand_count = 2,
    .split = TWI_BY_SAMPLE,
    .run = square_run,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}}};
static const twi_kernel square_backward_kernel = {.name = "square.backward",
                                                  .operand_count = 3,
                                                  .split = TWI_BY_SAMPLE,
                                                  .run = square_backward_run,
                                                  .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                                                              {"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                                                              {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}}};

static void square_forward(twi_lower *lower) {
    twi_lower_step(lower, &square_kernel, (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0)});
}

static void square_backward(twi_lower *lower) {
    twi_lower_step(lower, &square_backward_kernel,
                   (twi_ref[]){twi_lower_output_gradient(lower, 0), twi_lower_input(lower, 0),
                               twi_lower_input_gradient(lower, 0)});
}

static const twi_kernel *const square_kernels[] = {&square_kernel, &square_backward_kernel, NULL};
static const twi_op square = {.name = "square",
                              .formula = "y = x^2",
                              .inputs_min = 1,
                              .inputs_max = 1,
                              .outputs = 1,
                              .infer = square_infer,
                              .forward = square_forward,
                              .backward = square_backward,
                              .kernels = square_kernels};

/* An op added to a context works like the built-in ones, there and nowhere else. */
static void test_user_op(void **state) {
    (void)state;
    net n;
    CHECK_OK(tw_context_create(&n.context, "cpu", NULL));
    CHECK_OK(twi_registry_add(n.context, &square));
    CHECK_FAILS(twi_registry_add(n.context, &square), TW_ERROR_ARGUMENT, "'square'");
    assert_non_null(twi_registry_find(n.context->registry, "conv2d"));
    assert_null(twi_registry_find(&twi_registry_builtin, "square"));
    CHECK_OK(tw_model_create(&n.model, n.context));
    n.x = tw_input_shaped(n.model, "x", 1, (int64_t[]){2});
    tw_value *y = twi_graph_node(&n.model->graph, "square", "square1", 1, &n.x, NULL);
    n.labels = tw_input_labels(n.model, NULL);
    n.loss = (tw_loss){tw_cross_entropy(n.model, y, n.labels, NULL), 1};
    CHECK_OK(tw_model_build(n.model, y, NULL));
    tw_program *program;
    CHECK_OK(tw_program_create(&program, n.model, 1,
                               TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1, .outputs = &y,
                                          .output_count = 1, .gradients = &n.x, .gradient_count = 1)));
    const float x[2] = {1, -1};
    const int32_t label = 0;
    float found[2];
    CHECK_OK(tw_program_write(program, n.x, TW_F32, x, 2));
    CHECK_OK(tw_program_write(program, n.labels, TW_I32, &label, 1));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, y, found, 2));
    assert_true(found[0] == 1 && found[1] == 1);
    CHECK_OK(tw_program_read_gradient(program, n.x, found, 2)); /* dy = (-1/2, 1/2) */
    assert_true(fabsf(found[0] + 1) < 1e-6f && fabsf(found[1] + 1) < 1e-6f);
    tw_program_destroy(program);
    close_net(&n);
}

/* What an implementation sums weights' gradients in can be larger than they are (Winograd's, four times in halves): it is what groups are few for. */
static void test_groups_of_large_sums(void **state) {
    (void)state;
    static const tw_precision precisions[] = {TW_PRECISION_F32, TW_PRECISION_BF16};
    const size_t most = 32 << 20;
    for (int i = 0; i < 2 * 2; i++) {
        const size_t limit = i / 2 ? 4 << 20 : 0; /* of a workspace */
        net n;
        tw_program *program;
        CHECK_OK(tw_context_create(&n.context, "plan:cpu", NULL));
        CHECK_OK(tw_model_create(&n.model, n.context));
        n.x = tw_input(n.model, 128, 16, 16);
        n.labels = tw_input_labels(n.model, NULL);
        tw_value *x = n.x;
        for (int k = 0; k < 2; k++) x = tw_conv2d(n.model, x, 256, 3, TW_OPTIONS(conv2d, .padding = 1));
        n.logits = tw_dense(n.model, tw_global_avg_pool(n.model, x), 2, NULL);
        n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
        CHECK_OK(tw_model_build(n.model, n.logits, NULL));
        CHECK_OK(tw_program_create(
            &program, n.model, 64,
            TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1, .precision = precisions[i % 2])));
        if (limit) {
            const size_t now = twi_program_bytes(program);
            tw_program_destroy(program);
            CHECK_OK(tw_program_create(&program, n.model, 64,
                                       TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1,
                                                  .precision = precisions[i % 2], .recompute = TW_RECOMPUTE_OFF,
                                                  .memory_limit = now - now / 3)));
            assert_true(program->workspace_limit < most);
        }
        for (int k = 0; k < program->step_count; k++) {
            const twi_step *step = &program->step[k];
            for (int o = 0; o < step->kernel->operand_count; o++) {
                size_t sums;
                CHECK_OK(twi_program_partial_bytes(program, step, o, &sums));
                if (sums > (limit ? program->workspace_limit : most) && step->groups > (limit ? 1 : 2))
                    fail_msg("%s: %d groups take %zu bytes", step->label, step->groups, sums);
            }
        }
        tw_program_destroy(program);
        close_net(&n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_of_large_sums),   cmocka_unit_test(test_plan_hash),
        cmocka_unit_test(test_planning_context),       cmocka_unit_test(test_plan_only),
        cmocka_unit_test(test_chunks_of_many_weights), cmocka_unit_test(test_user_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

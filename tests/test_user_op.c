/* Ops defined outside the library: values and gradients against PyTorch, closed forms and central differences; layouts;
 * what a definition may not say; faults; two contexts; memory. Training with them is in test_user_op_training.c. */
#include "check.h"
#include "golden/prelu.h"
#include "program/program.h"
#include "user_ops.h"

#include <math.h>
#include <stdio.h>

enum {
    BATCH = 2,
    CHANNELS = 3,
    HEIGHT = 2,
    WIDTH = 5,
    PIXELS = HEIGHT * WIDTH,
    SAMPLE = CHANNELS * PIXELS,
    ALL = BATCH * SAMPLE
};

/* A model of one op whose loss is the mean over samples of sum y * g. */
typedef struct probe {
    tw_context *context;
    tw_model *model;
    tw_value *x, *y, *g;
    tw_program *program;
} probe;

static void open_probe(probe *p, const int64_t *dims, int rank) {
    *p = (probe){0};
    CHECK_OK(tw_context_create(&p->context, "cpu", TW_OPTIONS(context, .threads = 2)));
    CHECK_OK(tw_model_create(&p->model, p->context));
    p->x = tw_input_shaped(p->model, "x", rank, dims);
}

static const int64_t image[] = {CHANNELS, HEIGHT, WIDTH}, flat[] = {SAMPLE};

static void finish_probe(probe *p, tw_value *y, int64_t batch) {
    int64_t dims[TW_MAX_RANK];
    p->y = y;
    for (int axis = 1; axis < tw_value_get_rank(y); axis++) dims[axis - 1] = tw_value_get_dim(y, axis);
    p->g = tw_input_shaped(p->model, "g", tw_value_get_rank(y) - 1, dims);
    tw_value *loss = twi_graph_node(&p->model->graph, "dot", "loss", 2, (tw_value *[]){y, p->g}, NULL);
    CHECK_OK(tw_model_build(p->model, y, NULL));
    CHECK_OK(tw_program_create(&p->program, p->model, batch,
                               TW_OPTIONS(program, .train = true, .losses = (tw_loss[]){{loss, 1}}, .loss_count = 1,
                                          .outputs = &p->y, .output_count = 1, .gradients = &p->x, .gradient_count = 1,
                                          .record_passes = true)));
}

static void run_probe(probe *p, const float *x, const float *g, int64_t count, float *y, float *dx) {
    CHECK_OK(tw_program_write(p->program, p->x, TW_F32, x, count));
    CHECK_OK(tw_program_write(p->program, p->g, TW_F32, g, count));
    CHECK_OK(tw_program_run(p->program));
    CHECK_OK(tw_program_read(p->program, p->y, y, count));
    CHECK_OK(tw_program_read_gradient(p->program, p->x, dx, count));
}

static void close_probe(probe *p) {
    tw_program_destroy(p->program);
    tw_model_destroy(p->model);
    tw_context_destroy(p->context);
}

static void assert_near(const float *found, const float *expected, int count, float tolerance) {
    for (int i = 0; i < count; i++)
        if (!(fabsf(found[i] - expected[i]) <= tolerance))
            fail_msg("element %d is %.8g, expected %.8g", i, (double)found[i], (double)expected[i]);
}

static bool has_step(probe *p, const char *kernel) {
    return strstr(tw_program_dump(p->program, TW_PASS_LAYOUT), kernel) != NULL;
}

/* ---- values ---- */

/* Images lie channels innermost: an op that wants them row-major gets copies, one that goes by strides does not. */
static void test_prelu_as_in_pytorch(void **state) {
    (void)state;
    for (int layout = TW_OP_ROW_MAJOR; layout <= TW_OP_ANY_LAYOUT; layout++) {
        probe p;
        float y[ALL], dx[ALL], da[CHANNELS];
        prelu_seen seen = {0, 0, 0};
        open_probe(&p, image, 3);
        CHECK_OK(user_ops_prelu(p.context, (tw_op_layout)layout, &seen)); /* known to models made before */
        finish_probe(&p, user_ops_apply_prelu(p.model, p.x, "prelu.weight"), BATCH);
        CHECK_OK(tw_parameter_write(p.model, "prelu.weight", prelu_slope, CHANNELS));
        run_probe(&p, prelu_x, prelu_g, ALL, y, dx);
        CHECK_OK(tw_program_read_parameter_gradient(p.program, "prelu.weight", da, CHANNELS));
        assert_near(y, prelu_y, ALL, 1e-6f);
        assert_near(dx, prelu_dx, ALL, 1e-6f);
        assert_near(da, prelu_dslope, CHANNELS, 1e-5f);
        assert_int_equal(has_step(&p, "reshape.copy"), layout == TW_OP_ROW_MAJOR);
        assert_true(seen.dx && seen.da && !seen.y);
        close_probe(&p);
    }
}

/* Nobody wants the gradient of a frozen parameter. */
static void test_frozen_parameter(void **state) {
    (void)state;
    probe p;
    float y[ALL], dx[ALL];
    prelu_seen seen = {0, 0, 0};
    open_probe(&p, image, 3);
    CHECK_OK(user_ops_prelu(p.context, TW_OP_ROW_MAJOR, &seen));
    tw_value *x = user_ops_apply_prelu(p.model, p.x, "prelu.weight");
    CHECK_OK(tw_model_set_trainable(p.model, "prelu", false));
    finish_probe(&p, x, BATCH);
    run_probe(&p, prelu_x, prelu_g, ALL, y, dx);
    assert_true(seen.dx && !seen.da);
    close_probe(&p);
}

/* The order in which the sum runs is logical, whatever the memory's; the workspace is the worker's own. */
static void test_closed_form(void **state) {
    (void)state;
    for (int reverse = 0; reverse < 2; reverse++) {
        probe p;
        float y[ALL], dx[ALL], expected[ALL], gradient[ALL];
        const running_attrs attrs = {.gain = 0.75f, .reverse = reverse};
        open_probe(&p, image, 3);
        CHECK_OK(user_ops_running_tanh(p.context));
        tw_value *output =
            tw_apply(p.model, "running_tanh", &p.x, 1, TW_OPTIONS(apply, .name = "sum", .attrs = &attrs));
        assert_int_equal(tw_value_get_dim(output, 1), SAMPLE);
        finish_probe(&p, output, BATCH);
        run_probe(&p, prelu_x, prelu_g, ALL, y, dx);
        for (int n = 0; n < BATCH; n++) {
            double sum = 0;
            for (int k = 0; k < SAMPLE; k++) {
                int i = n * SAMPLE + (reverse ? SAMPLE - 1 - k : k);
                sum += (double)prelu_x[i];
                expected[i] = (float)tanh(0.75 * sum);
            }
            for (int k = 0; k < SAMPLE; k++) {
                gradient[n * SAMPLE + k] = 0;
                for (int i = 0; i < SAMPLE; i++)
                    if (reverse ? i <= k : i >= k)
                        gradient[n * SAMPLE + k] += 0.75f * (1 - expected[n * SAMPLE + i] * expected[n * SAMPLE + i]) *
                                                    prelu_g[n * SAMPLE + i] / BATCH;
            }
        }
        assert_near(y, expected, ALL, 1e-5f);
        assert_near(dx, gradient, ALL, 1e-5f);
        assert_true(tw_program_get_stats(p.program).flops == 7.0 * ALL);
        assert_non_null(strstr(tw_model_dump(p.model), reverse ? "gain=0.75 reverse=1" : "gain=0.75\n"));
        close_probe(&p);
    }
}

static double loss_at(probe *p, const float *x, const float *g, int64_t count) {
    float y[4096];
    CHECK_OK(tw_program_write(p->program, p->x, TW_F32, x, count));
    CHECK_OK(tw_program_write(p->program, p->g, TW_F32, g, count));
    CHECK_OK(tw_program_run(p->program));
    CHECK_OK(tw_program_read(p->program, p->y, y, count));
    double loss = 0; /* in double: the program's own has seven digits */
    for (int64_t i = 0; i < count; i++) loss += (double)y[i] * (double)g[i];
    return loss / (double)tw_program_get_batch(p->program);
}

/* Over a batch of several chunks: the gradients of values and of parameters are those of the loss. */
static void test_central_differences(void **state) {
    (void)state;
    enum { SAMPLES = 37, FEATURES = 6, COUNT = SAMPLES * FEATURES };
    const float step = 1e-2f;
    for (int at_once = 0; at_once < 2; at_once++) {
        probe p;
        float x[COUNT], g[COUNT], y[COUNT], dx[COUNT], a[FEATURES], da[FEATURES];
        open_probe(&p, (int64_t[]){FEATURES}, 1);
        CHECK_OK(user_ops_prelu(p.context, TW_OP_ROW_MAJOR, NULL));
        CHECK_OK(user_ops_center(p.context));
        CHECK_OK(user_ops_running_tanh(p.context));
        tw_value *sum = tw_apply(p.model, "running_tanh", &p.x, 1, NULL);
        tw_value *w = tw_weight(p.model, "a", 1, (int64_t[]){FEATURES}, NULL);
        finish_probe(&p, tw_apply(p.model, at_once ? "center" : "prelu", (tw_value *[]){sum, w}, 2, NULL), SAMPLES);
        for (int i = 0; i < COUNT; i++) {
            x[i] = prelu_x[i % ALL] * (1 + 0.01f * (float)(i / ALL));
            g[i] = prelu_g[(7 * i) % ALL];
        }
        for (int run = 0; run < 2; run++) run_probe(&p, x, g, COUNT, y, dx); /* sums begin at 0 again */
        CHECK_OK(tw_program_read_parameter_gradient(p.program, "a", da, FEATURES));
        for (int i = 0; i < COUNT; i += 5) {
            float at = x[i];
            x[i] = at + step;
            double above = loss_at(&p, x, g, COUNT);
            x[i] = at - step;
            double below = loss_at(&p, x, g, COUNT);
            x[i] = at;
            if (fabs((above - below) / (2 * (double)step) - (double)dx[i]) > 2e-3)
                fail_msg("dx[%d] is %g, expected %g", i, (double)dx[i], (above - below) / (2 * (double)step));
        }
        CHECK_OK(tw_parameter_read(p.model, "a", a, FEATURES));
        for (int i = 0; i < FEATURES; i++) {
            float at = a[i];
            double loss[2];
            for (int side = 0; side < 2; side++) {
                a[i] = side ? at + step : at - step;
                CHECK_OK(tw_parameter_write(p.model, "a", a, FEATURES));
                loss[side] = loss_at(&p, x, g, COUNT);
            }
            a[i] = at;
            if (fabs((loss[1] - loss[0]) / (2 * (double)step) - (double)da[i]) > 1e-3)
                fail_msg("da[%d] is %g, expected %g", i, (double)da[i], (loss[1] - loss[0]) / (2 * (double)step));
        }
        close_probe(&p);
    }
}

/* Initial values by fans: one axis is its own fan. */
static void test_weights(void **state) {
    (void)state;
    probe p;
    float values[24];
    tw_parameter found;
    open_probe(&p, flat, 1);
    assert_non_null(tw_weight(p.model, "w", 2, (int64_t[]){4, 6}, TW_OPTIONS(weight, .decayed = true)));
    tw_scope_begin(p.model, "block");
    assert_string_equal(tw_value_get_name(tw_weight(p.model, NULL, 1, (int64_t[]){16}, NULL)), "block.weight1");
    tw_scope_end(p.model);
    CHECK_OK(tw_model_build(p.model, tw_relu(p.model, p.x), TW_OPTIONS(model, .seed = 3)));
    CHECK_OK(tw_parameter_read(p.model, "w", values, 24));
    float most = 0;
    for (int i = 0; i < 24; i++) most = fmaxf(most, fabsf(values[i]));
    assert_true(most <= 0.40825f && most > 0.3f); /* 1 / sqrt(6) */
    CHECK_OK(tw_parameter_read(p.model, "block.weight1", values, 16));
    most = 0;
    for (int i = 0; i < 16; i++) most = fmaxf(most, fabsf(values[i]));
    assert_true(most <= 0.25f && most > 0.15f); /* 1 / sqrt(16) */
    CHECK_OK(tw_model_get_parameter(p.model, 0, &found));
    assert_true(found.learned && found.trainable && found.decayed && found.dims[1] == 6);
    close_probe(&p);
}

/* ---- what is refused ---- */

static void nothing(const tw_op_call *call) { (void)call; }

static void test_registering(void **state) {
    (void)state;
    static const tw_op_attr good[] = {{"a", TW_OP_INT, 0, 0}, {"b", TW_OP_FLOAT, 4, 0}};
    static const tw_op_attr twice[] = {{"a", TW_OP_INT, 0, 0}, {"a", TW_OP_FLOAT, 4, 0}};
    static const tw_op_attr outside[] = {{"a", TW_OP_INTS, 0, 0}}, odd[] = {{"a", TW_OP_INT, 2, 0}};
    static const tw_op_attr unnamed[] = {{"a b", TW_OP_INT, 0, 0}}, untyped[] = {{"a", (tw_op_attr_type)9, 0, 0}};
    const struct {
        const char *name, *says;
        const tw_op_options *options;
    } rows[] = {
        {"", "no name of an op", TW_OPTIONS(op, .forward_cpu = nothing)},
        {"a.b", "'a.b' is no name of an op", TW_OPTIONS(op, .forward_cpu = nothing)},
        {"1st", "a letter first", TW_OPTIONS(op, .forward_cpu = nothing)},
        {"a_name_of_more_than_forty_letters_is_too_long", "at most 40", TW_OPTIONS(op, .forward_cpu = nothing)},
        {"relu", "op 'relu': the context has an op of that name", TW_OPTIONS(op, .forward_cpu = nothing)},
        {"mine", "op 'mine': the context has an op of that name", TW_OPTIONS(op, .forward_cpu = nothing)},
        {"a", "op 'a' has no forward", NULL},
        {"a", "op 'a' has no forward", TW_OPTIONS(op, .backward_cpu = nothing)},
        {"a", "backward without a forward", TW_OPTIONS(op, .forward_cpu = nothing, .backward_cuda = nothing)},
        {"a", "5 inputs and 0 parameters", TW_OPTIONS(op, .inputs = 5, .forward_cpu = nothing)},
        {"a", "1 inputs and 4 parameters", TW_OPTIONS(op, .parameters = 4, .forward_cpu = nothing)},
        {"a", "-1 inputs", TW_OPTIONS(op, .inputs = -1, .forward_cpu = nothing)},
        {"a", "layout 7", TW_OPTIONS(op, .layout = (tw_op_layout)7, .forward_cpu = nothing)},
        {"a", "backward_ignores is 0x2", TW_OPTIONS(op, .backward_ignores = TW_OP_INPUT(1), .forward_cpu = nothing)},
        {"a", "attrs_size 8 with 1 rows", TW_OPTIONS(op, .attrs_size = 8, .attr_count = 1, .forward_cpu = nothing)},
        {"a", "attrs_size 5000", TW_OPTIONS(op, .attrs_size = 5000, .forward_cpu = nothing)},
        {"a", "two attributes are called 'a'",
         TW_OPTIONS(op, .attrs_size = 8, .attrs = twice, .attr_count = 2, .forward_cpu = nothing)},
        {"a", "'a', 48 bytes at 0, is no field",
         TW_OPTIONS(op, .attrs_size = 8, .attrs = outside, .attr_count = 1, .forward_cpu = nothing)},
        {"a", "'a', 4 bytes at 2, is no field",
         TW_OPTIONS(op, .attrs_size = 8, .attrs = odd, .attr_count = 1, .forward_cpu = nothing)},
        {"a", "attrs[0] has the name 'a b'",
         TW_OPTIONS(op, .attrs_size = 8, .attrs = unnamed, .attr_count = 1, .forward_cpu = nothing)},
        {"a", "type 9", TW_OPTIONS(op, .attrs_size = 8, .attrs = untyped, .attr_count = 1, .forward_cpu = nothing)},
        {"a", "size field is 0", &(tw_op_options){.forward_cpu = nothing}},
    };
    tw_context *context;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(tw_op_register(context, "mine",
                            TW_OPTIONS(op, .attrs_size = 8, .attrs = good, .attr_count = 2, .forward_cpu = nothing)));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_FAILS(tw_op_register(context, rows[i].name, rows[i].options), TW_ERROR_ARGUMENT, rows[i].says);
    CHECK_FAILS(tw_op_register(NULL, "a", TW_OPTIONS(op, .forward_cpu = nothing)), TW_ERROR_ARGUMENT, "context");
    tw_context_destroy(context);
}

static tw_status refuse_silently(const tw_op_call *call, tw_op_tensor *output) {
    (void)call, (void)output;
    return TW_ERROR_SHAPE;
}
static tw_status lose_batch(const tw_op_call *call, tw_op_tensor *output) {
    (void)call;
    output->dims[0] = 3;
    return TW_OK;
}
static tw_status make_empty(const tw_op_call *call, tw_op_tensor *output) {
    (void)call;
    output->dims[1] = 0;
    return TW_OK;
}
static tw_status make_rank(const tw_op_call *call, tw_op_tensor *output) {
    (void)call;
    output->rank = 7;
    return TW_OK;
}

static void test_applying(void **state) {
    (void)state;
    static const char *const ops[] = {"silent", "batchless", "empty", "deep"};
    tw_status (*const rules[])(const tw_op_call *, tw_op_tensor *) = {refuse_silently, lose_batch, make_empty,
                                                                      make_rank};
    static const char *const says[] = {"no op 'conv2d' was registered",
                                       "no op 'absent' was registered",
                                       "takes 2 to 2 inputs, got 1",
                                       "prelu 'prelu1': input 1 [1, 30] has a batch axis; give a parameter",
                                       "input 0 is NULL",
                                       "running_tanh 'running_tanh1': gain is -1, expected more than 0",
                                       "silent 'silent1': the op's shape rule refuses",
                                       "batchless 'batchless1': the op's shape rule made no output shape",
                                       "made no output shape",
                                       "made no output shape",
                                       "prelu 'prelu1': parameter [3, 1, 1, 1] lies O,H,W,I",
                                       "input 0 [1] holds class indices",
                                       "tw_weight 'w': 0 axes",
                                       "size 0 of axis 0 is below 1",
                                       "parameter 'w'",
                                       "takes 1 to 1 inputs, got 400"}; /* before any of them is looked at */
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        probe p;
        open_probe(&p, flat, 1);
        CHECK_OK(user_ops_prelu(p.context, TW_OP_ROW_MAJOR, NULL));
        CHECK_OK(user_ops_running_tanh(p.context));
        for (int k = 0; k < 4; k++)
            CHECK_OK(tw_op_register(p.context, ops[k], TW_OPTIONS(op, .forward_cpu = nothing, .infer = rules[k])));
        tw_value *pair[] = {p.x, p.x}, *nobody[] = {NULL, p.x};
        tw_value *y = NULL;
        const running_attrs bad = {.gain = -1};
        if (i < 2) y = tw_apply(p.model, i ? "absent" : "conv2d", pair, 1, NULL);
        if (i == 2) y = tw_apply(p.model, "prelu", pair, 1, NULL);
        if (i == 3) y = tw_apply(p.model, "prelu", pair, 2, NULL);
        if (i == 4) y = tw_apply(p.model, "prelu", nobody, 2, NULL);
        if (i == 5) y = tw_apply(p.model, "running_tanh", &p.x, 1, TW_OPTIONS(apply, .attrs = &bad));
        if (i >= 6 && i < 10) y = tw_apply(p.model, ops[i - 6], &p.x, 1, NULL);
        if (i == 10) {
            pair[1] = tw_weight(p.model, "w", 4, (int64_t[]){3, 1, 1, 1}, NULL);
            y = tw_apply(p.model, "prelu", pair, 2, NULL);
        }
        if (i == 11) y = tw_apply(p.model, "running_tanh", (tw_value *[]){tw_input_labels(p.model, NULL)}, 1, NULL);
        if (i == 12) y = tw_weight(p.model, "w", 0, NULL, NULL);
        if (i == 13) y = tw_weight(p.model, "w", 1, (int64_t[]){0}, NULL);
        if (i == 14) y = tw_weight(p.model, "w", 1, (int64_t[]){1}, TW_OPTIONS(weight, .init = {(tw_init_kind)99, 0}));
        if (i == 15) y = tw_apply(p.model, "running_tanh", &p.x, 400, NULL);
        assert_null(y);
        tw_status status = tw_model_build(p.model, p.x, NULL);
        if (status == TW_OK || !strstr(tw_last_error(), says[i])) fail_msg("%d: \"%s\"", (int)i, tw_last_error());
        close_probe(&p);
    }
}

/* ---- while running ---- */

/* The sample is named by its place in the batch, the smallest of several; nothing is updated. */
static void test_fault(void **state) {
    (void)state;
    enum { SAMPLES = 64 };
    float x[SAMPLES], g[SAMPLES];
    probe p;
    open_probe(&p, (int64_t[]){1}, 1);
    CHECK_OK(user_ops_positive(p.context));
    finish_probe(&p, tw_apply(p.model, "positive", &p.x, 1, NULL), SAMPLES);
    for (int i = 0; i < SAMPLES; i++) x[i] = g[i] = 1;
    x[41] = -2.5f;
    x[60] = -7;
    CHECK_OK(tw_program_write(p.program, p.x, TW_F32, x, SAMPLES));
    CHECK_OK(tw_program_write(p.program, p.g, TW_F32, g, SAMPLES));
    CHECK_FAILS(tw_program_run(p.program), TW_ERROR_NUMERIC,
                "positive 'positive1': refuses -2.5 in sample 41 of run 1");
    x[41] = x[60] = 0;
    CHECK_OK(tw_program_write(p.program, p.x, TW_F32, x, SAMPLES));
    CHECK_OK(tw_program_run(p.program));
    close_probe(&p);
}

static void test_states_it_is_not_deterministic(void **state) {
    (void)state;
    probe p;
    open_probe(&p, flat, 1);
    CHECK_OK(tw_op_register(p.context, "loose", TW_OPTIONS(op, .nondeterministic = true, .forward_cpu = nothing)));
    CHECK_OK(user_ops_running_tanh(p.context));
    tw_value *values[] = {tw_apply(p.model, "loose", &p.x, 1, NULL), tw_apply(p.model, "running_tanh", &p.x, 1, NULL)};
    CHECK_OK(tw_model_build(p.model, values[0], NULL));
    for (int i = 0; i < 2; i++) {
        tw_program *program;
        CHECK_OK(
            tw_program_create(&program, p.model, 4, TW_OPTIONS(program, .outputs = &values[i], .output_count = 1)));
        assert_int_equal(tw_program_get_plan_hash(program) == 0, i == 0);
        tw_program_destroy(program);
    }
    close_probe(&p);
}

static size_t megabyte(const tw_op_call *call) { return (size_t)call->inputs[0].dims[0] << 20; }
static size_t endless(const tw_op_call *call) { return SIZE_MAX - (size_t)call->inputs[0].dims[0]; }

/* Workspace is asked for by the chunk, and is every worker's own. */
static void test_workspace_is_planned(void **state) {
    (void)state;
    probe p;
    open_probe(&p, flat, 1);
    CHECK_OK(tw_op_register(p.context, "wide", TW_OPTIONS(op, .workspace = megabyte, .forward_cpu = nothing)));
    CHECK_OK(tw_op_register(p.context, "vast", TW_OPTIONS(op, .workspace = endless, .forward_cpu = nothing)));
    p.y = tw_apply(p.model, "wide", &p.x, 1, NULL);
    tw_value *z = tw_apply(p.model, "vast", &p.x, 1, NULL);
    CHECK_OK(tw_model_build(p.model, p.y, NULL));
    CHECK_FAILS(tw_program_create(&p.program, p.model, 3, TW_OPTIONS(program, .outputs = &z, .output_count = 1)),
                TW_ERROR_OVERFLOW, "vast"); /* rounded up, that would be no workspace at all */
    CHECK_OK(tw_program_create(&p.program, p.model, 3, TW_OPTIONS(program, .outputs = &p.y, .output_count = 1)));
    assert_int_equal(tw_program_get_stats(p.program).scratch_bytes >> 20, 2 * 3);
    close_probe(&p);
}

/* ---- devices ---- */

static void enqueue_probe(const tw_op_call *call) {
    const void **seen = call->user;
    seen[0] = call->stream;
    seen[1] = call->inputs[0].data;
    seen[2] = call->output->data;
    seen[3] = call->workspace;
}

static void test_other_device(void **state) {
    (void)state;
    const void *seen[4] = {NULL};
    int marks[4];
    probe p;
    open_probe(&p, flat, 1);
    CHECK_OK(tw_op_register(p.context, "elsewhere", TW_OPTIONS(op, .forward_cuda = enqueue_probe, .user = seen)));
    tw_value *y = tw_apply(p.model, "elsewhere", &p.x, 1, NULL);
    CHECK_OK(tw_model_build(p.model, y, NULL));
    CHECK_FAILS(tw_program_create(&p.program, p.model, 4, TW_OPTIONS(program, .outputs = &y, .output_count = 1)),
                TW_ERROR_UNSUPPORTED, "'elsewhere.forward' has no implementation on the back end 'cpu'");
    const twi_kernel *kernel = twi_registry_find_kernel(p.context->registry, "elsewhere.forward");
    twi_call call = {.kernel = kernel, .operand_count = 2, .operand = {{.data = &marks[1]}, {.data = &marks[2]}}};
    kernel->enqueue(&call, &marks[3], &marks[0]);
    for (int i = 0; i < 4; i++) assert_ptr_equal(seen[i], &marks[i]);
    close_probe(&p);
}

/* ---- contexts ---- */

static void times_user(const tw_op_call *call) {
    const float *x = call->inputs[0].data, *factor = call->user;
    for (int64_t i = 0; i < user_ops_count(call->output); i++) ((float *)call->output->data)[i] = *factor * x[i];
}

static void test_two_contexts(void **state) {
    (void)state;
    const float factors[2] = {2, -3};
    for (int round = 0; round < 2; round++) { /* both at once, each with its own op of one name */
        probe p[2];
        for (int i = 0; i < 2; i++) {
            open_probe(&p[i], (int64_t[]){1}, 1);
            char name[8] = "times"; /* copied */
            CHECK_OK(tw_op_register(p[i].context, name,
                                    TW_OPTIONS(op, .user = (void *)&factors[i], .forward_cpu = times_user)));
            memset(name, 0, sizeof name);
        }
        for (int i = 0; i < 2; i++) {
            float y;
            p[i].y = tw_apply(p[i].model, "times", &p[i].x, 1, NULL);
            CHECK_OK(tw_model_build(p[i].model, p[i].y, NULL));
            CHECK_OK(tw_program_create(&p[i].program, p[i].model, 1,
                                       TW_OPTIONS(program, .outputs = &p[i].y, .output_count = 1)));
            CHECK_OK(tw_program_write(p[i].program, p[i].x, TW_F32, (float[]){1.5f}, 1));
            CHECK_OK(tw_program_run(p[i].program));
            CHECK_OK(tw_program_read(p[i].program, p[i].y, &y, 1));
            assert_true(y == 1.5f * factors[i]);
        }
        for (int i = 0; i < 2; i++) close_probe(&p[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prelu_as_in_pytorch),
        cmocka_unit_test(test_frozen_parameter),
        cmocka_unit_test(test_closed_form),
        cmocka_unit_test(test_central_differences),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_registering),
        cmocka_unit_test(test_applying),
        cmocka_unit_test(test_fault),
        cmocka_unit_test(test_states_it_is_not_deterministic),
        cmocka_unit_test(test_workspace_is_planned),
        cmocka_unit_test(test_other_device),
        cmocka_unit_test(test_two_contexts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

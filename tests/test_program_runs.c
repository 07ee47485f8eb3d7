/* Runs of programs: gradients and updates in closed form, frozen parameters, several inputs and losses, what may be fed
 * and read, and runs that fail and leave everything as it was. */
#include "check.h"
#include "small_task.h"

#include <math.h>

/* A training program and what it needs. */
typedef struct fixture {
    tw_model *model;
    tw_value *input, *labels, *loss;
    tw_program *program;
} fixture;

enum { BATCH = 6 };

static const tw_optimizer_options sgd = {
    .size = sizeof sgd, .learning_rate = 0.05, .momentum = 0.9f, .weight_decay = 1e-3f};
static float images[BATCH * TASK_PIXELS];
static const int32_t good_labels[BATCH] = {0, 1, 2, 0, 1, 2};

static int open_images(void **state) {
    uint32_t x = 1;
    for (int i = 0; i < BATCH * TASK_PIXELS; i++) {
        x = x * 1664525u + 1013904223u;
        images[i] = (float)(x >> 8) / (1 << 24) - 0.5f;
    }
    return task_open(state);
}
#define with_images(test) cmocka_unit_test_setup_teardown(test, open_images, task_close)

static tw_program *optimizing(tw_model *model, tw_value *loss, int64_t batch, const tw_optimizer_options *optimizer) {
    tw_program *program;
    CHECK_OK(tw_program_create(&program, model, batch,
                               TW_OPTIONS(program, .train = true, .losses = &(tw_loss){loss, 0}, .loss_count = 1,
                                          .optimizer = optimizer, .record_passes = true)));
    return program;
}

static tw_program *training(tw_model *model, tw_value *loss, int64_t batch) {
    return optimizing(model, loss, batch, &sgd);
}

static fixture make_fixture(tw_model *model) {
    fixture f = {.model = model, .input = tw_model_get_input(model), .labels = tw_input_labels(model, "labels")};
    f.loss = tw_cross_entropy(model, tw_model_get_output(model), f.labels, NULL);
    assert_non_null(f.loss);
    f.program = training(model, f.loss, BATCH);
    return f;
}

static void drop_fixture(fixture *f) {
    tw_program_destroy(f->program);
    tw_model_destroy(f->model);
}

static void feed(const fixture *f, const float *x, const int32_t *labels) {
    CHECK_OK(tw_program_write(f->program, f->input, TW_F32, x, BATCH * TASK_PIXELS));
    CHECK_OK(tw_program_write(f->program, f->labels, TW_I32, labels, BATCH));
}

static double step(const fixture *f) {
    feed(f, images, good_labels);
    CHECK_OK(tw_program_run(f->program));
    return tw_program_get_loss(f->program);
}

static void assert_same_parameters(const tw_model *one, const tw_model *other) {
    size_t count;
    float *values = task_parameters(one, &count);
    assert_true(task_unchanged(other, values));
    free(values);
}

/* ---- in closed form ---- */

/* y = W 2x + b of one sample, p = softmax(y): the gradient of -log p[label] by y is p - onehot; the rest follows. */
static void test_gradients_in_closed_form(void **state) {
    (void)state;
    static const float w[2][2] = {{0.5f, -1}, {2, 0.25f}}, x[2] = {1, 3};
    tw_model *model;
    tw_program *program;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *input = tw_input_shaped(model, "x", 1, (int64_t[]){2}), *labels = tw_input_labels(model, "labels");
    tw_value *twice = tw_add(model, input, input); /* a value used twice: its gradients add up */
    tw_value *y = tw_dense(model, twice, 2, TW_OPTIONS(dense, .name = "d", .bias_init = {TW_INIT_CONSTANT, 2}));
    tw_value *loss = tw_cross_entropy(model, y, labels, NULL), *gradients[] = {input, y};
    tw_optimizer_options plain = {.size = sizeof plain, .learning_rate = 0.1, .weight_decay = 0.5f};
    CHECK_OK(tw_model_build(model, y, NULL));
    CHECK_OK(tw_parameter_write(model, "d.weight", &w[0][0], 4));
    CHECK_OK(tw_program_create(&program, model, 1,
                               TW_OPTIONS(program, .train = true, .losses = &(tw_loss){loss, 3}, .loss_count = 1,
                                          .outputs = &y, .output_count = 1, .gradients = gradients, .gradient_count = 2,
                                          .optimizer = &plain)));
    CHECK_OK(tw_program_write(program, input, TW_F32, x, 2));
    CHECK_OK(tw_program_write(program, labels, TW_I64, (int64_t[]){1}, 1));
    CHECK_OK(tw_program_run(program));
    float out[2], dy[2], dx[2], dw[4], db[2], new_w[4], new_b[2];
    CHECK_OK(tw_program_read(program, y, out, 2));
    CHECK_OK(tw_program_read_gradient(program, y, dy, 2));
    CHECK_OK(tw_program_read_gradient(program, input, dx, 2));
    CHECK_OK(tw_program_read_parameter_gradient(program, "d.weight", dw, 4));
    CHECK_OK(tw_program_read_parameter_gradient(program, "d.bias", db, 2));
    CHECK_OK(tw_parameter_read(model, "d.weight", new_w, 4));
    CHECK_OK(tw_parameter_read(model, "d.bias", new_b, 2));
    double y0 = 2 * (0.5 * 1 - 1 * 3) + 2, y1 = 2 * (2 * 1 + 0.25 * 3) + 2;
    double p0 = 1 / (1 + exp(y1 - y0)), d[2] = {3 * p0, -3 * p0}; /* 3: the loss's weight */
    assert_float_equal(out[0], y0, 1e-6);
    assert_float_equal(out[1], y1, 1e-6);
    assert_float_equal(tw_program_get_loss(program), -3 * log(1 - p0), 1e-6);
    for (int i = 0; i < 2; i++) {
        assert_float_equal(dy[i], d[i], 1e-6);
        assert_float_equal(db[i], d[i], 1e-6);
        assert_float_equal(dx[i], 2 * (w[0][i] * d[0] + w[1][i] * d[1]), 1e-6);
        assert_float_equal(new_b[i], 2 - 0.1 * d[i], 1e-6); /* biases do not decay */
        for (int k = 0; k < 2; k++) {
            assert_float_equal(dw[2 * i + k], d[i] * 2 * x[k], 1e-6);
            assert_float_equal(new_w[2 * i + k], w[i][k] - 0.1 * (d[i] * 2 * x[k] + 0.5 * w[i][k]), 1e-6);
        }
    }
    tw_program_destroy(program);
    tw_model_destroy(model);
}

/* Two inputs through one sum, two losses: the total is a + b / 2, and so are the gradients. */
static void test_several_inputs_and_losses(void **state) {
    (void)state;
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *a = tw_input_shaped(model, "a", 1, (int64_t[]){3}), *b = tw_input_shaped(model, "b", 1, (int64_t[]){2});
    tw_value *la = tw_input_labels(model, "la"), *lb = tw_input_labels(model, "lb");
    tw_value *of_a = tw_dense(model, a, 4, NULL), *sum = tw_add(model, of_a, tw_dense(model, b, 4, NULL));
    tw_value *one = tw_cross_entropy(model, sum, la, NULL), *two = tw_cross_entropy(model, sum, lb, NULL);
    const struct {
        tw_loss losses[2];
        int count;
    } kinds[] = {{{{one, 1}, {two, 0.5f}}, 2}, {{{one, 0}}, 1}, {{{two, 0}}, 1}};
    float gradient[3][12];
    double loss[3];
    CHECK_OK(tw_model_build(model, sum, NULL));
    assert_true(tw_model_get_input(model) == a);
    for (int kind = 0; kind < 3; kind++) {
        tw_program *program;
        CHECK_OK(tw_program_create(
            &program, model, 2,
            TW_OPTIONS(program, .train = true, .losses = kinds[kind].losses, .loss_count = kinds[kind].count)));
        CHECK_OK(tw_program_write(program, a, TW_F32, (float[]){1, 2, 3, -1, 0, 1}, 6));
        CHECK_OK(tw_program_write(program, b, TW_F32, (float[]){0.5f, -0.5f, 2, 1}, 4));
        if (kind != 2) CHECK_OK(tw_program_write(program, la, TW_I32, (int32_t[]){0, 1}, 2));
        if (kind != 1) CHECK_OK(tw_program_write(program, lb, TW_U8, (uint8_t[]){3, 2}, 2));
        CHECK_OK(tw_program_run(program));
        loss[kind] = tw_program_get_loss(program);
        CHECK_OK(tw_program_read_parameter_gradient(program, "fc1.weight", gradient[kind], 12));
        tw_program_destroy(program);
    }
    assert_true(fabs(loss[1] - loss[2]) > 0.01);
    assert_float_equal(loss[0], loss[1] + 0.5 * loss[2], 1e-6);
    for (int i = 0; i < 12; i++) assert_float_equal(gradient[0][i], gradient[1][i] + 0.5f * gradient[2][i], 1e-6);
    tw_model_destroy(model);
}

/* ---- frozen parameters ---- */

enum { CONV = TASK_CHANNELS * 9 };

static bool conv_moved(const tw_model *model, const float *before) {
    float now[CONV];
    CHECK_OK(tw_parameter_read(model, "conv1.weight", now, CONV));
    return memcmp(before, now, sizeof now) != 0;
}

static void test_frozen_parameters(void **state) {
    (void)state;
    fixture f = make_fixture(task_model(task_context, 1));
    float before[CONV], gradient[CONV], head[2][TASK_CLASSES], largest = 0;
    CHECK_OK(tw_parameter_read(f.model, "conv1.weight", before, CONV));
    CHECK_OK(tw_parameter_read(f.model, "fc1.bias", head[0], TASK_CLASSES));
    CHECK_OK(tw_model_set_trainable(f.model, "conv1.", false));
    tw_program_destroy(f.program);
    f.program = training(f.model, f.loss, BATCH);
    step(&f);
    CHECK_FAILS(tw_program_read_parameter_gradient(f.program, "conv1.weight", gradient, CONV), TW_ERROR_STATE,
                "'conv1.weight' gets no gradient");
    assert_null(strstr(tw_program_dump(f.program, TW_PASS_LOWER), "conv2d.backward")); /* it is not computed */
    CHECK_OK(tw_parameter_read(f.model, "fc1.bias", head[1], TASK_CLASSES));
    assert_memory_not_equal(head[0], head[1], sizeof head[0]);
    assert_false(conv_moved(f.model, before));
    /* asked for, the gradient can be read; the parameter stays for all that */
    tw_value *wanted = tw_model_find(f.model, "conv1.weight");
    tw_program_destroy(f.program);
    CHECK_OK(tw_program_create(&f.program, f.model, BATCH,
                               TW_OPTIONS(program, .train = true, .losses = &(tw_loss){f.loss, 0}, .loss_count = 1,
                                          .gradients = &wanted, .gradient_count = 1, .optimizer = &sgd)));
    step(&f);
    CHECK_OK(tw_program_read_gradient(f.program, wanted, gradient, CONV));
    for (int i = 0; i < CONV; i++) largest = fmaxf(largest, fabsf(gradient[i]));
    assert_true(largest > 0);
    assert_false(conv_moved(f.model, before));
    /* a program keeps what held when it was made */
    CHECK_OK(tw_model_set_trainable(f.model, "", true));
    tw_program_destroy(f.program);
    f.program = training(f.model, f.loss, BATCH);
    CHECK_OK(tw_model_set_trainable(f.model, "", false));
    step(&f);
    assert_true(conv_moved(f.model, before));
    drop_fixture(&f);
}

/* ---- gradients and update apart ---- */

static void test_gradients_then_update_equal_a_run(void **state) {
    (void)state;
    fixture one = make_fixture(task_model(task_context, 1)), two = make_fixture(task_model(task_context, 1));
    CHECK_FAILS(tw_program_run_update(two.program), TW_ERROR_STATE, "no gradients");
    for (uint64_t i = 0; i < 3; i++) {
        double loss = step(&one);
        feed(&two, images, good_labels);
        CHECK_OK(tw_program_run_gradients(two.program));
        assert_true(tw_program_get_loss(two.program) == loss);
        assert_int_equal(tw_model_get_updates(two.model), i);
        CHECK_OK(tw_program_run_update(two.program));
        assert_int_equal(tw_model_get_updates(two.model), i + 1);
        assert_int_equal(tw_model_get_attempts(two.model), i + 1);
        assert_same_parameters(one.model, two.model);
        CHECK_FAILS(tw_program_run_update(two.program), TW_ERROR_STATE, "no gradients"); /* each set once */
    }
    assert_true(fabs(tw_model_get_learning_rate(two.model) - 0.05) < 1e-9);
    drop_fixture(&one);
    drop_fixture(&two);
}

/* Gradients lie in the model: another program's training overwrites them. */
static void test_gradients_of_another_program(void **state) {
    (void)state;
    fixture f = make_fixture(task_model(task_context, 1)), other = f;
    tw_program *gradients_only;
    other.program = training(f.model, f.loss, BATCH);
    feed(&f, images, good_labels);
    CHECK_OK(tw_program_run_gradients(f.program));
    step(&other);
    CHECK_FAILS(tw_program_run_update(f.program), TW_ERROR_STATE, "no gradients of this program");
    feed(&f, images, good_labels);
    CHECK_OK(tw_program_run_gradients(f.program));
    CHECK_FAILS(tw_program_run_update(other.program), TW_ERROR_STATE, "no gradients of this program");
    CHECK_OK(tw_program_run_update(f.program));
    CHECK_OK(tw_program_create(&gradients_only, f.model, BATCH,
                               TW_OPTIONS(program, .train = true, .losses = &(tw_loss){f.loss, 0}, .loss_count = 1)));
    CHECK_FAILS(tw_program_run_update(gradients_only), TW_ERROR_STATE, "without an optimizer");
    tw_program_destroy(gradients_only);
    tw_program_destroy(other.program);
    drop_fixture(&f);
}

/* One update by the first, one by the second. */
static fixture two_optimizers(const tw_optimizer_options *first, const tw_optimizer_options *second) {
    fixture f = make_fixture(task_model(task_context, 1));
    const tw_optimizer_options *const turns[] = {first, second};
    for (int i = 0; i < 2; i++) {
        tw_program_destroy(f.program);
        f.program = optimizing(f.model, f.loss, BATCH, turns[i]);
        step(&f);
    }
    return f;
}

/* A first update is the same with momentum and without: what it leaves behind must not be taken for another kind's. */
static void test_optimizers_of_two_kinds_keep_apart(void **state) {
    (void)state;
    tw_optimizer_options plain = sgd, adamw = TW_OPTIMIZER_OPTIONS_INIT;
    plain.momentum = 0;
    adamw.kind = TW_ADAMW;
    const tw_optimizer_options *const kinds[2][2][2] = {{{&sgd, &adamw}, {&plain, &adamw}},
                                                        {{&adamw, &sgd}, {&adamw, &plain}}};
    for (int i = 0; i < 2; i++) {
        fixture one = two_optimizers(kinds[i][0][0], kinds[i][0][1]),
                two = two_optimizers(kinds[i][1][0], kinds[i][1][1]);
        assert_same_parameters(one.model, two.model);
        drop_fixture(&one);
        drop_fixture(&two);
    }
}

/* ---- feeding and reading ---- */

static void test_element_types_fed(void **state) {
    (void)state;
    static const uint8_t bytes[6] = {0, 1, 2, 128, 254, 255};
    static const uint16_t halves[6] = {0x0000, 0x3C00, 0x4000, 0x5800, 0x5BF0, 0x5BF8}; /* IEEE 754 binary16 */
    static const uint16_t bfloats[6] = {0x0000, 0x3F80, 0x4000, 0x4300, 0x437E, 0x437F};
    static const float floats[6] = {0, 1, 2, 128, 254, 255};
    const struct {
        tw_dtype dtype;
        const void *data;
    } feeds[] = {{TW_F32, floats}, {TW_U8, bytes}, {TW_F16, halves}, {TW_BF16, bfloats}};
    tw_model *model;
    tw_program *program;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input(model, 3, 1, 1), *y = tw_relu(model, x);
    CHECK_OK(tw_model_build(model, y, NULL));
    CHECK_OK(tw_program_create(&program, model, 2, TW_OPTIONS(program, .outputs = &y, .output_count = 1)));
    for (int i = 0; i < 4; i++) {
        float out[6];
        CHECK_OK(tw_program_write(program, x, feeds[i].dtype, feeds[i].data, 6));
        CHECK_OK(tw_program_run(program));
        CHECK_OK(tw_program_read(program, y, out, 6));
        assert_memory_equal(out, floats, sizeof out);
    }
    CHECK_FAILS(tw_program_write(program, x, TW_I32, floats, 6), TW_ERROR_ARGUMENT,
                "'input1' takes f32, f16, bf16 or u8, got i32");
    CHECK_FAILS(tw_program_write(program, x, (tw_dtype)77, floats, 6), TW_ERROR_ARGUMENT,
                "got type 77, which is none of tw_dtype");
    tw_program_destroy(program);
    tw_model_destroy(model);
}

static void test_what_was_not_asked_for(void **state) {
    (void)state;
    fixture f = make_fixture(task_model(task_context, 1));
    tw_model *other = task_plain_model(task_context, 1);
    float out[BATCH * TASK_PIXELS];
    tw_program *p = f.program;
    tw_value *logits = tw_model_get_output(f.model), *conv = tw_model_find(f.model, "conv1");
    tw_value *foreign = tw_model_get_output(other);
    step(&f);
#define ARGUMENT(call, text) CHECK_FAILS(call, TW_ERROR_ARGUMENT, text)
    ARGUMENT(tw_program_read(p, logits, out, BATCH * TASK_CLASSES), "name it in the program's outputs");
    ARGUMENT(tw_program_read_gradient(p, logits, out, BATCH * TASK_CLASSES), "name it in the program's gradients");
    ARGUMENT(tw_program_read_gradient(p, f.input, out, BATCH * TASK_PIXELS), "does not use 'input1'");
    ARGUMENT(tw_program_read(p, f.loss, out, 2), "1 elements, got 2");
    ARGUMENT(tw_program_read(p, f.loss, NULL, 1), "NULL");
    ARGUMENT(tw_program_read(p, foreign, out, 3), "another model");
    ARGUMENT(tw_program_write(p, conv, TW_F32, out, BATCH * TASK_CHANNELS * TASK_PIXELS), "computed, not fed");
    ARGUMENT(tw_program_write(p, f.labels, TW_F32, out, BATCH), "'labels' takes i32, i64 or u8, got f32");
    ARGUMENT(tw_program_write(p, f.labels, (tw_dtype)99, out, BATCH), "got type 99, which is none of tw_dtype");
    ARGUMENT(tw_program_write(p, f.labels, TW_I32, NULL, BATCH), "NULL");
    ARGUMENT(tw_program_write(p, f.input, TW_F32, out, 5), "[6, 1, 12, 12], 864 elements, got 5");
    ARGUMENT(tw_program_read_parameter_gradient(p, "conv9.weight", out, 1), "no parameter 'conv9.weight'");
    ARGUMENT(tw_program_read_parameter_gradient(p, "conv1", out, 1), "no parameter 'conv1'; there are conv1.weight, ");
    ARGUMENT(tw_program_read_parameter_gradient(p, "bn1.running_mean", out, 1), "no parameter");
    ARGUMENT(tw_program_run(NULL), "NULL");
    tw_model_destroy(other);
    drop_fixture(&f);
}

static void test_programs_that_cannot_be(void **state) {
    (void)state;
    fixture f = make_fixture(task_model(task_context, 1));
    tw_model *other = task_plain_model(task_context, 1);
    tw_value *logits = tw_model_get_output(f.model), *foreign = tw_model_get_output(other), *none = NULL;
    const tw_loss loss = {f.loss, 0}, no_loss = {logits, 0}, null_loss = {NULL, 0};
    tw_optimizer_options bad = sgd;
    tw_program *program = (void *)1;
    bad.momentum = 1.5f;
#define REFUSED(status, text, batch, ...)                                                                         \
    do {                                                                                                          \
        CHECK_FAILS(tw_program_create(&program, f.model, batch, TW_OPTIONS(program, __VA_ARGS__)), status, text); \
        assert_null(program);                                                                                     \
    } while (0)
    REFUSED(TW_ERROR_ARGUMENT, "nothing to compute", 1, .train = false);
    REFUSED(TW_ERROR_ARGUMENT, "needs a loss", 1, .train = true, .outputs = &logits, .output_count = 1);
    REFUSED(TW_ERROR_ARGUMENT, "need train", 1, .outputs = &logits, .output_count = 1, .optimizer = &sgd);
    REFUSED(TW_ERROR_ARGUMENT, "negative", 1, .outputs = &logits, .output_count = -1);
    REFUSED(TW_ERROR_ARGUMENT, "list is NULL", 1, .output_count = 1);
    REFUSED(TW_ERROR_ARGUMENT, "list is NULL", 1, .loss_count = 1);
    REFUSED(TW_ERROR_ARGUMENT, "outputs[0] is NULL", 1, .outputs = &none, .output_count = 1);
    REFUSED(TW_ERROR_ARGUMENT, "losses[0] is NULL", 1, .losses = &null_loss, .loss_count = 1);
    REFUSED(TW_ERROR_ARGUMENT, "outputs[0] belongs to another", 1, .outputs = &foreign, .output_count = 1);
    REFUSED(TW_ERROR_SHAPE, "'fc1' is not a batch sum", 1, .losses = &no_loss, .loss_count = 1);
    REFUSED(TW_ERROR_ARGUMENT, "batch 0", 0, .outputs = &logits, .output_count = 1);
    REFUSED(TW_ERROR_ARGUMENT, "batch -1", -1, .outputs = &logits, .output_count = 1);
    REFUSED(TW_ERROR_OVERFLOW, "", INT64_MAX, .outputs = &logits, .output_count = 1);
    REFUSED(TW_ERROR_OVERFLOW, "", INT64_MAX, .outputs = &f.input, .output_count = 1);
    REFUSED(TW_ERROR_OVERFLOW, "", INT64_MAX / 1000, .outputs = &logits, .output_count = 1);
    REFUSED(TW_ERROR_OUT_OF_MEMORY, "", INT64_MAX / 1000000, .outputs = &logits, .output_count = 1);
    REFUSED(TW_ERROR_ARGUMENT, "momentum is 1.5", 1, .train = true, .losses = &loss, .loss_count = 1,
            .optimizer = &bad);
    REFUSED(TW_ERROR_ARGUMENT, "no loss depends on 'labels'", 1, .train = true, .losses = &loss, .loss_count = 1,
            .gradients = &f.labels, .gradient_count = 1);
    CHECK_FAILS(tw_program_create(NULL, f.model, 1, NULL), TW_ERROR_ARGUMENT, "out is NULL");
    CHECK_FAILS(tw_program_create(&program, NULL, 1, NULL), TW_ERROR_ARGUMENT, "model is NULL");
    step(&f);
    tw_model_destroy(other);
    drop_fixture(&f);
}

/* ---- runs that fail ---- */

static tw_model *without_dropout(void) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input(model, 1, TASK_SIDE, TASK_SIDE);
    x = tw_batch_norm(model, tw_conv2d(model, x, TASK_CHANNELS, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL);
    x = tw_dense(model, tw_max_pool(model, tw_relu(model, x), 2, NULL), TASK_CLASSES, NULL);
    CHECK_OK(tw_model_build(model, x, NULL));
    return model;
}

/* Weights, momentum and running statistics: `f`, of which runs failed, trains on as `twin`, of which none did. */
static void assert_goes_on_as(const fixture *f, const fixture *twin) {
    assert_same_parameters(f->model, twin->model);
    assert_int_equal(tw_model_get_updates(f->model), tw_model_get_updates(twin->model));
    for (int i = 0; i < 2; i++) {
        assert_true(step(f) == step(twin));
        assert_same_parameters(f->model, twin->model);
    }
}

static void test_bad_labels(void **state) {
    (void)state;
    fixture f = make_fixture(without_dropout()), twin = make_fixture(without_dropout());
    assert_true(step(&f) == step(&twin));
    feed(&f, images, (int32_t[]){0, 1, 3, 0, 1, 2});
    CHECK_FAILS(tw_program_run(f.program), TW_ERROR_LABEL, "label 3 of sample 2 is outside 0 .. 2 (3 classes)");
    feed(&f, images, (int32_t[]){0, -1, 0, 7, 1, 2}); /* the first of them is named */
    CHECK_FAILS(tw_program_run(f.program), TW_ERROR_LABEL, "label -1 of sample 1 is outside 0 .. 2 (3 classes)");
    CHECK_FAILS(tw_program_run_gradients(f.program), TW_ERROR_LABEL, "label -1 of sample 1");
    CHECK_FAILS(tw_program_run_update(f.program), TW_ERROR_STATE, "no gradients");
    CHECK_FAILS(tw_program_write(f.program, f.labels, TW_I64, (int64_t[]){0, 1, 2, 0, 4294967296, 2}, BATCH),
                TW_ERROR_LABEL, "label 4294967296 of sample 4");
    assert_int_equal(tw_model_get_attempts(f.model), 4);
    assert_goes_on_as(&f, &twin);
    drop_fixture(&f);
    drop_fixture(&twin);
}

static void test_numbers_that_are_not_finite(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f};
    fixture f = make_fixture(without_dropout()), twin = make_fixture(without_dropout());
    assert_true(step(&f) == step(&twin));
    for (int i = 0; i < 4; i++) {
        float x[BATCH * TASK_PIXELS];
        memcpy(x, images, sizeof x);
        x[TASK_PIXELS + 17] = x[TASK_PIXELS + 18] = bad[i];
        feed(&f, x, good_labels);
        CHECK_FAILS(tw_program_run(f.program), TW_ERROR_NUMERIC, "nothing was updated");
    }
    assert_goes_on_as(&f, &twin);
    drop_fixture(&f);
    drop_fixture(&twin);
}

/* Batch norm over one sample of one element: variance 0; its unbiased estimate, which does not exist, counts as 0. */
static void test_a_batch_of_one(void **state) {
    (void)state;
    tw_model *model;
    float mean, var, bias[2];
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input_shaped(model, "x", 1, (int64_t[]){1}), *labels = tw_input_labels(model, "labels");
    tw_value *y = tw_batch_norm(model, x, NULL);
    y = tw_dense(model, y, 2, TW_OPTIONS(dense, .bias_init = {TW_INIT_CONSTANT, 0}));
    tw_value *loss = tw_cross_entropy(model, y, labels, NULL);
    CHECK_OK(tw_model_build(model, y, NULL));
    tw_program *program = training(model, loss, 1);
    CHECK_OK(tw_program_write(program, x, TW_F32, (float[]){5}, 1));
    CHECK_OK(tw_program_write(program, labels, TW_I32, (int32_t[]){1}, 1));
    CHECK_OK(tw_program_run(program));
    assert_float_equal(tw_program_get_loss(program), log(2), 1e-6); /* the norm gives 0, hence equal logits */
    CHECK_OK(tw_parameter_read(model, "bn1.running_mean", &mean, 1));
    CHECK_OK(tw_parameter_read(model, "bn1.running_var", &var, 1));
    CHECK_OK(tw_parameter_read(model, "fc1.bias", bias, 2));
    assert_float_equal(mean, 0.5, 1e-6); /* 0.9 * 0 + 0.1 * 5 */
    assert_float_equal(var, 0.9, 1e-6);  /* 0.9 * 1 + 0.1 * 0 */
    assert_float_equal(bias[1], 0.025, 1e-6);
    tw_program_destroy(program);
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_images(test_gradients_in_closed_form),
        with_images(test_several_inputs_and_losses),
        with_images(test_frozen_parameters),
        with_images(test_gradients_then_update_equal_a_run),
        with_images(test_gradients_of_another_program),
        with_images(test_optimizers_of_two_kinds_keep_apart),
        with_images(test_element_types_fed),
        with_images(test_what_was_not_asked_for),
        with_images(test_programs_that_cannot_be),
        with_images(test_bad_labels),
        with_images(test_numbers_that_are_not_finite),
        with_images(test_a_batch_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Batch norms whose statistics are frozen: numbers of PyTorch, what steps they are made of, that nothing moves them, and how
 * the norms of a whole net are frozen and freed. test_fit_memory.c has batches in parts. */
#include "golden/frozen_norm.h"
#include "program_net.h"

#include <math.h>

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))
enum { SAMPLES = 5, CLASSES = 3 };
static const int32_t labels[SAMPLES] = {0, 2, 1, 1, 2};

/* ---- the recorded net ---- */

static tw_value *recorded(tw_model *model, tw_value *x, bool frozen) {
    x = tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .padding = 1, .no_bias = true));
    x = tw_relu(model, tw_batch_norm(model, x, TW_OPTIONS(batch_norm, .frozen = frozen)));
    tw_value *y = tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .padding = 1, .no_bias = true));
    y = tw_batch_norm(model, y, TW_OPTIONS(batch_norm, .epsilon = 1e-3f, .frozen = frozen));
    return tw_dense(model, tw_relu(model, tw_add(model, y, x)), CLASSES, NULL);
}
static tw_value *with_frozen(tw_model *model, tw_value *x) { return recorded(model, x, true); }
static tw_value *with_moving(tw_model *model, tw_value *x) { return recorded(model, x, false); }

typedef struct recorded_parameter {
    const char *name;
    const float *value, *gradient; /* gradient NULL: nobody learns it */
    int64_t count;
} recorded_parameter;

#define ROW(name, field) \
    { name, frozen_##field, frozen_d_##field, COUNT(frozen_##field) }
static const recorded_parameter parameters[] = {
    ROW("conv1.weight", conv1_weight),
    ROW("bn1.weight", bn1_weight),
    ROW("bn1.bias", bn1_bias),
    ROW("conv2.weight", conv2_weight),
    ROW("bn2.weight", bn2_weight),
    ROW("bn2.bias", bn2_bias),
    ROW("fc1.weight", fc1_weight),
    ROW("fc1.bias", fc1_bias),
    {"bn1.running_mean", frozen_bn1_running_mean, NULL, 4},
    {"bn1.running_var", frozen_bn1_running_var, NULL, 4},
    {"bn2.running_mean", frozen_bn2_running_mean, NULL, 4},
    {"bn2.running_var", frozen_bn2_running_var, NULL, 4},
};

static void open_recorded(net *n, tw_value *(*build)(tw_model *, tw_value *)) {
    open_net(n, build, 2, 3);
    for (int64_t i = 0; i < COUNT(parameters); i++)
        CHECK_OK(tw_parameter_write(n->model, parameters[i].name, parameters[i].value, parameters[i].count));
}

static void feed(net *n, tw_program *program, int64_t first, int64_t count) {
    enum { PIXELS = COUNT(frozen_x) / SAMPLES };
    CHECK_OK(tw_program_write(program, n->x, TW_F32, frozen_x + first * PIXELS, count * PIXELS));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels + first, count));
}

static void near(const char *what, const float *found, const float *expected, int64_t count, double allowed) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)found[i] - (double)expected[i]) <= allowed))
            fail_msg("%s[%lld]: %.9g, expected %.9g", what, (long long)i, (double)found[i], (double)expected[i]);
}

static void assert_statistics_stand(const net *n) {
    float now[4];
    for (int64_t i = 0; i < COUNT(parameters); i++) {
        if (parameters[i].gradient) continue;
        CHECK_OK(tw_parameter_read(n->model, parameters[i].name, now, 4));
        assert_memory_equal(now, parameters[i].value, sizeof now);
    }
    CHECK_OK(tw_parameter_read(n->model, "bn2.num_batches_tracked", now, 1));
    assert_true(now[0] == 0);
}

static tw_program *make_with_input_gradient(net *n, bool no_fusion) {
    tw_program *program;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    CHECK_OK(tw_program_create(&program, n->model, SAMPLES,
                               TW_OPTIONS(program, .train = true, .losses = &n->loss, .loss_count = 1,
                                          .outputs = &n->logits, .output_count = 1, .gradients = &n->x,
                                          .gradient_count = 1, .optimizer = &sgd, .no_fusion = no_fusion)));
    return program;
}

static void values_and_gradients_are_those_of_pytorch(void **state) {
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        net n;
        float found[COUNT(frozen_fc1_weight) + COUNT(frozen_conv2_weight)];
        open_recorded(&n, with_frozen);
        tw_program *program = make_with_input_gradient(&n, plain);
        feed(&n, program, 0, SAMPLES);
        CHECK_OK(tw_program_run_gradients(program));
        CHECK_OK(tw_program_read(program, n.loss.value, found, 1));
        found[0] /= SAMPLES; /* a sum */
        near("loss", found, frozen_loss, 1, 1e-6);
        CHECK_OK(tw_program_read(program, n.logits, found, SAMPLES * CLASSES));
        near("logits", found, frozen_logits, SAMPLES * CLASSES, 2e-6);
        CHECK_OK(tw_program_read_gradient(program, n.x, found, COUNT(frozen_dx)));
        near("dx", found, frozen_dx, COUNT(frozen_dx), 1e-6);
        for (int64_t i = 0; i < COUNT(parameters); i++) {
            const recorded_parameter *p = &parameters[i];
            if (!p->gradient) continue;
            CHECK_OK(tw_program_read_parameter_gradient(program, p->name, found, p->count));
            near(p->name, found, p->gradient, p->count, 2e-6);
        }
        CHECK_OK(tw_program_run_update(program));
        assert_statistics_stand(&n);
        CHECK_OK(tw_parameter_read(n.model, "bn1.bias", found, 4));
        assert_true(found[0] != frozen_bn1_bias[0]); /* while the rest learns */
        tw_program_destroy(program);
        close_net(&n);
    }
}

/* ---- steps ---- */

static int count_kernel(const tw_program *program, const char *name) {
    int count = 0;
    for (int i = 0; i < program->step_count; i++) count += strcmp(program->step[i].kernel->name, name) == 0;
    return count;
}

typedef struct expected {
    const char *kernel;
    int moving, frozen, alone; /* alone: frozen, and neither gamma nor beta learns */
} expected;

static void nothing_is_summed_that_nobody_wants(void **state) {
    (void)state;
    static const expected rows[] = {
        {"batch_norm.statistics", 2, 0, 0},
        {"batch_norm.finalize", 2, 0, 0},
        {"batch_norm.from_running", 0, 2, 2},
        {"batch_norm.apply_relu", 1, 1, 1},
        {"batch_norm.apply_add_relu", 1, 1, 1},
        {"batch_norm.backward_frozen", 0, 2, 2},
        {"batch_norm.backward_sums_masked", 2, 2, 0},
        {"batch_norm.backward_finalize", 2, 2, 0},
        {"batch_norm.backward_apply_masked", 2, 2, 2},
        {"commit.copy", 6, 0, 0},
    };
    for (int way = 0; way < 3; way++) {
        net n;
        open_recorded(&n, way ? with_frozen : with_moving);
        if (way == 2) CHECK_OK(tw_model_set_trainable(n.model, "bn", false));
        tw_program *program = make(&n, SAMPLES, false);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const int expected = way == 0 ? rows[i].moving : way == 1 ? rows[i].frozen : rows[i].alone;
            if (count_kernel(program, rows[i].kernel) != expected)
                fail_msg("%s: %d times, expected %d (%d)", rows[i].kernel, count_kernel(program, rows[i].kernel),
                         expected, way);
        }
        tw_program_destroy(program);
        close_net(&n);
    }
}

/* What learns without gamma and beta learns the same as with them. */
static void gradients_are_the_same_without_gamma_and_beta(void **state) {
    (void)state;
    net n;
    float found[COUNT(frozen_conv2_weight)];
    open_recorded(&n, with_frozen);
    CHECK_OK(tw_model_set_trainable(n.model, "bn", false));
    tw_program *program = make(&n, SAMPLES, false);
    feed(&n, program, 0, SAMPLES);
    CHECK_OK(tw_program_run_gradients(program));
    CHECK_OK(tw_program_read_parameter_gradient(program, "conv1.weight", found, COUNT(frozen_conv1_weight)));
    near("conv1.weight", found, frozen_d_conv1_weight, COUNT(frozen_conv1_weight), 2e-6);
    CHECK_OK(tw_program_read_parameter_gradient(program, "conv2.weight", found, COUNT(frozen_conv2_weight)));
    near("conv2.weight", found, frozen_d_conv2_weight, COUNT(frozen_conv2_weight), 2e-6);
    tw_program_destroy(program);
    close_net(&n);
}

/* ---- by a call ---- */

static float loss_of(net *n, tw_program *program) {
    float loss;
    feed(n, program, 0, SAMPLES);
    CHECK_OK(tw_program_run_gradients(program));
    CHECK_OK(tw_program_read(program, n->loss.value, &loss, 1));
    return loss / SAMPLES;
}

static void norms_of_a_built_net_are_frozen_and_freed(void **state) {
    (void)state;
    net n;
    open_recorded(&n, with_moving);
    tw_program *moving = make(&n, SAMPLES, false);
    assert_true(twi_model_has_batch_statistics(n.model));
    CHECK_OK(tw_model_set_statistics_frozen(n.model, "bn1", true));
    assert_true(twi_model_has_batch_statistics(n.model));
    CHECK_OK(tw_model_set_statistics_frozen(n.model, "", true));
    assert_false(twi_model_has_batch_statistics(n.model));
    assert_non_null(strstr(tw_model_dump(n.model), "frozen=1"));
    tw_program *frozen = make(&n, SAMPLES, false);
    assert_true(fabs((double)loss_of(&n, frozen) - (double)frozen_loss[0]) < 1e-6);
    assert_statistics_stand(&n);
    assert_true(tw_program_get_plan_hash(frozen) != tw_program_get_plan_hash(moving));
    /* A program made before keeps what it had. */
    assert_true(fabs((double)loss_of(&n, moving) - (double)frozen_loss[0]) > 1e-3);
    float tracked;
    CHECK_OK(tw_parameter_read(n.model, "bn1.num_batches_tracked", &tracked, 1));
    assert_true(tracked == 1);
    tw_program_destroy(frozen);
    CHECK_OK(tw_model_set_statistics_frozen(n.model, "bn2", false));
    assert_true(twi_model_has_batch_statistics(n.model));
    frozen = make(&n, SAMPLES, false);
    assert_int_equal(count_kernel(frozen, "batch_norm.statistics"), 1);
    tw_program_destroy(frozen);
    tw_program_destroy(moving);
    CHECK_FAILS(tw_model_set_statistics_frozen(n.model, "conv", true), TW_ERROR_ARGUMENT, "begins with 'conv'");
    CHECK_FAILS(tw_model_set_statistics_frozen(n.model, NULL, true), TW_ERROR_ARGUMENT, "is NULL");
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients_are_those_of_pytorch),
        cmocka_unit_test(nothing_is_summed_that_nobody_wants),
        cmocka_unit_test(gradients_are_the_same_without_gamma_and_beta),
        cmocka_unit_test(norms_of_a_built_net_are_frozen_and_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

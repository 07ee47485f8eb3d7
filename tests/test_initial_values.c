/* Initial values by their definitions, the seed's reach, and options structs of other versions. */
#include "check.h"
#include "small_task.h"

#include <math.h>
#include <stddef.h>

enum {
    OUT = 96,
    IN = 48,
    SIDE = 3,
    FAN_IN = IN * SIDE * SIDE,
    FAN_OUT = OUT * SIDE * SIDE,
    COUNT = OUT * FAN_IN,
    ODD = 73
};

static float values[COUNT], others[COUNT];

static tw_model *conv_model(tw_init weight, tw_init bias, uint64_t seed, const char *name) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *y = tw_conv2d(model, tw_input(model, IN, 4, 4), OUT, SIDE,
                            TW_OPTIONS(conv2d, .name = name, .weight_init = weight, .bias_init = bias));
    CHECK_OK(tw_model_build(model, y, TW_OPTIONS(model, .seed = seed)));
    return model;
}

static void measure(const float *x, int count, double *mean, double *deviation, double *largest) {
    double sum = 0, squares = 0;
    *largest = 0;
    for (int i = 0; i < count; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
        *largest = fmax(*largest, fabs((double)x[i]));
    }
    *mean = sum / count;
    *deviation = sqrt(squares / count - *mean * *mean);
}

/* Uniform on (-bound, bound): deviation bound / sqrt 3. With 41,472 draws the mean lies within 5 standard errors, the
 * deviation within 2 %, and the largest within 0.1 % of the bound, whatever the seed. */
static void assert_uniform(tw_init init, double bound) {
    tw_model *model = conv_model(init, (tw_init){TW_INIT_DEFAULT, 0}, 3, "c");
    double mean, deviation, largest;
    CHECK_OK(tw_parameter_read(model, "c.weight", values, COUNT));
    measure(values, COUNT, &mean, &deviation, &largest);
    assert_true(largest <= bound * (1 + 1e-6) && largest > 0.999 * bound);
    assert_true(fabs(mean) < 5 * bound / sqrt(3.0 * COUNT));
    assert_true(fabs(deviation / (bound / sqrt(3)) - 1) < 0.02);
    tw_model_destroy(model);
}

static void assert_normal(tw_init init, double wanted) {
    tw_model *model = conv_model(init, (tw_init){TW_INIT_DEFAULT, 0}, 3, "c");
    double mean, deviation, largest;
    int inside = 0;
    CHECK_OK(tw_parameter_read(model, "c.weight", values, COUNT));
    measure(values, COUNT, &mean, &deviation, &largest);
    assert_true(fabs(mean) < 5 * wanted / sqrt(COUNT));
    assert_true(fabs(deviation / wanted - 1) < 0.02);
    assert_true(largest > 3.5 * wanted && largest < 6 * wanted);
    for (int i = 0; i < COUNT; i++) inside += fabs((double)values[i]) < wanted;
    assert_true(fabs((double)inside / COUNT - 0.6827) <
                0.012); /* within one deviation: 68.27 %, +- 5 standard errors */
    tw_model_destroy(model);
}

static void test_initialisers(void **state) {
    (void)state;
    assert_uniform((tw_init){TW_INIT_DEFAULT, 0}, 1 / sqrt(FAN_IN));
    assert_uniform((tw_init){TW_INIT_KAIMING_UNIFORM, 0}, sqrt(6.0 / FAN_IN));
    assert_uniform((tw_init){TW_INIT_XAVIER_UNIFORM, 0}, sqrt(6.0 / (FAN_IN + FAN_OUT)));
    assert_normal((tw_init){TW_INIT_KAIMING_NORMAL, 0}, sqrt(2.0 / FAN_IN));
    assert_normal((tw_init){TW_INIT_XAVIER_NORMAL, 0}, sqrt(2.0 / (FAN_IN + FAN_OUT)));
}

static void test_constants_and_defaults(void **state) {
    (void)state;
    tw_model *model = conv_model((tw_init){TW_INIT_CONSTANT, 0.25f}, (tw_init){TW_INIT_DEFAULT, 0}, 3, "c");
    double mean, deviation, largest;
    CHECK_OK(tw_parameter_read(model, "c.weight", values, COUNT));
    for (int i = 0; i < COUNT; i++) assert_true(values[i] == 0.25f);
    CHECK_OK(tw_parameter_read(model, "c.bias", values, OUT)); /* PyTorch's default: the weights' bound */
    measure(values, OUT, &mean, &deviation, &largest);
    assert_true(largest <= 1 / sqrt(FAN_IN) && largest > 0.8 / sqrt(FAN_IN) && deviation > 0);
    tw_model_destroy(model);
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_batch_norm(model, tw_input(model, 4, 2, 2), TW_OPTIONS(batch_norm, .name = "plain"));
    x = tw_batch_norm(model, x, TW_OPTIONS(batch_norm, .name = "zero", .zero_scale = true));
    CHECK_OK(tw_model_build(model, x, NULL));
    static const struct {
        const char *name;
        float value;
        int count;
    } norms[] = {{"plain.weight", 1, 4},
                 {"plain.bias", 0, 4},
                 {"plain.running_mean", 0, 4},
                 {"plain.running_var", 1, 4},
                 {"zero.weight", 0, 4},
                 {"zero.running_var", 1, 4},
                 {"plain.num_batches_tracked", 0, 1}};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        CHECK_OK(tw_parameter_read(model, norms[i].name, values, norms[i].count));
        for (int k = 0; k < norms[i].count; k++) assert_true(values[k] == norms[i].value);
    }
    tw_model_destroy(model);
}

static int equal_weights(const tw_model *one, const char *first, const tw_model *two, const char *second) {
    CHECK_OK(tw_parameter_read(one, first, values, COUNT));
    CHECK_OK(tw_parameter_read(two, second, others, COUNT));
    return memcmp(values, others, sizeof values) == 0;
}

/* Drawn by seed and name: neither the other layers nor their order matter. */
static void test_seeds(void **state) {
    (void)state;
    const tw_init init = {TW_INIT_DEFAULT, 0};
    tw_model *model = conv_model(init, init, 3, "c"), *same = conv_model(init, init, 3, "c");
    tw_model *seed = conv_model(init, init, 4, "c"), *name = conv_model(init, init, 3, "d"), *more;
    assert_true(equal_weights(model, "c.weight", same, "c.weight"));
    assert_false(equal_weights(model, "c.weight", seed, "c.weight"));
    assert_false(equal_weights(model, "c.weight", name, "d.weight"));
    assert_int_equal(tw_model_get_seed(seed), 4);
    CHECK_OK(tw_model_create(&more, task_context));
    tw_value *x = tw_conv2d(more, tw_input(more, IN, 4, 4), IN, 1, NULL);
    x = tw_conv2d(more, x, OUT, SIDE, TW_OPTIONS(conv2d, .name = "c"));
    CHECK_OK(tw_model_build(more, x, TW_OPTIONS(model, .seed = 3)));
    assert_true(equal_weights(model, "c.weight", more, "c.weight"));
    tw_model *const all[] = {model, same, seed, name, more};
    for (int i = 0; i < 5; i++) tw_model_destroy(all[i]);
    /* seeds use all their bits */
    const uint64_t far[] = {0, 1, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX};
    for (int i = 0; i < 5; i++) {
        tw_model *a = conv_model(init, init, far[i], "c"), *b = conv_model(init, init, far[(i + 1) % 5], "c");
        assert_false(equal_weights(a, "c.weight", b, "c.weight"));
        tw_model_destroy(a);
        tw_model_destroy(b);
    }
}

static void one_by_one(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user;
    for (int i = 0; i < count; i++) task(task_data, i);
}

static void not_at_all(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user, (void)count, (void)task, (void)task_data;
}

static void draw(tw_init init, int threads, tw_parallel_fn parallel, float *out) {
    tw_context *context;
    tw_model *model;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = threads, .parallel = parallel)));
    CHECK_OK(tw_model_create(&model, context));
    tw_value *y =
        tw_dense(model, tw_input(model, 1, 1, ODD), ODD, TW_OPTIONS(dense, .name = "fc", .weight_init = init));
    CHECK_OK(tw_model_build(model, y, NULL));
    CHECK_OK(tw_parameter_read(model, "fc.weight", out, ODD * ODD));
    tw_model_destroy(model);
    tw_context_destroy(context);
}

/* Workers share the draws of large weights: as many as there are, and whosever they are, these are the same. */
static void test_draws_are_the_same_on_all_threads(void **state) {
    (void)state;
    static const tw_init rules[] = {{TW_INIT_KAIMING_NORMAL, 0}, {TW_INIT_XAVIER_UNIFORM, 0}};
    for (int r = 0; r < 2; r++) {
        draw(rules[r], 1, NULL, others);
        for (int threads = 2; threads <= 7; threads++) {
            draw(rules[r], threads, NULL, values);
            assert_memory_equal(values, others, ODD * ODD * sizeof *values);
        }
        const tw_parallel_fn hosts[] = {one_by_one, not_at_all}; /* a build does not depend on them */
        for (int h = 0; h < 2; h++) {
            draw(rules[r], 3, hosts[h], values);
            assert_memory_equal(values, others, ODD * ODD * sizeof *values);
        }
    }
}

/* A program built against an older header passes a shorter struct: what it does not know is at its default. */
static void test_options_of_other_versions(void **state) {
    (void)state;
    struct {
        tw_conv2d_options known;
        int new_field;
    } newer = {TW_CONV2D_OPTIONS_INIT, 77};
    tw_conv2d_options older;
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input(model, 4, 8, 8);
    memset(&older, 0x55, sizeof older); /* behind its end there is whatever there is */
    memset(&older, 0, offsetof(tw_conv2d_options, stride));
    older.size = offsetof(tw_conv2d_options, stride);
    older.name = "older";
    older.kernel_w = 1;
    tw_value *y = tw_conv2d(model, x, 2, 3, &older);
    assert_non_null(y);
    assert_int_equal(tw_value_get_dim(y, 2), 6);
    assert_int_equal(tw_value_get_dim(y, 3), 8);
    newer.known.size = sizeof newer;
    newer.known.name = "newer";
    newer.known.padding = 1;
    y = tw_conv2d(model, x, 2, 3, &newer.known);
    assert_non_null(y);
    assert_int_equal(tw_value_get_dim(y, 2), 8);
    tw_model_options short_options = {.size = sizeof(size_t), .seed = 9};
    CHECK_OK(tw_model_build(model, y, &short_options));
    assert_int_equal(tw_model_get_seed(model), 0);
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(test_initialisers),
        with_context(test_constants_and_defaults),
        with_context(test_seeds),
        cmocka_unit_test(test_draws_are_the_same_on_all_threads),
        with_context(test_options_of_other_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

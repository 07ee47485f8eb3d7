/* Gradients of dense weights that are measured where they are made: where that is done, that the norm is theirs, and that the
 * guard finds and names in them what it finds in others. */
#include "program_net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 37, CLASSES = 10, SIDE = 17, PIXELS = SIDE * SIDE, HIDDEN = 272, PARAMETERS = 6 };
static const char *const names[PARAMETERS] = {"fc1.weight", "fc1.bias",   "fc2.weight",
                                              "fc2.bias",   "fc3.weight", "fc3.bias"};
static const int counts[PARAMETERS] = {HIDDEN * PIXELS, HIDDEN, HIDDEN *HIDDEN, HIDDEN, CLASSES *HIDDEN, CLASSES};

/* fc1 and fc2 have a relu behind them, which takes the gradient of their bias; fc3 makes that of its bias with its
 * weight's. */
static tw_value *layers(tw_model *model, tw_value *x) {
    tw_value *hidden = tw_relu(model, tw_dense(model, x, HIDDEN, NULL));
    hidden = tw_relu(model, tw_dense(model, hidden, HIDDEN, NULL));
    return tw_dense(model, hidden, CLASSES, NULL);
}

static tw_optimizer_options plain_sgd(void) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.learning_rate = 0.1;
    return sgd;
}

static int count_measured(const tw_program *program) {
    int measured = 0;
    for (int i = 0; i < tw_program_get_stats(program).steps; i++) {
        tw_step_info step = TW_STEP_INFO_INIT;
        CHECK_OK(tw_program_get_step(program, i, &step));
        measured += strcmp(step.kernel, "dense.backward_weights_measure") == 0 ||
                    strcmp(step.kernel, "dense.backward_weights_bias_measure") == 0;
    }
    return measured;
}

/* Images of whole numbers up to 50 in size, times `scale`. */
static void write_batch(net *n, tw_program *program, int64_t batch, int64_t pixels, float scale) {
    float *images = malloc(sizeof *images * (size_t)(batch * pixels));
    int32_t *labels = malloc(sizeof *labels * (size_t)batch);
    assert_true(images && labels);
    for (int64_t i = 0; i < batch * pixels; i++) images[i] = (float)((i * 37) % 101 - 50) * scale;
    for (int64_t i = 0; i < batch; i++) labels[i] = (int32_t)(i % CLASSES);
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, batch * pixels));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, batch));
    free(labels);
    free(images);
}

/* Of all gradients, from what can be read. */
static double norm_of_gradients(tw_program *program) {
    static float gradient[HIDDEN * PIXELS];
    double squares = 0;
    for (int p = 0; p < PARAMETERS; p++) {
        CHECK_OK(tw_program_read_parameter_gradient(program, names[p], gradient, counts[p]));
        for (int i = 0; i < counts[p]; i++) squares += (double)gradient[i] * (double)gradient[i];
    }
    return sqrt(squares);
}

/* Batches of one product and of several, whose sums are made in parts; numbers whose squares f32 holds, and others. */
static void the_norm_is_that_of_the_gradients(void **state) {
    (void)state;
    if (check_device()) skip();
    static const struct {
        int64_t batch;
        float scale;
        tw_precision precision;
    } ways[] = {{BATCH, 0.01f, TW_PRECISION_F32}, {3, 0.01f, TW_PRECISION_F32},      {600, 0.01f, TW_PRECISION_F32},
                {BATCH, 1e27f, TW_PRECISION_F32}, {BATCH, 1e-27f, TW_PRECISION_F32}, {BATCH, 0.01f, TW_PRECISION_BF16},
                {600, 0.01f, TW_PRECISION_BF16},  {BATCH, 0.01f, TW_PRECISION_F16},  {BATCH, 1e27f, TW_PRECISION_BF16}};
    const tw_optimizer_options sgd = plain_sgd();
    const tw_loss_scaling none = {.initial = 1};
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.loss_scaling = &none;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        double norms[4];
        for (int threads = 1; threads <= 4; threads++) {
            net n;
            open_net_on(&n, check_device_or_cpu(), threads, layers, 1, SIDE);
            static float zeros[HIDDEN * PIXELS]; /* logits are finite, whatever the images */
            if (ways[w].scale > 1) CHECK_OK(tw_parameter_write(n.model, "fc1.weight", zeros, HIDDEN * PIXELS));
            for (int b = 1; b < PARAMETERS; b += 2) { /* relus pass */
                float ones[HIDDEN];
                for (int i = 0; i < counts[b]; i++) ones[i] = (float)(1 + i % 3);
                CHECK_OK(tw_parameter_write(n.model, names[b], ones, counts[b]));
            }
            options.precision = ways[w].precision;
            tw_program *program = program_with(&n, ways[w].batch, &options, &sgd);
            assert_int_equal(count_measured(program), 3);
            write_batch(&n, program, ways[w].batch, PIXELS, ways[w].scale);
            CHECK_OK(tw_program_run(program));
            norms[threads - 1] = tw_model_get_guard(n.model).gradient_norm;
            const double norm = norm_of_gradients(program);
            assert_true(norm > 0 && fabs(norms[threads - 1] - norm) <= 1e-6 * norm);
            assert_true(norms[threads - 1] == norms[0]);
            close_net(&n);
        }
    }
}

/* Rows of so many elements of about one size that a sum in f32 of all of them loses the last ones. */
static tw_value *long_rows(tw_model *model, tw_value *x) { return tw_dense(model, x, CLASSES, NULL); }
static void the_norm_of_long_rows_is_exact(void **state) {
    (void)state;
    if (check_device()) skip();
    enum { WIDE = 256, ELEMENTS = WIDE * WIDE };
    static const tw_precision precisions[] = {TW_PRECISION_F32, TW_PRECISION_BF16, TW_PRECISION_F16};
    static float images[4 * ELEMENTS], gradient[CLASSES * ELEMENTS];
    const int32_t labels[4] = {0, 1, 2, 3};
    const tw_optimizer_options sgd = plain_sgd();
    const tw_loss_scaling none = {.initial = 1};
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.loss_scaling = &none;
    for (int i = 0; i < 4 * ELEMENTS; i++) images[i] = 0.7f;
    for (int w = 0; w < 3; w++) {
        net n;
        open_net_on(&n, check_device_or_cpu(), 2, long_rows, 1, WIDE);
        options.precision = precisions[w];
        tw_program *program = program_with(&n, 4, &options, &sgd);
        assert_int_equal(count_measured(program), 1);
        CHECK_OK(tw_program_write(program, n.x, TW_F32, images, 4 * ELEMENTS));
        CHECK_OK(tw_program_write(program, n.labels, TW_I32, labels, 4));
        CHECK_OK(tw_program_run(program));
        double squares = 0;
        CHECK_OK(tw_program_read_parameter_gradient(program, "fc1.weight", gradient, CLASSES * ELEMENTS));
        for (int i = 0; i < CLASSES * ELEMENTS; i++) squares += (double)gradient[i] * (double)gradient[i];
        CHECK_OK(tw_program_read_parameter_gradient(program, "fc1.bias", gradient, CLASSES));
        for (int i = 0; i < CLASSES; i++) squares += (double)gradient[i] * (double)gradient[i];
        const double norm = sqrt(squares);
        assert_true(norm > 0 && fabs(tw_model_get_guard(n.model).gradient_norm - norm) <= 1e-6 * norm);
        close_net(&n);
    }
}

static void where_gradients_are_measured(void **state) {
    (void)state;
    if (check_device()) skip();
    struct {
        tw_optimizer_options optimizer;
        tw_program_options options;
        int measured;
    } ways[] = {{plain_sgd(), TW_PROGRAM_OPTIONS_INIT, 3}, {plain_sgd(), TW_PROGRAM_OPTIONS_INIT, 3},
                {plain_sgd(), TW_PROGRAM_OPTIONS_INIT, 0}, {plain_sgd(), TW_PROGRAM_OPTIONS_INIT, 0},
                {plain_sgd(), TW_PROGRAM_OPTIONS_INIT, 0}, {plain_sgd(), TW_PROGRAM_OPTIONS_INIT, 3},
                {plain_sgd(), TW_PROGRAM_OPTIONS_INIT, 0}};
    const tw_loss_scaling scaling = {0};
    ways[5].options.precision = TW_PRECISION_BF16;
    ways[1].optimizer.kind = TW_ADAMW;
    ways[1].options.loss_scaling = &scaling;
    ways[2].optimizer.clip_norm = 1;
    ways[3].options.accumulate = true;
    ways[4].options.no_fusion = true;
    ways[6].options.on_non_finite = TW_NON_FINITE_IGNORE;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        net n;
        open_net_on(&n, check_device_or_cpu(), 2, layers, 1, SIDE);
        tw_program *program = program_with(&n, BATCH, &ways[w].options, &ways[w].optimizer);
        assert_int_equal(count_measured(program), ways[w].measured);
        close_net(&n);
    }
}

/* The gradient of the first weight overflows, since images are huge, and nothing else does. */
static void an_overflow_is_named(void **state) {
    (void)state;
    if (check_device()) skip();
    static float zeros[HIDDEN * PIXELS], before[HIDDEN * HIDDEN], after[HIDDEN * HIDDEN];
    const tw_optimizer_options sgd = plain_sgd();
    for (int policy = 0; policy < 2; policy++) {
        net n;
        open_net_on(&n, check_device_or_cpu(), 2, layers, 1, SIDE);
        n.loss.weight = 1e6;
        tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
        options.on_non_finite = policy ? TW_NON_FINITE_SKIP : TW_NON_FINITE_STOP;
        tw_program *program = program_with(&n, BATCH, &options, &sgd);
        CHECK_OK(tw_parameter_write(n.model, "fc1.weight", zeros, HIDDEN * PIXELS));
        CHECK_OK(tw_parameter_read(n.model, "fc2.weight", before, HIDDEN * HIDDEN));
        write_batch(&n, program, BATCH, PIXELS, 6e36f);
        if (policy)
            CHECK_OK(tw_program_run(program));
        else
            CHECK_FAILS(tw_program_run(program), TW_ERROR_NUMERIC, "fc1.weight");
        const tw_guard_stats stats = tw_model_get_guard(n.model);
        assert_string_equal(stats.culprit, "fc1.weight");
        assert_true(isinf(stats.gradient_norm));
        assert_int_equal(stats.skipped, policy);
        CHECK_OK(tw_parameter_read(n.model, "fc2.weight", after, HIDDEN * HIDDEN));
        assert_memory_equal(before, after, sizeof before);
        close_net(&n);
    }
}

/* Sums that f32 holds, and f16, in which they are kept, does not. */
static void an_overflow_of_halves_is_named(void **state) {
    (void)state;
    if (check_device()) skip();
    static float zeros[HIDDEN * PIXELS];
    const tw_optimizer_options sgd = plain_sgd();
    const tw_loss_scaling none = {.initial = 1};
    net n;
    open_net_on(&n, check_device_or_cpu(), 2, layers, 1, SIDE);
    n.loss.weight = 1e4;
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.precision = TW_PRECISION_F16;
    options.loss_scaling = &none;
    tw_program *program = program_with(&n, BATCH, &options, &sgd);
    assert_int_equal(count_measured(program), 3);
    CHECK_OK(tw_parameter_write(n.model, "fc1.weight", zeros, HIDDEN * PIXELS));
    write_batch(&n, program, BATCH, PIXELS, 1000);
    CHECK_OK(tw_program_run(program));
    assert_int_equal(tw_model_get_guard(n.model).skipped, 1);
    assert_string_equal(tw_model_get_guard(n.model).culprit, "fc1.weight");
    close_net(&n);
}

/* A row of more elements than a block of the guard, the last of which is all that overflows: its place counts as the
 * block's last, since a place beyond it would be another parameter's. */
static tw_value *one_unit(tw_model *model, tw_value *x) {
    tw_value *hidden = tw_relu(model, tw_dense(model, x, 1, NULL));
    return tw_dense(model, hidden, CLASSES, NULL);
}
static void a_place_beyond_a_block_is_named(void **state) {
    (void)state;
    if (check_device()) skip();
    enum { WIDE = 96, ELEMENTS = WIDE * WIDE };
    static float images[4 * ELEMENTS], zeros[ELEMENTS];
    const int32_t labels[4] = {0, 1, 2, 3};
    const float one = 1;
    const tw_optimizer_options sgd = plain_sgd();
    const tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    net n;
    open_net_on(&n, check_device_or_cpu(), 1, one_unit, 1, WIDE);
    n.loss.weight = 1e6;
    tw_program *program = program_with(&n, 4, &options, &sgd);
    assert_int_equal(count_measured(program), 1);
    CHECK_OK(tw_parameter_write(n.model, "fc1.weight", zeros, ELEMENTS));
    CHECK_OK(tw_parameter_write(n.model, "fc1.bias", &one, 1));
    for (int i = 0; i < 4; i++) images[(i + 1) * ELEMENTS - 1] = 3e38f;
    CHECK_OK(tw_program_write(program, n.x, TW_F32, images, 4 * ELEMENTS));
    CHECK_OK(tw_program_write(program, n.labels, TW_I32, labels, 4));
    CHECK_FAILS(tw_program_run(program), TW_ERROR_NUMERIC, "fc1.weight");
    assert_int_equal(n.model->store.guard.place, TWI_UPDATE_BLOCK - 1);
    close_net(&n);
}

/* The norm that clips, and what becomes of the weights by it, are those of a window of one batch, to the bit. */
static void clipping_measures_windows_alike(void **state) {
    (void)state;
    static float weights[2][HIDDEN * PIXELS];
    const tw_precision precisions[] = {TW_PRECISION_F32, TW_PRECISION_BF16, TW_PRECISION_F16};
    const tw_loss_scaling none = {.initial = 1};
    tw_optimizer_options sgd = plain_sgd();
    sgd.clip_norm = 1e-3f;
    for (size_t p = 0; p < sizeof precisions / sizeof *precisions; p++) {
        double norms[2];
        for (int window = 0; window < 2; window++) {
            net n;
            open_net_on(&n, check_device_or_cpu(), 2, layers, 1, SIDE);
            tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
            options.precision = precisions[p];
            options.loss_scaling = &none;
            options.accumulate = window;
            tw_program *program = program_with(&n, BATCH, &options, &sgd);
            write_batch(&n, program, BATCH, PIXELS, 0.01f);
            if (window) {
                CHECK_OK(tw_program_run_gradients(program));
                CHECK_OK(tw_program_run_update(program));
            } else {
                CHECK_OK(tw_program_run(program));
            }
            norms[window] = tw_model_get_guard(n.model).gradient_norm;
            CHECK_OK(tw_parameter_read(n.model, "fc1.weight", weights[window], HIDDEN * PIXELS));
            close_net(&n);
        }
        assert_true(norms[0] > 0 && norms[0] == norms[1]);
        assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_norm_is_that_of_the_gradients), cmocka_unit_test(the_norm_of_long_rows_is_exact),
        cmocka_unit_test(where_gradients_are_measured),      cmocka_unit_test(an_overflow_is_named),
        cmocka_unit_test(clipping_measures_windows_alike),   cmocka_unit_test(an_overflow_of_halves_is_named),
        cmocka_unit_test(a_place_beyond_a_block_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

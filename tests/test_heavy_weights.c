/* Weights that outweigh their batch: their gradients are made in ranges, from the whole batch, and are the numbers that
 * sums over samples are, on any number of threads. */
#define _POSIX_C_SOURCE 200809L
#include "program_net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 176, SIDE = 2, BATCH = 8, IMAGE = CHANNELS * SIDE * SIDE, WEIGHTS = CHANNELS * CHANNELS * 9 };

static tw_value *heavy(tw_model *model, tw_value *x) {
    x = tw_conv2d(model, x, CHANNELS, 3, TW_OPTIONS(conv2d, .padding = 1, .no_bias = true, .name = "heavy"));
    return tw_dense(model, tw_relu(model, x), 4, NULL);
}

static const char *split(const tw_program *program) {
    for (int i = 0; i < program->step_count; i++)
        if (strncmp(program->step[i].kernel->name, "conv2d.backward_weights", 23) == 0)
            return program->step[i].kernel->name;
    return "none";
}

static void test_shapes_decide(void **state) {
    (void)state;
    if (check_device()) skip();
    net n;
    open_net(&n, heavy, CHANNELS, SIDE);
    const struct {
        int64_t batch;
        const char *kernel;
    } rows[] = {{1, "conv2d.backward_weights_ranged"},
                {BATCH, "conv2d.backward_weights_ranged"},
                {192, "conv2d.backward_weights_ranged"}, /* x and dy: 198 images of both are as large as the weights */
                {208, "conv2d.backward_weights"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tw_program *program = make(&n, rows[i].batch, false);
        assert_string_equal(split(program), rows[i].kernel);
        tw_program_destroy(program);
    }
    close_net(&n);
}

/* In halves the sums over samples are f32, and are narrowed once. */
static void test_halves_are_summed_by_samples(void **state) {
    (void)state;
    if (check_device()) skip();
    net n;
    tw_program *program;
    open_net(&n, heavy, CHANNELS, SIDE);
    CHECK_OK(tw_program_create(
        &program, n.model, BATCH,
        TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1, .precision = TW_PRECISION_BF16)));
    assert_string_equal(split(program), "conv2d.backward_weights");
    tw_program_destroy(program);
    close_net(&n);
}

/* The weights' gradient in a context of its own, of samples that are the same every time. */
static void gradient(int threads, const char *isa, float *out) {
    static float x[BATCH * IMAGE];
    static const int32_t labels[BATCH] = {0, 1, 2, 3, 3, 2, 1, 0};
    const char *given = getenv("TALWEG_CPU");
    char *before = given ? strdup(given) : NULL;
    net n;
    for (int i = 0; i < BATCH * IMAGE; i++) x[i] = (float)((i * 7919LL) % 1009) / 504.5f - 1;
    if (isa) assert_int_equal(setenv("TALWEG_CPU", isa, 1), 0);
    CHECK_OK(tw_context_create(&n.context, "cpu", TW_OPTIONS(context, .threads = threads)));
    CHECK_OK(tw_model_create(&n.model, n.context));
    n.x = tw_input(n.model, CHANNELS, SIDE, SIDE);
    n.labels = tw_input_labels(n.model, NULL);
    n.logits = heavy(n.model, n.x);
    n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
    CHECK_OK(tw_model_build(n.model, n.logits, TW_OPTIONS(model, .seed = 1)));
    tw_program *program;
    CHECK_OK(tw_program_create(&program, n.model, BATCH,
                               TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1)));
    assert_string_equal(split(program), "conv2d.backward_weights_ranged");
    CHECK_OK(tw_program_write(program, n.x, TW_F32, x, BATCH * IMAGE));
    CHECK_OK(tw_program_write(program, n.labels, TW_I32, labels, BATCH));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read_parameter_gradient(program, "heavy.weight", out, WEIGHTS));
    tw_program_destroy(program);
    close_net(&n);
    if (before)
        setenv("TALWEG_CPU", before, 1);
    else
        unsetenv("TALWEG_CPU");
    free(before);
}

static void test_same_numbers(void **state) {
    (void)state;
    if (check_device()) skip();
    static float one[WEIGHTS], three[WEIGHTS], specification[WEIGHTS];
    gradient(1, NULL, one);
    gradient(3, NULL, three);
    assert_memory_equal(one, three, sizeof one);
    gradient(2, "specification", specification);
    double largest = 0, difference = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        largest = fmax(largest, fabs(specification[i]));
        difference = fmax(difference, fabs(specification[i] - one[i]));
    }
    assert_true(largest > 1e-4);
    assert_true(difference < 1e-5 * largest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_decide),
        cmocka_unit_test(test_halves_are_summed_by_samples),
        cmocka_unit_test(test_same_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

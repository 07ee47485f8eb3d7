/* Pooling through models and programs, on values that other libraries got wrong: windows that overhang, padding that won a
 * maximum or was counted. Values by hand, confirmed by PyTorch 1.13. */
#define _POSIX_C_SOURCE 200809L /* setenv */

#include "check_device.h"
#include "graph/graph.h"
#include "program/model.h"
#include <talweg/program.h>

#include <math.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { SIDE = 4, LARGEST = 9 };

typedef struct pooling {
    bool max, negative /* of -x - 1 */, ceil_mode, exclude_padding;
    int side; /* of the result */
    float y[LARGEST];
    float dx[SIDE * SIDE]; /* for a gradient of 1 everywhere */
} pooling;

/* Kernel 3, stride 2, padding 1. */
static const float image[SIDE * SIDE] = {2, 4, 6, 8, 1, 3, 5, 7, 0, 2, 4, 6, 9, 7, 5, 3};
#define N(n) (1.0f / (n))
static const pooling poolings[] = {
    {.side = 2,
     .y = {1.111111f, 3.666667f, 2.444444f, 4.666667f},
     .dx = {N(9), 2 * N(9), N(9), N(9), 2 * N(9), 4 * N(9), 2 * N(9), 2 * N(9), N(9), 2 * N(9), N(9), N(9), N(9),
            2 * N(9), N(9), N(9)}},
    {.exclude_padding = true,
     .side = 2,
     .y = {2.5f, 5.5f, 3.666667f, 4.666667f},
     .dx = {N(4), N(4) + N(6), N(6), N(6), N(4) + N(6), N(4) + 2 * N(6) + N(9), N(6) + N(9), N(6) + N(9), N(6),
            N(6) + N(9), N(9), N(9), N(6), N(6) + N(9), N(9), N(9)}},
    {.ceil_mode = true,
     .side = 3,
     .y = {1.111111f, 3.666667f, 2.5f, 2.444444f, 4.666667f, 2.666667f, 2.666667f, 2.5f, 0.75f},
     .dx = {N(9), 2 * N(9), N(9), N(9) + N(6), 2 * N(9), 4 * N(9), 2 * N(9), 2 * N(9) + 2 * N(6), N(9), 2 * N(9), N(9),
            N(9) + N(6), N(9) + N(6), 2 * N(9) + 2 * N(6), N(9) + N(6), N(9) + 2 * N(6) + N(4)}},
    {.ceil_mode = true,
     .exclude_padding = true,
     .side = 3,
     .y = {2.5f, 5.5f, 7.5f, 3.666667f, 4.666667f, 5.333333f, 8, 5, 3},
     .dx = {N(4), N(4) + N(6), N(6), N(6) + N(2), N(4) + N(6), N(4) + 2 * N(6) + N(9), N(6) + N(9),
            N(6) + N(9) + N(2) + N(3), N(6), N(6) + N(9), N(9), N(9) + N(3), N(6) + N(2), N(6) + N(9) + N(2) + N(3),
            N(9) + N(3), N(9) + 2 * N(3) + 1}},
    {.max = true, .side = 2, .y = {4, 8, 9, 7}, .dx = {0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1}},
    {.max = true,
     .ceil_mode = true,
     .side = 3,
     .y = {4, 8, 8, 9, 7, 7, 9, 7, 3},
     .dx = {0, 1, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 2, 1, 0, 1}},
    {.max = true, .negative = true, .side = 2, .y = {-2, -4, -1, -3}, .dx = {0, 0, 0, 0, 1, 1, 0, 0, 1, 1}},
};

static void ok(tw_status status) {
    if (status) fail_msg("%s: %s", tw_status_name(status), tw_last_error());
}

static void expect_near(const float *found, const float *expected, int count, const char *what, int row) {
    for (int i = 0; i < count; i++)
        if (!(fabsf(found[i] - expected[i]) < 1e-6f))
            fail_msg("row %d: %s[%d] is %.7g, expected %.7g", row, what, i, (double)found[i], (double)expected[i]);
}

/* The sum of the pooled image as loss: the gradient of every window is 1. */
static tw_value *sum_of(tw_model *model, tw_value *y, tw_value *ones) {
    return twi_graph_node(&model->graph, "dot", "sum", 2, (tw_value *[]){y, ones}, NULL);
}

static void check(tw_context *context, const pooling *p, int row) {
    const int64_t sides[] = {1, p->side, p->side};
    int64_t windows = (int64_t)p->side * p->side;
    float x_data[SIDE * SIDE], one[LARGEST], y_data[LARGEST], dx_data[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) x_data[i] = p->negative ? -image[i] - 1 : image[i];
    for (int i = 0; i < LARGEST; i++) one[i] = 1;

    tw_model *model;
    tw_program *program;
    ok(tw_model_create(&model, context));
    tw_value *x = tw_input(model, 1, SIDE, SIDE), *ones = tw_input_shaped(model, "ones", 3, sides);
    const tw_pool_options *options =
        TW_OPTIONS(pool, .stride = 2, .padding = 1, .ceil_mode = p->ceil_mode, .exclude_padding = p->exclude_padding);
    tw_value *y = p->max ? tw_max_pool(model, x, 3, options) : tw_avg_pool(model, x, 3, options);
    tw_loss loss = {sum_of(model, y, ones), 1};
    ok(tw_model_build(model, y, NULL));
    ok(tw_program_create(&program, model, 1,
                         TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .outputs = &y,
                                    .output_count = 1, .gradients = &x, .gradient_count = 1)));
    ok(tw_program_write(program, x, TW_F32, x_data, SIDE * SIDE));
    ok(tw_program_write(program, ones, TW_F32, one, windows));
    ok(tw_program_run(program));
    ok(tw_program_read(program, y, y_data, windows));
    ok(tw_program_read_gradient(program, x, dx_data, SIDE * SIDE));
    expect_near(y_data, p->y, (int)windows, "y", row);
    expect_near(dx_data, p->dx, SIDE * SIDE, "dx", row);
    tw_program_destroy(program);
    tw_model_destroy(model);
}

static void published_values(void **state) {
    assert_int_equal(setenv("TALWEG_CPU", *state, 1), 0);
    tw_context *context;
    ok(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 1)));
    for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i++) check(context, &poolings[i], (int)i);
    tw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"specification", published_values, NULL, NULL, "specification"},
        {"baseline", published_values, NULL, NULL, "baseline"},
        {"this processor", published_values, NULL, NULL, ""},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which products take what is behind them as cuBLASLt's own epilogue, and which leave it to a kernel of ours: the dump of a
 * program says so, and the numbers are those of the CPU either way. */
#define _POSIX_C_SOURCE 200809L
#include "back_end_task.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 8, FEATURES = 8, MOST = 40 };

static tw_value *build(tw_model *model, tw_value *x, int64_t width, int64_t classes) {
    const tw_gelu_options gelu = {.size = sizeof gelu, .tanh = true};
    x = tw_gelu(model, tw_dense(model, x, width, NULL), &gelu);
    return tw_dense(model, x, classes, NULL);
}

typedef struct found {
    char dump[1 << 14];
    float loss, weights[MOST * MOST], biases[MOST], last_biases[MOST];
} found;

/* A step of training, and what it leaves in the first layer and in the bias of the last; train false: the plan of
 * inference alone. */
static void run(const char *device, int64_t width, int64_t classes, bool train, found *out) {
    tw_context *context;
    tw_model *model;
    tw_program *program;
    float images[BATCH * FEATURES];
    int32_t labels[BATCH];
    const int64_t features = FEATURES;
    for (int i = 0; i < BATCH * FEATURES; i++) images[i] = (float)(i * 37 % 64 - 31) / 16;
    for (int i = 0; i < BATCH; i++) labels[i] = (int32_t)(i % classes);
    CHECK_OK(tw_context_create(&context, device, TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input_shaped(model, "x", 1, &features), *y = tw_input_labels(model, NULL);
    tw_value *logits = build(model, x, width, classes);
    const tw_loss loss = {tw_cross_entropy(model, logits, y, NULL), 1};
    CHECK_OK(tw_model_build(model, logits, TW_OPTIONS(model, .seed = 3)));
    const tw_optimizer_options sgd = {.size = sizeof sgd, .learning_rate = 0.5f};
    CHECK_OK(
        tw_program_create(&program, model, BATCH,
                          TW_OPTIONS(program, .train = train, .losses = &loss, .loss_count = train, .outputs = &logits,
                                     .output_count = 1, .optimizer = train ? &sgd : NULL, .record_passes = true)));
    const char *dump = tw_program_dump(program, TW_PASS_MEMORY);
    assert_true(strlen(dump) < sizeof out->dump);
    strcpy(out->dump, dump);
    if (train) {
        CHECK_OK(tw_program_write(program, x, TW_F32, images, BATCH * FEATURES));
        CHECK_OK(tw_program_write(program, y, TW_I32, labels, BATCH));
        CHECK_OK(tw_program_run(program));
        CHECK_OK(tw_program_read(program, loss.value, &out->loss, 1));
        CHECK_OK(tw_parameter_read(model, "fc1.weight", out->weights, width * FEATURES));
        CHECK_OK(tw_parameter_read(model, "fc1.bias", out->biases, width));
        CHECK_OK(tw_parameter_read(model, "fc2.bias", out->last_biases, classes));
    }
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_context_destroy(context);
}

/* The implementation that a step of this kernel has. */
static void expect(const found *f, const char *kernel, const char *implementation) {
    char begin[64], name[64];
    snprintf(begin, sizeof begin, " %s ", kernel);
    snprintf(name, sizeof name, " %s ", implementation);
    const char *step = strstr(f->dump, begin), *end = step ? strchr(step, '\n') : NULL,
               *at = step ? strstr(step, name) : NULL;
    if (!step || !at || (end && at > end)) fail_msg("%s is not by %s:\n%s", kernel, implementation, f->dump);
}

static void compare(const found *a, const found *b, int64_t width, int64_t classes) {
    assert_true(fabsf(a->loss - b->loss) < 1e-5f);
    for (int64_t i = 0; i < width * FEATURES; i++) assert_true(fabsf(a->weights[i] - b->weights[i]) < 1e-5f);
    for (int64_t i = 0; i < width; i++) assert_true(fabsf(a->biases[i] - b->biases[i]) < 1e-5f);
    for (int64_t i = 0; i < classes; i++) assert_true(fabsf(a->last_biases[i] - b->last_biases[i]) < 1e-5f);
}

static void check(int64_t width, int64_t classes, const char *gelu, const char *biases) {
    static found cpu, gpu;
    run("cpu", width, classes, true, &cpu);
    run("cuda:0", width, classes, true, &gpu);
    expect(&gpu, "dense.forward_bias_gelu", gelu);
    expect(&gpu, "dense.backward_data_gelu", gelu);
    expect(&gpu, "dense.backward_weights_bias", biases);
    expect(&gpu, "dense.backward_weights", "cublaslt");
    compare(&gpu, &cpu, width, classes);
}

static void what_fits_is_one_product(void **state) {
    (void)state;
    check(16, 4, "cublaslt", "cublaslt");
}

/* Rows of gelu's input must be a multiple of 8 apart; the stand-in knows no gradient of a bias where sides are odd. */
static void what_does_not_is_a_product_and_a_kernel(void **state) {
    (void)state;
    check(12, 5, "cublaslt+kernel", "cublaslt+kernel");
    check(32, 3, "cublaslt", "cublaslt+kernel");
    check(20, 4, "cublaslt+kernel", "cublaslt");
}

/* In inference nobody wants what the gelu reads, and so nothing has to be a multiple of 8. */
static void inference_keeps_nothing(void **state) {
    (void)state;
    static found gpu;
    run("cuda:0", 12, 5, false, &gpu);
    expect(&gpu, "dense.forward_bias_gelu", "cublaslt");
    assert_null(strstr(gpu.dump, "->z="));
}

/* Without any algorithm, kernels of ours do all of it. */
static void without_the_library_kernels_do_it(void **state) {
    (void)state;
    static found cpu, gpu;
    run("cpu", 16, 4, true, &cpu);
    for (int refused = 1; refused <= 8; refused++) { /* one after the other says no, once */
        emu_fail_call((uint64_t)refused, "cublasLtMatmulAlgoGetHeuristic");
        run("cuda:0", 16, 4, true, &gpu);
        emu_fail_call(0, NULL);
        compare(&gpu, &cpu, 16, 4);
        assert_true(refused > 6 || strstr(gpu.dump, "kernel ") != NULL);
    }
    assert_int_equal(emu_count_live(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_is_one_product),
        cmocka_unit_test(what_does_not_is_a_product_and_a_kernel),
        cmocka_unit_test(inference_keeps_nothing),
        cmocka_unit_test(without_the_library_kernels_do_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

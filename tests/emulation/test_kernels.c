/* Every CUDA kernel against its specification, on the emulated device: every op on all of its cases, fused and not, in
 * f32, f16 and bf16, in several layouts, in place where a kernel may be; and the steps that every training program ends with.
 * test_kernels NAME checks one op; in place of a name, "sampled" runs each program in some of the settings, in turn, and
 * "small" what ThreadSanitizer manages. */
#include "kernel_check.h"

#include "backend/cuda/kernel_table.h"
#include "base/half.h"
#include "emu.h"
#include "program/program.h"

#include <talweg/talweg.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const kernel_setting settings[] = {
    {.name = "f32", .real = TW_F32},
    {.name = "f16", .real = TW_F16, .micro = 2, .slot = 1},
    {.name = "bf16, rows", .real = TW_BF16, .layout = KERNEL_ROWS},
    {.name = "f32, mixed", .real = TW_F32, .layout = KERNEL_MIXED, .slot = 1},
    {.name = "f16, mixed, unaligned", .real = TW_F16, .layout = KERNEL_MIXED, .unaligned = true},
    {.name = "f32, unaligned", .real = TW_F32, .unaligned = true, .slot = 1},
    {.name = "f32, faults", .real = TW_F32, .faults = true},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

/* The settings that a program is run in when they are sampled: every fourth, the next one begins one further. */
enum { SAMPLED = 4 };

static kernel_seen seen;
static bool small, sampled;
static int turn;

static bool is_large(const twi_case *c) { return strncmp(c->name, "large", 5) == 0; }

static void check_program(const case_graph *graph, const tw_program *program, const case_data *data, int *failures) {
    const int of_turn = turn++ % SAMPLED;
    for (int s = 0; s < SETTINGS; s++)
        if (small ? s < 2 : !sampled || s % SAMPLED == of_turn)
            kernel_check(graph, program, data, &settings[s], &seen, failures);
}

static void check_case(const twi_op *op, const twi_case *c, int *failures) {
    for (int fuse = 0; fuse < 2; fuse++) {
        const case_setting setting = {.name = "kernels",
                                      .device = "cpu",
                                      .registry = &twi_registry_builtin,
                                      .isa = "specification",
                                      .threads = 1,
                                      .fuse = fuse != 0};
        case_graph graph;
        case_data data;
        case_graph_open(&graph, &setting, op, c);
        case_data_draw(&data, &graph, 1);
        for (int train = 0; train <= (graph.loss != NULL); train++) {
            tw_program *program = case_graph_compile(&graph, train, NULL, 0);
            check_program(&graph, program, &data, failures);
            tw_program_destroy(program);
        }
        case_data_free(&data);
        case_graph_close(&graph);
    }
}

static void check_op(void **state) {
    const twi_op *op = *state;
    int failures = 0;
    for (const twi_case *c = op->cases; c->name; c++) {
        if (small && is_large(c)) continue;
        int before = failures;
        turn++; /* most cases have as many programs as there are turns */
        check_case(op, c, &failures);
        if (failures > before) print_error("%s, case '%s'\n", op->name, c->name);
    }
    if (failures) fail_msg("%s: %d failures", op->name, failures);
}

/* ---- training programs whole, with every optimizer and schedule ---- */

static void check_training(const char *op_name, int case_index, const tw_optimizer_options *optimizer, bool window) {
    const case_setting setting = {.name = "training",
                                  .device = "cpu",
                                  .registry = &twi_registry_builtin,
                                  .isa = "specification",
                                  .threads = 1,
                                  .fuse = true};
    const twi_op *op = twi_registry_find(&twi_registry_builtin, op_name);
    case_graph graph;
    case_data data;
    tw_program *program;
    int failures = 0;
    case_graph_open(&graph, &setting, op, &op->cases[case_index]);
    case_data_draw(&data, &graph, 1);
    const tw_loss loss = {graph.loss, 1};
    CASE_DO(tw_program_create(&program, graph.model, graph.batch,
                              TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1,
                                         .optimizer = optimizer, .accumulate = window)));
    check_program(&graph, program, &data, &failures);
    tw_program_destroy(program);
    case_data_free(&data);
    case_graph_close(&graph);
    if (failures) fail_msg("%s: %d failures", op_name, failures);
}

static void sgd_in_all_its_forms(void **state) {
    (void)state;
    const tw_optimizer_options plain = {.size = sizeof plain, .kind = TW_SGD},
                               momentum = {.size = sizeof plain, .momentum = 0.9f, .weight_decay = 0.1f},
                               nesterov = {.size = sizeof plain,
                                           .momentum = 0.5f,
                                           .nesterov = true,
                                           .schedule = {.kind = TW_SCHEDULE_STEP, .every = 2}};
    check_training("batch_norm", 0, &plain, false);
    check_training("batch_norm", 7, &momentum, false);
    check_training("conv2d_bias_relu", 7, &momentum, true);
    check_training("dense", 5, &nesterov, true);
}

static void adamw_and_its_schedules(void **state) {
    (void)state;
    const tw_optimizer_options cosine = {.size = sizeof cosine,
                                         .kind = TW_ADAMW,
                                         .weight_decay = 0.1f,
                                         .schedule = {.kind = TW_SCHEDULE_COSINE, .total = 20, .warmup = 3}},
                               warmup = {.size = sizeof cosine, .kind = TW_ADAMW, .schedule = {.warmup = 10}};
    check_training("batch_norm_relu", 1, &cosine, true);
    check_training("dense", 5, &warmup, false);
}

/* ---- programs that gather their batches ---- */

enum { SAMPLES = 7, MOST_FLOATS = 256 };

static void check_gathering(tw_dtype dtype, int channels, int height, int width, bool flat, bool flip, int crop) {
    static uint8_t bytes[SAMPLES * MOST_FLOATS];
    static float floats[SAMPLES * MOST_FLOATS];
    const int32_t labels[SAMPLES] = {3, 1, 4, 1, 5, 9, 2}, order[] = {6, 2, 2, 0, 5};
    const int64_t size = (int64_t)channels * height * width;
    int failures = 0;
    assert_true(size <= MOST_FLOATS);
    for (int i = 0; i < SAMPLES * MOST_FLOATS; i++) floats[i] = bytes[i] = (uint8_t)(i * 31 + i / 97 * 7 + 1);
    tw_context *context;
    tw_model *model;
    tw_resident *resident;
    tw_program *program;
    CASE_DO(tw_context_create(&context, "cpu", NULL));
    CASE_DO(tw_resident_create(&resident, context, dtype, dtype == TW_U8 ? (const void *)bytes : floats, SAMPLES,
                               channels, height, width, labels));
    CASE_DO(tw_resident_set_order(resident, 3, order, sizeof order / sizeof *order));
    CASE_DO(tw_model_create(&model, context));
    tw_value *x = flat ? tw_input_shaped(model, "x", 1, &size) : tw_input(model, channels, height, width);
    tw_value *outputs[] = {x, tw_input_labels(model, "labels")};
    CASE_DO(tw_model_build(model, tw_dense(model, x, 2, NULL), NULL));
    CASE_DO(tw_program_create(
        &program, model, 4,
        TW_OPTIONS(program, .outputs = outputs, .output_count = 2,
                   .source = TW_OPTIONS(source, .resident = resident, .images = outputs[0], .labels = outputs[1],
                                        .flip = flip, .crop_padding = crop, .seed = 11))));
    check_program(NULL, program, NULL, &failures);
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_resident_destroy(resident);
    tw_context_destroy(context);
    if (failures) fail_msg("%d failures", failures);
}

static void gathered_samples(void **state) {
    (void)state;
    check_gathering(TW_U8, 3, 6, 5, false, true, 2);
    check_gathering(TW_U8, 1, 12, 20, false, false, 0);
    check_gathering(TW_U8, 5, 3, 9, true, true, 1);
    check_gathering(TW_F32, 3, 6, 5, false, true, 2);
    check_gathering(TW_F32, 17, 1, 1, true, false, 1);
}

/* ---- programs that are streamed to ---- */

static tw_status stream_nothing(tw_context *context, void *device, int slot, const void *host, size_t bytes) {
    (void)context, (void)device, (void)slot, (void)host, (void)bytes;
    return TW_OK;
}

static void check_streaming(int channels, int height, int width, int batch) {
    int failures = 0;
    tw_context *context;
    tw_model *model;
    tw_program *program;
    CASE_DO(tw_context_create(&context, "cpu", NULL));
    const twi_backend *own = context->backend;
    twi_backend beside = *own; /* the CPU's programs have no slots otherwise */
    beside.stream_in = stream_nothing;
    CASE_DO(tw_model_create(&model, context));
    tw_value *x = tw_input(model, channels, height, width);
    tw_value *outputs[] = {x, tw_input_labels(model, "labels")};
    CASE_DO(tw_model_build(model, tw_dense(model, x, 2, NULL), NULL));
    context->backend = &beside;
    CASE_DO(twi_program_create(&program, model, batch, TW_OPTIONS(program, .outputs = outputs, .output_count = 2),
                               &(twi_surroundings){.streamed = true}));
    check_program(NULL, program, NULL, &failures);
    tw_program_destroy(program);
    context->backend = own;
    tw_model_destroy(model);
    tw_context_destroy(context);
    if (failures) fail_msg("%d failures", failures);
}

static void streamed_inputs(void **state) {
    (void)state;
    check_streaming(3, 6, 5, 4);
    check_streaming(1, 1, 3, 5);
    check_streaming(17, 5, 7, 9);
    check_streaming(1, 1, 1, 1);
}

/* ---- casts, which stand in programs of two types only: a program here has one ---- */

static twi_operand image(void *data, const int64_t dim[4], bool channels_last, uint8_t store, tw_dtype dtype) {
    twi_operand o = {
        .data = data, .shape = {4, {dim[0], dim[1], dim[2], dim[3]}}, .store = store, .dtype = (uint8_t)dtype};
    const int64_t nhwc[] = {dim[1] * dim[2] * dim[3], 1, dim[1] * dim[3], dim[1]};
    twi_shape_row_major(&o.shape, o.stride);
    if (channels_last) memcpy(o.stride, nhwc, sizeof nhwc);
    return o;
}

static void run_cast(const char *name, twi_operand x, twi_operand y) {
    const twk_entry *entry = twi_cuda_find_entry(name);
    const twk_launch launch = {.processors = 4};
    const twi_call call = {
        .kernel = twi_registry_find_kernel(&twi_registry_builtin, name), .operand_count = 2, .operand = {x, y}};
    assert_non_null(entry);
    assert_int_equal(entry->run(&call, &launch), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    seen.name[seen.count++] = entry->kernel;
}

/* There and back: rounded once, infinite where the type ends, not-a-number as it was; images in two layouts. */
static void check_casts(tw_dtype half, const int64_t dim[4], bool channels_last) {
    enum { MOST = 1024 };
    const size_t count = (size_t)(dim[0] * dim[1] * dim[2] * dim[3]);
    float values[MOST], found[MOST];
    void *x, *y, *z;
    assert_true(count <= MOST);
    for (size_t i = 0; i < count; i++) values[i] = (float)((int)(i * 7919 % 2003) - 1001) / 77.0f;
    values[0] = NAN;
    values[count / 2] = -1e30f;
    values[count - 1] = 65519;
    assert_int_equal(cudaMalloc(&x, count * sizeof(float)), cudaSuccess);
    assert_int_equal(cudaMalloc(&y, count * sizeof(uint16_t)), cudaSuccess);
    assert_int_equal(cudaMalloc(&z, count * sizeof(float)), cudaSuccess);
    assert_int_equal(cudaMemcpy(x, values, count * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
    const twi_operand wide = image(x, dim, channels_last, TWI_REAL, TW_F32),
                      narrow = image(y, dim, true, TWI_REAL, half),
                      back = image(z, dim, channels_last, TWI_REAL, TW_F32);
    run_cast("cast.narrow", wide, narrow);
    run_cast("cast.widen", narrow, back);
    assert_int_equal(cudaMemcpy(found, z, count * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < count; i++) {
        const float want = twi_half_to_f32(half, twi_half_from_f32(half, values[i]));
        if (isnan(want) ? !isnan(found[i]) : found[i] != want)
            fail_msg("%s: %g becomes %g, expected %g", tw_dtype_name(half), values[i], found[i], want);
    }
    (void)cudaFree(x);
    (void)cudaFree(y);
    (void)cudaFree(z);
}

static void casts(void **state) {
    (void)state;
    static const int64_t dims[][4] = {{1, 1, 1, 1}, {3, 5, 4, 7}, {2, 8, 4, 4}, {9, 3, 1, 5}};
    for (int d = 0; d < 4; d++)
        for (int last = 0; last < 2; last++) {
            check_casts(TW_F16, dims[d], last != 0);
            check_casts(TW_BF16, dims[d], last != 0);
        }
}

/* A table without gaps: every kernel record of the library has a row, and ran above. What a back end is asked about before a
 * program has it is not missed. */
static void every_kernel_record_ran(void **state) {
    (void)state;
    if (small) skip();
    for (const twi_op *const *op = twi_registry_builtin.ops; *op; op++)
        for (const twi_kernel *const *kernel = (*op)->kernels; *kernel && !(*op)->asked; kernel++) {
            bool ran = false;
            for (int i = 0; i < seen.count; i++) ran |= strcmp(seen.name[i], (*kernel)->name) == 0;
            if (!ran) fail_msg("%s did not run", (*kernel)->name);
        }
}

static void nothing_is_left_on_the_device(void **state) {
    (void)state;
    assert_int_equal(emu_count_live(), 0);
}

int main(int argc, char **argv) {
    enum { TESTS = 128 };
    struct CMUnitTest tests[TESTS];
    size_t count = 0;
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    sampled = argc > 1 && strcmp(argv[1], "sampled") == 0;
    for (const twi_op *const *op = twi_registry_builtin.ops; *op && count < TESTS - 7; op++)
        if ((*op)->build_case && !(*op)->asked)
            tests[count++] = (struct CMUnitTest){(*op)->name, check_op, NULL, NULL, (void *)(uintptr_t)*op};
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(sgd_in_all_its_forms);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(adamw_and_its_schedules);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(gathered_samples);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(streamed_inputs);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(casts);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(every_kernel_record_ran);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(nothing_is_left_on_the_device);
    if (argc > 1 && !small && !sampled) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("kernels", tests, count, NULL, NULL);
}

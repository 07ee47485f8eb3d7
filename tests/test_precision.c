/* Programs in mixed precision, looked into: which steps and buffers have which type, that rules change their layers alone,
 * that the copy of the weights is never stale, which gradients are kept in halves, and the table of the
 * documentation. Ops one by one are in test_ops_half.c, whole trainings against PyTorch in
 * test_trajectories_half.c. TALWEG_TEST_DEVICE names another device than the CPU. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "program_net.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/halves.h"
#include "base/half.h"

#include <math.h>
#include <stdio.h>

static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, 10); }

static tw_program *make_in(net *n, int64_t batch, bool train, tw_precision precision, const tw_precision_rule *rules,
                           int rule_count) {
    tw_program *program;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    sgd.learning_rate = 0.1;
    const tw_loss_scaling small = {.initial = 16}; /* so that no update is left out */
    CHECK_OK(tw_program_create(&program, n->model, batch,
                               TW_OPTIONS(program, .train = train, .losses = &n->loss, .loss_count = 1,
                                          .outputs = &n->logits, .output_count = 1, .optimizer = train ? &sgd : NULL,
                                          .precision = precision, .precision_rules = rules,
                                          .precision_rule_count = rule_count, .record_passes = true,
                                          .loss_scaling = train && precision == TW_PRECISION_F16 ? &small : NULL)));
    return program;
}

static void feed(const net *n, tw_program *program, int batch, int pixels) {
    float *images = malloc((size_t)(batch * pixels) * sizeof *images);
    int32_t labels[16];
    for (int i = 0; i < batch * pixels; i++) images[i] = (float)(i * 7919 % 251) / 125.0f - 1;
    for (int i = 0; i < batch; i++) labels[i] = i % 10;
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, (int64_t)batch * pixels));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, batch));
    free(images);
}

/* The type of a step's own operands; -1: it has none. */
static int type_of(const tw_program *program, const twi_step *step) {
    int type = -1;
    for (int o = 0; o < step->kernel->operand_count; o++) {
        if (step->operand[o] < 0 || step->kernel->operand[o].store != TWI_REAL || step->kernel->half_of[o]) continue;
        const uint8_t dtype = program->buffer[step->operand[o]].dtype;
        if (type >= 0) assert_int_equal(type, dtype); /* all alike */
        type = dtype;
    }
    return type;
}

static bool is_cast(const twi_step *step) { return strncmp(step->kernel->name, "cast.", 5) == 0; }

static bool is_of(const twi_step *step, const char *layer) {
    return strncmp(step->label, layer, strlen(layer)) == 0 &&
           (!step->label[strlen(layer)] || step->label[strlen(layer)] == '.');
}

static void a_rule_changes_the_steps_of_its_layer_alone(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet5, 1, 28);
    const tw_precision_rule rules[] = {{"conv2", TW_PRECISION_F32}, {"fc3", TW_PRECISION_F32}};
    tw_program *plain = make_in(&n, 8, true, TW_PRECISION_BF16, NULL, 0);
    tw_program *ruled = make_in(&n, 8, true, TW_PRECISION_BF16, rules, 2);
    int f32 = 0, casts = 0;
    for (int s = 0; s < plain->step_count; s++) {
        assert_false(is_cast(&plain->step[s])); /* nothing in LeNet asks for one */
        int type = type_of(plain, &plain->step[s]);
        if (type >= 0) assert_int_equal(type, TW_BF16);
    }
    for (int s = 0; s < ruled->step_count; s++) {
        const twi_step *step = &ruled->step[s];
        int type = type_of(ruled, step);
        if (is_cast(step)) {
            casts++;
        } else if (type >= 0) {
            bool named = is_of(step, "conv2") || is_of(step, "fc3");
            assert_int_equal(type, named ? TW_F32 : TW_BF16);
            f32 += named;
        }
    }
    assert_true(f32 >= 6); /* forward, both gradients and bias of two layers */
    assert_int_equal(casts,
                     8); /* into and out of each, forward and backward; relu's kept output twice, pooling's once */
    assert_int_not_equal(tw_program_get_plan_hash(plain), tw_program_get_plan_hash(ruled));
    tw_program_destroy(ruled);
    tw_program_destroy(plain);
    close_net(&n);
}

static void rules_are_checked(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_program *program;
    const tw_precision_rule nobody = {"conv9", TW_PRECISION_F32}, other = {"conv1", TW_PRECISION_F16},
                            nameless = {NULL, TW_PRECISION_F32};
#define CREATE(...) \
    tw_program_create(&program, n.model, 4, TW_OPTIONS(program, .losses = &n.loss, .loss_count = 1, __VA_ARGS__))
    CHECK_FAILS(CREATE(.precision = TW_PRECISION_BF16, .precision_rules = &nobody, .precision_rule_count = 1),
                TW_ERROR_ARGUMENT, "no layer 'conv9'");
    CHECK_FAILS(CREATE(.precision = TW_PRECISION_BF16, .precision_rules = &other, .precision_rule_count = 1),
                TW_ERROR_ARGUMENT, "'conv1' cannot be f16 in a program of bf16");
    CHECK_FAILS(CREATE(.precision = TW_PRECISION_BF16, .precision_rules = &nameless, .precision_rule_count = 1),
                TW_ERROR_ARGUMENT, "precision_rules[0] names no layer");
    CHECK_FAILS(CREATE(.precision = TW_PRECISION_BF16, .precision_rule_count = 1), TW_ERROR_ARGUMENT, "list is NULL");
    CHECK_FAILS(CREATE(.precision = (tw_precision)9), TW_ERROR_ARGUMENT, "precision 9 is none");
#undef CREATE
    close_net(&n);
}

/* ---- the copy of the weights ---- */

static void read_logits(const net *n, tw_program *program, float out[80]) {
    feed(n, program, 8, 784);
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, n->logits, out, 80));
}

/* Writes every parameter what it is, so that all copies are made again. */
static void rewrite_parameters(const net *n) {
    for (int i = 0; i < tw_model_count_parameters(n->model); i++) {
        tw_parameter p;
        CHECK_OK(tw_model_get_parameter(n->model, i, &p));
        int64_t count = 1;
        for (int k = 0; k < p.rank; k++) count *= p.dims[k];
        float *values = malloc((size_t)count * sizeof *values);
        CHECK_OK(tw_parameter_read(n->model, p.name, values, count));
        CHECK_OK(tw_parameter_write(n->model, p.name, values, count));
        free(values);
    }
}

static void check_the_copy(void) {
    static const tw_precision trained[] = {TW_PRECISION_F32, TW_PRECISION_BF16, TW_PRECISION_F16};
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_program *reader = make_in(&n, 8, false, TW_PRECISION_BF16, NULL, 0);
    float before[80], after[80], again[80];
    for (int t = 0; t < 3; t++) {
        tw_program *trainer = make_in(&n, 8, true, trained[t], NULL, 0);
        read_logits(&n, reader, before);
        feed(&n, trainer, 8, 784);
        CHECK_OK(tw_program_run(trainer));
        read_logits(&n, reader, after); /* what the optimizer wrote, or a copy made since */
        rewrite_parameters(&n);
        read_logits(&n, reader, again); /* a copy made by the back end */
        assert_memory_not_equal(before, after, sizeof before);
        assert_memory_equal(after, again, sizeof after);
        tw_program_destroy(trainer);
    }
    const float ones[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    CHECK_OK(tw_parameter_write(n.model, "fc3.bias", ones, 10));
    read_logits(&n, reader, again);
    assert_memory_not_equal(after, again, sizeof after);
    tw_program_destroy(reader);
    close_net(&n);
}

/* The specification writes it as the vector loops do. */
static void the_copy_of_the_weights_is_never_stale(void **state) {
    (void)state;
    check_the_copy();
    assert_int_equal(setenv("TALWEG_CPU", "specification", 1), 0);
    check_the_copy();
    unsetenv("TALWEG_CPU");
}

/* ---- gradients ---- */

static bool is_bf16(float value) { return twi_bf16_to_f32(twi_bf16_from_f32(value)) == value; }

static int count_wider(const float *values, int count) {
    int wider = 0;
    for (int i = 0; i < count; i++) wider += !is_bf16(values[i]);
    return wider;
}

/* Of the weights of convolutions and dense layers they are rounded once; of biases they are f32. */
static void gradients_of_weights_are_halves_and_of_biases_f32(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int count;
        bool half;
    } rows[] = {{"conv1.weight", 150, true},
                {"conv2.weight", 2400, true},
                {"fc1.weight", 48000, true},
                {"conv1.bias", 6, false},
                {"fc1.bias", 120, false}};
    static float found[48000], wanted[48000];
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_program *bf16 = make_in(&n, 8, true, TW_PRECISION_BF16, NULL, 0),
               *f32 = make_in(&n, 8, true, TW_PRECISION_F32, NULL, 0);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        feed(&n, f32, 8, 784);
        CHECK_OK(tw_program_run_gradients(f32));
        CHECK_OK(tw_program_read_parameter_gradient(f32, rows[r].name, wanted, rows[r].count));
        feed(&n, bf16, 8, 784);
        CHECK_OK(tw_program_run_gradients(bf16));
        CHECK_OK(tw_program_read_parameter_gradient(bf16, rows[r].name, found, rows[r].count));
        double away = 0, norm = 0;
        for (int i = 0; i < rows[r].count; i++) {
            away += (double)(found[i] - wanted[i]) * (double)(found[i] - wanted[i]);
            norm += (double)wanted[i] * (double)wanted[i];
        }
        if (!(sqrt(away) <= 0.15 * sqrt(norm))) /* pooling may choose another of two that rounding made alike */
            fail_msg("%s: %.3g away from a gradient of norm %.3g", rows[r].name, sqrt(away), sqrt(norm));
        assert_int_equal(count_wider(found, rows[r].count) == 0, rows[r].half);
    }
    tw_program_destroy(f32);
    tw_program_destroy(bf16);
    close_net(&n);
}

/* A window sums halves and f32 alike in f32. */
static void a_window_sums_halves_in_f32(void **state) {
    (void)state;
    static float one[2400], sums[2400];
    net n;
    tw_program *window;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    open_net(&n, lenet5, 1, 28);
    tw_program *single = make_in(&n, 8, true, TW_PRECISION_BF16, NULL, 0);
    CHECK_OK(tw_program_create(&window, n.model, 8,
                               TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1, .optimizer = &sgd,
                                          .accumulate = true, .precision = TW_PRECISION_BF16)));
    feed(&n, single, 8, 784);
    CHECK_OK(tw_program_run_gradients(single));
    CHECK_OK(tw_program_read_parameter_gradient(single, "conv2.weight", one, 2400));
    CHECK_OK(tw_window_open(n.model, 24));
    for (int i = 0; i < 3; i++) {
        feed(&n, window, 8, 784);
        CHECK_OK(tw_program_run_gradients(window));
    }
    CHECK_OK(tw_program_read_parameter_gradient(window, "conv2.weight", sums, 2400));
    assert_true(count_wider(sums, 2400) > 0);
    double away = 0, norm = 0; /* each batch counts a third, and is rounded alone */
    for (int i = 0; i < 2400; i++) {
        away += (double)(sums[i] - one[i]) * (double)(sums[i] - one[i]);
        norm += (double)one[i] * (double)one[i];
    }
    if (!(sqrt(away) <= 0.02 * sqrt(norm))) fail_msg("%g away from a gradient of norm %g", sqrt(away), sqrt(norm));
    CHECK_OK(tw_program_run_update(window));
    tw_program_destroy(window);
    tw_program_destroy(single);
    close_net(&n);
}

/* ---- auto, tf32 ---- */

static void automatic_is_bf16_where_the_processor_multiplies_it(void **state) {
    (void)state;
    if (check_device()) skip();
    static const char *const isas[] = {"avx2", "avx512", "avx512_bf16"};
    for (int i = 0; i < 3; i++) {
        net n;
        assert_int_equal(setenv("TALWEG_CPU", isas[i], 1), 0);
        open_net(&n, lenet5, 1, 28);
        tw_program *program = make_in(&n, 8, false, TW_PRECISION_AUTO, NULL, 0);
        bool bf16 = twi_cpu_isa() == TWI_ISA_AVX512_BF16;
        assert_int_equal(program->precision, bf16 ? TW_PRECISION_BF16 : TW_PRECISION_F32);
        tw_program_destroy(program);
        close_net(&n);
    }
    unsetenv("TALWEG_CPU");
}

/* What has no TF32 computes in f32, bit for bit. */
static void tf32_is_f32_where_there_is_none(void **state) {
    (void)state;
    net n;
    float f32[80], tf32[80];
    open_net(&n, lenet5, 1, 28);
    tw_program *plain = make_in(&n, 8, false, TW_PRECISION_F32, NULL, 0),
               *program = make_in(&n, 8, false, TW_PRECISION_TF32, NULL, 0);
    bool there = n.context->backend->computes_in(n.context, TW_PRECISION_TF32);
    read_logits(&n, plain, f32);
    read_logits(&n, program, tf32);
    assert_int_equal(memcmp(f32, tf32, sizeof f32) == 0, !there);
    for (int i = 0; i < 80; i++) assert_true(fabsf(f32[i] - tf32[i]) <= 2e-3f);
    assert_int_equal(strstr(tw_program_dump(program, TW_PASS_MEMORY), " tf32 ") != NULL, there);
    tw_program_destroy(program);
    tw_program_destroy(plain);
    close_net(&n);
}

static void dumps_tell_types(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_program *program = make_in(&n, 32, true, TW_PRECISION_F16, NULL, 0);
    const char *dump = tw_program_dump(program, TW_PASS_MEMORY);
    assert_non_null(strstr(dump, "batch 32, train, f16, "));
    assert_non_null(strstr(dump, "w=conv1.weight[6, 1, 5, 5]:f16 "));
    assert_non_null(strstr(dump, "<->param=parameters[61760] "));
    assert_non_null(strstr(dump, "<->param_half=parameters in half precision[61760]:f16"));
    tw_program_stats half = tw_program_get_stats(program);
    tw_program *f32 = make_in(&n, 32, true, TW_PRECISION_F32, NULL, 0);
    tw_program_stats full = tw_program_get_stats(f32);
    assert_true(half.bytes < full.bytes);
    assert_int_equal(half.parameter_bytes, full.parameter_bytes + 61760 * 2);
    assert_int_equal(half.gradient_bytes, full.gradient_bytes + 61760 * 2);
    tw_program_destroy(f32);
    tw_program_destroy(program);
    close_net(&n);
}

/* ---- conversions ---- */

static void conversions_are_those_of_half_c(void **state) {
    (void)state;
    enum { COUNT = 65536 + 5 };
    static uint16_t halves[COUNT], narrowed[COUNT];
    static float floats[COUNT], wide[COUNT];
    const tw_dtype types[] = {TW_F16, TW_BF16};
    for (int isa = TWI_ISA_BASELINE; isa <= (int)twi_cpu_isa(); isa++)
        for (int t = 0; t < 2; t++) {
            const twi_halves_loops *loops = twi_halves_for((twi_isa)isa);
            for (int i = 0; i < COUNT; i++) halves[i] = (uint16_t)i;
            loops->widen(wide, halves, types[t], COUNT);
            for (int i = 0; i < COUNT; i++) {
                const float want = twi_half_to_f32(types[t], halves[i]);
                if (isnan(want) ? !isnan(wide[i]) : memcmp(&want, &wide[i], sizeof want) != 0)
                    fail_msg("%s: half %04x is %g, expected %g", tw_dtype_name(types[t]), i, wide[i], want);
            }
            uint32_t random = 1;
            for (int i = 0; i < COUNT; i++) {
                random = random * 1664525u + 1013904223u;
                uint32_t bits = i % 2 ? random : (uint32_t)halves[i] << 16 | 0x8000u >> (i % 16 ? 0 : 3); /* ties too */
                memcpy(&floats[i], &bits, sizeof bits);
            }
            loops->narrow(narrowed, floats, types[t], COUNT);
            for (int i = 0; i < COUNT; i++) {
                const uint16_t want = twi_half_from_f32(types[t], floats[i]);
                const bool nan = isnan(floats[i]);
                if (nan ? !isnan(twi_half_to_f32(types[t], narrowed[i])) : narrowed[i] != want)
                    fail_msg("%s: %a becomes %04x, expected %04x", tw_dtype_name(types[t]), (double)floats[i],
                             narrowed[i], want);
            }
        }
}

/* ---- the table of the documentation ---- */

static void the_documented_table_is_that_of_the_kernels(void **state) {
    (void)state;
    char path[4096], line[512];
    static char text[65536];
    const char *source = getenv("TALWEG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/docs/mixed-precision.md", source ? source : ".");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    static const char *const words[] = {
        [TWI_TYPES_FOLLOW] = "the program's", [TWI_TYPES_F32] = "f32", [TWI_TYPES_READERS] = "its readers'"};
    static const char *const stores[] = {
        [TWI_REAL] = "half", [TWI_ACC] = "f32", [TWI_F32] = "f32", [TWI_GRADIENT] = "half"};
    int missing = 0;
    for (const twi_op *const *op = twi_registry_builtin.ops; *op; op++)
        for (const twi_kernel *const *k = (*op)->kernels; *k; k++) {
            bool real = false;
            int length = snprintf(line, sizeof line, "| `%s` | %s |", (*k)->name, words[(*k)->types]);
            for (int wanted = 0; wanted < 2; wanted++) { /* halves; then f32 */
                const char *separator = " ";
                for (int o = 0; o < (*k)->operand_count; o++) {
                    const twi_operand_rule *rule = &(*k)->operand[o];
                    if (rule->store == TWI_I32 || rule->store == TWI_U8 || rule->store == TWI_BITS) continue;
                    if ((strcmp(stores[rule->store], "f32") == 0) != wanted) continue;
                    real = real || rule->store == TWI_REAL;
                    length += snprintf(line + length, sizeof line - (size_t)length, "%s%s", separator, rule->name);
                    separator = ", ";
                }
                length += snprintf(line + length, sizeof line - (size_t)length, " |");
            }
            if (!real || strstr(text, line)) continue;
            print_error("%s\n", line);
            missing++;
        }
    assert_int_equal(missing, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rule_changes_the_steps_of_its_layer_alone),
        cmocka_unit_test(rules_are_checked),
        cmocka_unit_test(the_copy_of_the_weights_is_never_stale),
        cmocka_unit_test(gradients_of_weights_are_halves_and_of_biases_f32),
        cmocka_unit_test(a_window_sums_halves_in_f32),
        cmocka_unit_test(automatic_is_bf16_where_the_processor_multiplies_it),
        cmocka_unit_test(tf32_is_f32_where_there_is_none),
        cmocka_unit_test(dumps_tell_types),
        cmocka_unit_test(conversions_are_those_of_half_c),
        cmocka_unit_test(the_documented_table_is_that_of_the_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every op on every one of its cases in f16 and in bf16, on the instruction sets of this processor: against the
 * specification in double on the same inputs, which have been rounded to that type, so that what differs is the rounding
 * of what lies between and comes out; and 2 threads against 1, bit for bit. Distances are of whole results, by their
 * norms: a value that rounding moves over the kink of a relu moves one element by all it is.
 * Where TALWEG_TEST_DEVICE names a device: what that makes of them instead. test_ops_half NAME checks one op. */
#include "check_device.h"

#include "op_check/case_run.h"

#include "base/half.h"
#include "program/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

extern const twi_registry twi_registry_builtin_f64;

typedef struct half_type {
    tw_precision precision;
    tw_dtype dtype;
    double unit; /* the largest relative error of rounding to it */
} half_type;

static const half_type types[] = {{TW_PRECISION_BF16, TW_BF16, 0x1p-9}, {TW_PRECISION_F16, TW_F16, 0x1p-12}};

/* A handful of roundings lie between input and result: each of at most one unit of the largest element; gradients of a
 * batch norm are differences of numbers several times as large, and where windows of a pooling overlap, what a gradient of a
 * bias sums has been summed and rounded before. */
enum { ROUNDINGS = 6, NORM_ROUNDINGS = 40, POOL_ROUNDINGS = 9, SEEDS = 10 };

typedef struct op_check {
    const twi_op *op;
    const twi_case *c;
    const half_type *type;
    int roundings;
    int failures;
} op_check;

static int roundings_of(const twi_op *op) {
    if (strncmp(op->name, "batch_norm", 10) == 0) return NORM_ROUNDINGS;
    return strstr(op->name, "_max_pool") ? POOL_ROUNDINGS : ROUNDINGS;
}

/* ---- comparing ---- */

static void complain(op_check *check, const char *setting, const char *what, double found, double allowed) {
    if (check->failures++ < 5)
        print_error("%s, case '%s', %s, %s: %s is %.3g away, allowed is %.3g\n", check->op->name, check->c->name,
                    tw_dtype_name(check->type->dtype), setting, what, found, allowed);
}

static void compare(op_check *check, const char *setting, const case_results *found, const case_results *expected) {
    assert_int_equal(found->count, expected->count);
    for (int r = 0; r < found->count; r++) {
        const case_result *a = &found->result[r], *b = &expected->result[r];
        double away = 0, norm = 0;
        assert_string_equal(a->what, b->what);
        assert_int_equal(a->count, b->count);
        for (int64_t i = 0; i < b->count; i++) {
            away += (a->values[i] - b->values[i]) * (a->values[i] - b->values[i]);
            norm += b->values[i] * b->values[i];
        }
        /* Small results are differences of numbers of about 1. */
        norm = fmax(sqrt(norm), 0.3 * sqrt((double)b->count));
        double allowed = check->roundings * check->type->unit * norm;
        if (!(sqrt(away) <= allowed)) complain(check, setting, a->what, sqrt(away), allowed);
    }
}

static void compare_bits(op_check *check, const case_results *found, const case_results *expected) {
    for (int r = 0; r < found->count; r++)
        if (memcmp(found->result[r].values, expected->result[r].values,
                   (size_t)found->result[r].count * sizeof(double)) != 0)
            complain(check, "2 threads against 1", found->result[r].what, 1, 0);
}

/* ---- running ---- */

/* Steps of the program, apart from the loss that the check adds, are in the type they should have. */
static void expect_type(op_check *check, const tw_program *program) {
    for (int s = 0; s < program->step_count; s++) {
        const twi_step *step = &program->step[s];
        for (int o = 0; o < step->kernel->operand_count; o++) {
            if (step->operand[o] < 0 || step->kernel->operand[o].store != TWI_REAL || step->kernel->half_of[o])
                continue;
            const uint8_t dtype = program->buffer[step->operand[o]].dtype;
            const uint8_t wanted = step->kernel->types == TWI_TYPES_F32 ? TW_F32 : check->type->dtype;
            if (dtype != wanted)
                fail_msg("%s, case '%s': operand %s of %s is %s", check->op->name, check->c->name,
                         step->kernel->operand[o].name, step->kernel->name, tw_dtype_name((tw_dtype)dtype));
        }
    }
}

static void run_setting(op_check *check, const case_setting *setting, const case_data *data, case_results results[2]) {
    case_graph graph;
    case_graph_open(&graph, setting, twi_registry_find(setting->registry, check->op->name), check->c);
    for (int train = 0; train <= (graph.loss != NULL); train++) {
        tw_program *program = case_graph_compile(&graph, train, NULL, 0);
        if (setting->precision != TW_PRECISION_F32) expect_type(check, program);
        case_load(&graph, program, data);
        case_run(&graph, program);
        case_collect(&graph, program, &results[train]);
        tw_program_destroy(program);
    }
    case_graph_close(&graph);
}

static void free_results(case_results results[2]) {
    case_results_free(&results[0]);
    case_results_free(&results[1]);
}

static void round_data(const op_check *check, const case_graph *graph, case_data *data) {
    for (int o = 0; o < data->count; o++)
        for (int64_t i = 0; !graph->operand[o].classes && i < graph->operand[o].count; i++)
            data->values[o][i] = (double)twi_half_to_f32(
                check->type->dtype, twi_half_from_f32(check->type->dtype, (float)data->values[o][i]));
}

/* What nodes of that op read; with `computed` only what is not given. */
static int find_read(const case_graph *graph, const char *op, bool computed, tw_value **watched) {
    int count = 0;
    const twi_graph *made = &graph->model->graph;
    for (int i = 0; i < made->node_count; i++)
        if (strcmp(made->node[i]->op->name, op) == 0 &&
            (!computed || made->node[i]->input[0]->kind == TWI_VALUE_RESULT))
            watched[count++] = made->node[i]->input[0];
    return count;
}

/* A pooling that chooses among what is computed, and rounded by some and not by others, may choose another element where
 * two lie nearer to each other than that, and a gradient goes to another place altogether. So numbers are whole and small
 * there: what is computed of them no type rounds, and elements are equal, of which the first is chosen, or one apart. */
static void make_whole(const case_graph *graph, case_data *data) {
    for (int o = 0; o < data->count; o++) {
        const double largest = graph->operand[o].value->kind == TWI_VALUE_INPUT ? 2.4 : 1.4;
        for (int64_t i = 0; graph->operand[o].differentiated && i < graph->operand[o].count; i++)
            data->values[o][i] = rint(largest * data->values[o][i]);
    }
}

static void draw_seed(const op_check *check, const case_graph *graph, bool whole, uint64_t seed, case_data *data) {
    case_data_draw(data, graph, seed);
    if (whole) make_whole(graph, data);
    round_data(check, graph, data);
}

/* The numbers that keep values farthest from the kinks, rounded; where a pooling chooses, those that nothing rounds. */
static void draw(const op_check *check, const case_setting *setting, case_data *data) {
    case_graph graph;
    tw_value *watched[CASE_OPERANDS];
    uint64_t best = 1;
    double farthest = -INFINITY;
    case_graph_open(&graph, setting, twi_registry_find(setting->registry, check->op->name), check->c);
    int count = find_read(&graph, "max_pool", true, watched);
    const bool whole = count > 0;
    if (!whole) count = find_read(&graph, "relu", false, watched);
    tw_program *program = count && graph.loss ? case_graph_compile(&graph, true, watched, count) : NULL;
    for (uint64_t seed = 1; program && seed <= SEEDS; seed++) {
        draw_seed(check, &graph, whole, seed, data);
        case_load(&graph, program, data);
        case_run(&graph, program);
        double least = INFINITY;
        for (int i = 0; i < count; i++)
            least = fmin(least, whole ? -case_rounding(program, watched[i], check->type->dtype)
                                      : case_least(program, watched[i]));
        if (least > farthest) farthest = least, best = seed;
        case_data_free(data);
    }
    if (whole && farthest != 0) fail_msg("%s, case '%s': numbers are rounded", check->op->name, check->c->name);
    draw_seed(check, &graph, whole, best, data);
    tw_program_destroy(program);
    case_graph_close(&graph);
}

static void check_cpu(op_check *check, const case_data *data, const case_results expected[2]) {
    enum { ISAS = 5 };
    static const char *const all[ISAS] = {"specification", "baseline", "avx2", "avx512", "avx512_bf16"};
    const char *isas[ISAS];
    const int count = case_choose_isas(all, ISAS, isas);
    for (int i = 0; i < count; i++) {
        const tw_precision precision = check->type->precision;
        case_results one[2] = {{0}}, two[2] = {{0}};
        const case_setting alone = {isas[i], &twi_registry_builtin, isas[i], 1, true, NULL, precision};
        const case_setting together = {isas[i], &twi_registry_builtin, isas[i], 2, true, NULL, precision};
        run_setting(check, &alone, data, one);
        run_setting(check, &together, data, two);
        for (int train = 0; train < 2; train++) {
            compare(check, isas[i], &one[train], &expected[train]);
            compare_bits(check, &two[train], &one[train]);
        }
        free_results(one);
        free_results(two);
    }
}

static void check_case(op_check *check) {
    const case_setting in_double = {"double", &twi_registry_builtin_f64, "specification", 1, false,
                                    NULL,     TW_PRECISION_F32};
    case_data data = {0};
    case_results expected[2] = {{0}}, found[2] = {{0}};
    draw(check, &in_double, &data);
    run_setting(check, &in_double, &data, expected);
    if (check_device()) {
        const case_setting there = {"device",       &twi_registry_builtin, NULL, 1, true,
                                    check_device(), check->type->precision};
        run_setting(check, &there, &data, found);
        for (int train = 0; train < 2; train++) compare(check, there.name, &found[train], &expected[train]);
        free_results(found);
    } else {
        check_cpu(check, &data, expected);
    }
    free_results(expected);
    case_data_free(&data);
}

static void check_op(void **state) {
    op_check check = {.op = *state};
    check.roundings = roundings_of(check.op);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (check.c = check.op->cases; check.c->name; check.c++) {
            check.type = &types[t];
            check_case(&check);
        }
    if (check.failures) fail_msg("%s: %d failures", check.op->name, check.failures);
}

int main(int argc, char **argv) {
    enum { TESTS = 128 };
    struct CMUnitTest tests[TESTS];
    size_t count = 0;
    for (const twi_op *const *op = twi_registry_builtin.ops; *op && count < TESTS; op++)
        if ((*op)->build_case)
            tests[count++] = (struct CMUnitTest){(*op)->name, check_op, NULL, NULL, (void *)(uintptr_t)*op};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("ops in half precision", tests, count, NULL, NULL);
}

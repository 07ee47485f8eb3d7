/* Every op on every one of its cases:
 *   the specification in double against central differences (not the cases called "large ..."),
 *   the specification in float, and that of fused kernels in double, against that in double,
 *   what the program makes of it with fusion, on every instruction set this processor has, against the specification in
 *   double, with 1 and 2 threads alike to the last bit.
 * Where the environment variable TALWEG_TEST_DEVICE names a device: instead what that device makes of it, with and without
 * fusion, against the specification in double.
 * test_ops NAME checks one op. */
#include "check_device.h"

#include "op_check/case_run.h"

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

/* Distances allowed, relative to the largest element of what is compared, or to the least scale if that is larger: small results are
 * differences of numbers of about 1. So are zeros, and after a batch norm of one sample of numbers of about 300. */
static const double float_tolerance = 5e-5, double_tolerance = 1e-12, least_scale = 0.1, scale_of_zero = 1;
/* Relative; where a derivative is smaller than the floor, it counts as large as that. */
static const double difference_tolerance = 1e-6, difference_floor = 1e-2, difference_step = 1e-5;
/* Values before a relu stay this far from its kink: more than a step moves them, more than float rounds them. */
static const double kink_distance = 1e-3, kink_distance_large = 1e-5;

enum { SEEDS = 100, SHOWN = 5, KERNELS = 64 };

/* One op's check under way. */
typedef struct op_check {
    const twi_op *op; /* of the float table */
    const twi_case *c;
    const twi_kernel *seen[KERNELS];
    int seen_count;
    int failures;
} op_check;

static bool is_large(const twi_case *c) { return strncmp(c->name, "large", 5) == 0; }

/* ---- comparing ---- */

static void complain(op_check *check, const char *setting, const char *what, int64_t index, double found,
                     double expected) {
    if (check->failures++ < SHOWN)
        print_error("%s, case '%s', %s: %s[%lld] is %.9g, expected %.9g\n", check->op->name, check->c->name, setting,
                    what, (long long)index, found, expected);
}

static void compare(op_check *check, const char *setting, const case_results *found, const case_results *expected,
                    double tolerance) {
    assert_int_equal(found->count, expected->count);
    for (int r = 0; r < found->count; r++) {
        const case_result *a = &found->result[r], *b = &expected->result[r];
        assert_string_equal(a->what, b->what);
        assert_int_equal(a->count, b->count);
        double scale = 0;
        for (int64_t i = 0; i < b->count; i++) scale = fmax(scale, fabs(b->values[i]));
        scale = scale < 1e-9 ? scale_of_zero : fmax(scale, least_scale);
        for (int64_t i = 0; i < b->count; i++)
            if (!(fabs(a->values[i] - b->values[i]) <= tolerance * scale))
                complain(check, setting, a->what, i, a->values[i], b->values[i]);
    }
}

static void compare_bits(op_check *check, const char *setting, const case_results *found,
                         const case_results *expected) {
    for (int r = 0; r < found->count; r++)
        for (int64_t i = 0; i < found->result[r].count; i++)
            if (memcmp(&found->result[r].values[i], &expected->result[r].values[i], sizeof(double)) != 0)
                complain(check, setting, found->result[r].what, i, found->result[r].values[i],
                         expected->result[r].values[i]);
}

/* ---- kernels that ran ---- */

static void note_kernels(op_check *check, const tw_program *program) {
    for (int s = 0; s < program->step_count; s++) {
        bool known = false;
        for (int k = 0; k < check->seen_count; k++)
            known |= strcmp(check->seen[k]->name, program->step[s].kernel->name) == 0;
        if (known) continue;
        assert_true(check->seen_count < KERNELS);
        check->seen[check->seen_count++] = program->step[s].kernel;
    }
}

/* A fused op's cases must be fused: a kernel must be there whose name begins so. */
static void expect_fused(op_check *check, const tw_program *program) {
    const char *name = check->op->fused;
    for (int s = 0; s < program->step_count; s++)
        if (strncmp(program->step[s].kernel->name, name, strlen(name)) == 0) return;
    check->failures++;
    print_error("%s, case '%s': the program has no %s step\n", check->op->name, check->c->name, name);
}

/* What depends on the back end must be there in the specification, and on the CPU's instruction sets in large cases. */
static bool must_fuse(const op_check *check, const case_setting *setting) {
    if (!check->op->asked) return true;
    return !setting->device && (strcmp(setting->isa, "specification") == 0 || is_large(check->c));
}

/* ---- running a case ---- */

/* results[0] of inference, [1] of training if there is anything to differentiate. */
static void run_setting(op_check *check, const case_setting *setting, const case_data *data, case_results results[2]) {
    case_graph graph;
    const twi_op *op = twi_registry_find(setting->registry, check->op->name);
    case_graph_open(&graph, setting, op, check->c);
    for (int train = 0; train <= (graph.loss != NULL); train++) {
        tw_program *program = case_graph_compile(&graph, train, NULL, 0);
        note_kernels(check, program);
        const bool due = check->op->untrained ? !train : train;
        if (due && setting->fuse && check->op->fused && must_fuse(check, setting)) expect_fused(check, program);
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

/* ---- the specification in double ---- */

static const case_setting double_setting = {"double", &twi_registry_builtin_f64, "specification", 1, false,
                                            NULL,     TW_PRECISION_F32};

static int find_kinks(const case_graph *graph, tw_value **watched) {
    int count = 0;
    const twi_graph *made = &graph->model->graph;
    for (int i = 0; i < made->node_count; i++)
        if (strcmp(made->node[i]->op->name, "relu") == 0) watched[count++] = made->node[i]->input[0];
    return count;
}

/* Draws until no watched value is near its kink. */
static void settle_data(op_check *check, const case_graph *graph, tw_program *program, tw_value *const *watched,
                        int count, case_data *data) {
    double wanted = is_large(check->c) ? kink_distance_large : kink_distance;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        case_data_draw(data, graph, seed);
        if (!program) return;
        case_load(graph, program, data);
        case_run(graph, program);
        double least = INFINITY;
        for (int i = 0; i < count; i++) least = fmin(least, case_least(program, watched[i]));
        if (least > wanted) return;
        case_data_free(data);
    }
    fail_msg("%s, case '%s': no seed keeps its values off the kinks", check->op->name, check->c->name);
}

static void compare_differences(op_check *check, const case_graph *graph, tw_program *program, const case_data *data,
                                const case_results *results) {
    const double h = difference_step;
    int r = 1; /* after the output, in the order of the operands */
    for (int o = 0; o < graph->operand_count; o++) {
        if (graph->operand[o].value->kind == TWI_VALUE_BUFFER) r++;
        if (!graph->operand[o].differentiated) continue;
        const case_result *gradient = &results->result[r++];
        for (int64_t i = 0; i < gradient->count; i++) {
            double x = data->values[o][i];
            case_set(graph, program, o, i, x + h);
            double above = case_run(graph, program);
            case_set(graph, program, o, i, x - h);
            double below = case_run(graph, program);
            case_set(graph, program, o, i, x);
            double expected = (above - below) / (2 * h), found = gradient->values[i];
            double scale = fmax(difference_floor, fmax(fabs(expected), fabs(found)));
            if (!(fabs(found - expected) <= difference_tolerance * scale))
                complain(check, "central differences", gradient->what, i, found, expected);
        }
    }
}

/* Draws the case's data and computes what all others are measured by. */
static void run_double(op_check *check, case_data *data, case_results results[2]) {
    case_graph graph;
    tw_value *watched[CASE_OPERANDS];
    case_graph_open(&graph, &double_setting, twi_registry_find(&twi_registry_builtin_f64, check->op->name), check->c);
    int count = find_kinks(&graph, watched);
    tw_program *program = graph.loss ? case_graph_compile(&graph, true, watched, count) : NULL;
    settle_data(check, &graph, program, watched, count, data);
    run_setting(check, &double_setting, data, results);
    if (program && !is_large(check->c) && !check_device())
        compare_differences(check, &graph, program, data, &results[1]);
    tw_program_destroy(program);
    case_graph_close(&graph);
}

/* ---- one case, one op ---- */

static void compare_fast(op_check *check, const case_data *data, const case_results expected[2]) {
    enum { ISAS = 3 };
    static const char *const all[ISAS] = {"baseline", "avx2", "avx512"};
    const char *isas[ISAS];
    const int count = case_choose_isas(all, ISAS, isas);
    for (int i = 0; i < count; i++) {
        case_results one[2] = {{0}}, two[2] = {{0}};
        const case_setting alone = {isas[i], &twi_registry_builtin, isas[i], 1, true, NULL, TW_PRECISION_F32};
        const case_setting together = {isas[i], &twi_registry_builtin, isas[i], 2, true, NULL, TW_PRECISION_F32};
        run_setting(check, &alone, data, one);
        run_setting(check, &together, data, two);
        for (int train = 0; train < 2; train++) {
            compare(check, isas[i], &one[train], &expected[train], float_tolerance);
            compare_bits(check, "2 threads against 1", &two[train], &one[train]);
        }
        free_results(one);
        free_results(two);
    }
}

/* Specifications against those of the single kernels in double. */
static void compare_specification(op_check *check, const case_setting *setting, double tolerance, const case_data *data,
                                  const case_results expected[2]) {
    case_results found[2] = {{0}};
    run_setting(check, setting, data, found);
    for (int train = 0; train < 2; train++) compare(check, setting->name, &found[train], &expected[train], tolerance);
    free_results(found);
}

static void check_case(op_check *check) {
    static const case_setting in_float = {"float", &twi_registry_builtin, "specification", 1, false,
                                          NULL,    TW_PRECISION_F32};
    static const case_setting fused = {"fused, double", &twi_registry_builtin_f64, "specification", 1, true, NULL,
                                       TW_PRECISION_F32};
    const case_setting on_device = {"device", &twi_registry_builtin, NULL, 1, true, check_device(), TW_PRECISION_F32};
    const case_setting unfused = {"device, not fused", &twi_registry_builtin, NULL, 1, false,
                                  check_device(),      TW_PRECISION_F32};
    case_data data = {0};
    case_results expected[2] = {{0}};
    run_double(check, &data, expected);
    if (check_device()) {
        compare_specification(check, &on_device, float_tolerance, &data, expected);
        compare_specification(check, &unfused, float_tolerance, &data, expected);
    } else {
        compare_specification(check, &in_float, float_tolerance, &data, expected);
        compare_specification(check, &fused, double_tolerance, &data, expected);
        compare_fast(check, &data, expected);
    }
    free_results(expected);
    case_data_free(&data);
}

static void check_op(void **state) {
    op_check check = {.op = *state};
    for (check.c = check.op->cases; check.c->name; check.c++) check_case(&check);
    const bool optional = check.op->asked && check_device(); /* the device need not have these kernels */
    for (const twi_kernel *const *kernel = check.op->kernels; *kernel && !optional; kernel++) {
        bool ran = false;
        for (int k = 0; k < check.seen_count; k++) ran |= strcmp(check.seen[k]->name, (*kernel)->name) == 0;
        if (!ran) {
            check.failures++;
            print_error("%s: no case makes a program run %s\n", check.op->name, (*kernel)->name);
        }
    }
    if (check.failures) fail_msg("%s: %d failures", check.op->name, check.failures);
}

/* Ops that a graph or the fusion pass can hold have cases; the others are steps that every program ends with. */
static void cases_are_there(void **state) {
    (void)state;
    for (const twi_op *const *op = twi_registry_builtin.ops; *op; op++) {
        bool checkable = (*op)->infer || (*op)->fused;
        if (checkable && !((*op)->cases && (*op)->cases->name && (*op)->build_case))
            fail_msg("%s has no cases", (*op)->name);
    }
}

int main(int argc, char **argv) {
    enum { TESTS = 128 };
    struct CMUnitTest tests[TESTS] = {cmocka_unit_test(cases_are_there)};
    size_t count = 1;
    for (const twi_op *const *op = twi_registry_builtin.ops; *op && count < TESTS; op++)
        if ((*op)->build_case)
            tests[count++] = (struct CMUnitTest){(*op)->name, check_op, NULL, NULL, (void *)(uintptr_t)*op};
    if (argc > 1 && !twi_registry_find(&twi_registry_builtin, argv[1])) {
        fprintf(stderr, "there is no op '%s'\n", argv[1]);
        return 1;
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("ops", tests, count, NULL, NULL);
}

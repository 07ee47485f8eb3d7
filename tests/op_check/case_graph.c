/* Builds a case in a fresh context. What is fed and what comes out is left to case_run.c. */
#define _POSIX_C_SOURCE 200809L /* setenv */

#include "case_graph.h"

#include "backend/cpu/cpu.h"
#include "base/context.h"
#include "check_device.h"
#include "program/model.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

void case_expect_ok(tw_status status, const char *what) {
    if (status) fail_msg("%s: %s: %s", what, tw_status_name(status), tw_last_error());
}

/* ---- what build_case is offered ---- */

static case_operand *add_operand(case_graph *graph, tw_value *value, int64_t count) {
    CASE_DO(twi_graph_status(&graph->model->graph));
    assert_true(graph->operand_count < CASE_OPERANDS);
    case_operand *operand = &graph->operand[graph->operand_count++];
    *operand = (case_operand){.value = value, .count = count};
    return operand;
}

static case_operand *add_input(case_graph *graph, const char *name, twi_store_kind store, int rank,
                               const int64_t *dims) {
    twi_shape shape = {.rank = rank};
    memcpy(shape.dim, dims, (size_t)rank * sizeof *dims);
    int64_t count = twi_shape_count(&shape);
    assert_true(!graph->batch || graph->batch == dims[0]);
    graph->batch = dims[0];
    shape.dim[0] = 1;
    twi_graph *made = &graph->model->graph;
    return add_operand(
        graph, twi_graph_value(made, twi_graph_name(made, name, NULL), TWI_VALUE_INPUT, store, true, &shape), count);
}

static tw_value *build_input(twi_builder *builder, const char *name, int rank, const int64_t *dims) {
    case_operand *operand = add_input(builder->self, name, TWI_REAL, rank, dims);
    operand->differentiated = true;
    return operand->value;
}

static tw_value *build_labels(twi_builder *builder, int64_t batch, int64_t classes) {
    case_operand *operand = add_input(builder->self, "labels", TWI_I32, 1, &batch);
    operand->classes = classes;
    return operand->value;
}

static case_operand *add_kept(case_graph *graph, const char *name, int rank, const int64_t *dims, bool learned) {
    twi_parameter record = {.shape = {.rank = rank}, .learned = learned, .trainable = learned};
    memcpy(record.shape.dim, dims, (size_t)rank * sizeof *dims);
    tw_value *value = twi_model_parameter(graph->model, name, "kept", &record);
    return add_operand(graph, value, twi_shape_count(&record.shape));
}

static tw_value *build_parameter(twi_builder *builder, const char *name, int rank, const int64_t *dims) {
    case_operand *operand = add_kept(builder->self, name, rank, dims, true);
    operand->differentiated = true;
    return operand->value;
}

static tw_value *build_buffer(twi_builder *builder, const char *name, int rank, const int64_t *dims, double fill) {
    case_operand *operand = add_kept(builder->self, name, rank, dims, false);
    operand->constant = true;
    operand->fill = fill;
    return operand->value;
}

static tw_value *build_node(twi_builder *builder, const char *op, const char *name, int input_count,
                            tw_value *const *inputs, const void *attrs) {
    case_graph *graph = builder->self;
    twi_graph *made = &graph->model->graph;
    tw_value *output = twi_graph_node(made, op, twi_graph_name(made, name, NULL), input_count, inputs, attrs);
    CASE_DO(twi_graph_status(made));
    return output;
}

/* ---- the whole ---- */

static void add_loss(case_graph *graph) {
    tw_value *output = graph->output;
    if (!output->batched && output->store == TWI_ACC) {
        graph->loss = output;
    } else if (output->store == TWI_REAL) {
        twi_shape shape = output->shape;
        shape.dim[0] = graph->batch;
        tw_value *weights = add_input(graph, "weights", TWI_REAL, shape.rank, shape.dim)->value;
        graph->loss = build_node(&graph->builder, "dot", "objective", 2, (tw_value *[]){output, weights}, NULL);
    }
}

void case_graph_open(case_graph *graph, const case_setting *setting, const twi_op *op, const twi_case *c) {
    memset(graph, 0, sizeof *graph);
    graph->setting = setting;
    graph->builder = (twi_builder){graph, build_input, build_labels, build_parameter, build_buffer, build_node};
    if (setting->isa) assert_int_equal(setenv("TALWEG_CPU", setting->isa, 1), 0);
    CASE_DO(tw_context_create(&graph->context, setting->device ? setting->device : "cpu",
                              TW_OPTIONS(context, .threads = setting->threads)));
    graph->context->registry = setting->registry;
    CASE_DO(tw_model_create(&graph->model, graph->context));
    graph->output = op->build_case(&graph->builder, c);
    assert_non_null(graph->output);
    add_loss(graph);
    CASE_DO(tw_model_build(graph->model, graph->output, TW_OPTIONS(model, .seed = 1)));
}

void case_graph_close(case_graph *graph) {
    tw_model_destroy(graph->model);
    tw_context_destroy(graph->context);
}

tw_program *case_graph_compile(const case_graph *graph, bool train, tw_value *const *watched, int watched_count) {
    tw_value *outputs[1 + CASE_OPERANDS] = {graph->output}, *gradients[CASE_OPERANDS];
    assert_true(watched_count <= CASE_OPERANDS);
    for (int i = 0; i < watched_count; i++) outputs[1 + i] = watched[i];
    int gradient_count = 0;
    for (int i = 0; train && i < graph->operand_count; i++)
        if (graph->operand[i].differentiated) gradients[gradient_count++] = graph->operand[i].value;
    /* Losses are means over the batch: weighted so, the total is the plain sum. */
    tw_loss loss = {graph->loss, (float)graph->batch};
    tw_program *program;
    CASE_DO(tw_program_create(&program, graph->model, graph->batch,
                              TW_OPTIONS(program, .train = train, .losses = &loss, .loss_count = train,
                                         .outputs = outputs, .output_count = 1 + watched_count, .gradients = gradients,
                                         .gradient_count = gradient_count, .no_fusion = !graph->setting->fuse,
                                         .precision = graph->setting->precision)));
    return program;
}

int case_choose_isas(const char *const *names, int count, const char **chosen) {
    static int turn;
    int found = 0;
    for (int i = 0; i < count; i++) {
        assert_int_equal(setenv("TALWEG_CPU", names[i], 1), 0);
        if (strcmp(twi_cpu_isa_name(twi_cpu_isa()), names[i]) == 0) chosen[found++] = names[i];
    }
    if (!check_sampled() || found == 0) return found;
    chosen[0] = chosen[turn++ % found];
    return 1;
}

/* Reads and writes a program's buffers element by element. Judging the results is left to test_ops.c. */
#include "case_run.h"

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

/* ---- elements ---- */

/* Memory that holds a value in some layout. */
typedef struct place {
    char *address;
    twi_operand layout; /* shape and strides */
    size_t real_size;
} place;

static bool place_of_buffer(const tw_program *program, int index, place *out) {
    if (index < 0) return false;
    const twi_buffer *buffer = &program->buffer[index];
    out->address = twi_program_address(program, index);
    out->layout = (twi_operand){.shape = buffer->shape, .store = buffer->store};
    memcpy(out->layout.stride, buffer->stride, sizeof buffer->stride);
    out->real_size = program->model->store.real_size;
    return true;
}

/* Where a given value is: fed values in the program, kept ones in the store. */
static bool place_of_value(const tw_program *program, const tw_value *value, place *out) {
    if (value->parameter < 0) return place_of_buffer(program, program->value_buffer[value->id], out);
    const twi_store *store = &program->model->store;
    out->address = twi_store_at(store, twi_store_values(store, value->parameter), value->parameter);
    out->layout = (twi_operand){.shape = value->shape, .store = TWI_ACC};
    twi_store_strides(&value->shape, out->layout.stride);
    out->real_size = store->real_size;
    return true;
}

static int64_t offset_of(const place *p, int64_t index) {
    int64_t sample = twi_sample_count(&p->layout);
    return twi_offset(&p->layout, index / sample, index % sample);
}

static void put(const place *p, int64_t index, double value) {
    int64_t at = offset_of(p, index);
    if (p->layout.store == TWI_I32)
        ((int32_t *)p->address)[at] = (int32_t)value;
    else if (p->real_size == sizeof(double))
        ((double *)p->address)[at] = value;
    else
        ((float *)p->address)[at] = (float)value;
}

static double take(const place *p, int64_t index) {
    int64_t at = offset_of(p, index);
    if (p->layout.store == TWI_I32) return ((const int32_t *)p->address)[at];
    return p->real_size == sizeof(double) ? ((const double *)p->address)[at] : (double)((const float *)p->address)[at];
}

/* ---- what is given ---- */

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double *new_values(int64_t count) {
    double *values = calloc((size_t)count, sizeof *values);
    assert_non_null(values);
    return values;
}

static double uniform(uint64_t *random) { return (double)(next_random(random) >> 11) * 0x1p-53; }

/* Numbers for an operand: a grid about 0, every point moved by up to a quarter of a step, shuffled, either side up. */
static void draw(double *values, int64_t n, uint64_t random) {
    double side = uniform(&random) < 0.5 ? -1 : 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)(uniform(&random) * (double)(i + 1));
        double point = (double)(2 * i + 1 - n - n % 2) + uniform(&random) - 0.5;
        values[i] = values[j];
        values[j] = (float)(side * point / (double)n);
    }
}

static void draw_operand(double *values, const case_operand *operand, uint64_t random) {
    if (!operand->classes && !operand->constant) draw(values, operand->count, random);
    for (int64_t i = 0; i < operand->count; i++) {
        if (operand->classes) values[i] = floor(uniform(&random) * (double)operand->classes);
        if (operand->constant) values[i] = operand->fill;
    }
}

void case_data_draw(case_data *data, const case_graph *graph, uint64_t seed) {
    data->count = graph->operand_count;
    for (int o = 0; o < data->count; o++) {
        data->values[o] = new_values(graph->operand[o].count);
        draw_operand(data->values[o], &graph->operand[o], seed * CASE_OPERANDS + (uint64_t)o);
    }
}

void case_data_free(case_data *data) {
    for (int o = 0; o < data->count; o++) free(data->values[o]);
    data->count = 0;
}

void case_load(const case_graph *graph, tw_program *program, const case_data *data) {
    tw_model *model = graph->model;
    memset(model->arena, 0xff, model->arena_bytes);
    memset(model->scratch, 0xff, model->scratch_bytes);
    model->store.version++;
    model->arena_user = program; /* its inputs are put there below, past tw_program_write */
    memset(program->fed, true, (size_t)program->value_count * sizeof *program->fed);
    model->arena_turns++;
    for (int o = 0; o < graph->operand_count; o++) {
        place p;
        if (!place_of_value(program, graph->operand[o].value, &p)) continue;
        for (int64_t i = 0; i < graph->operand[o].count; i++) put(&p, i, data->values[o][i]);
    }
}

void case_set(const case_graph *graph, tw_program *program, int operand, int64_t index, double value) {
    place p;
    if (place_of_value(program, graph->operand[operand].value, &p)) put(&p, index, value);
    graph->model->store.version++;
}

/* ---- what comes out ---- */

double case_run(const case_graph *graph, tw_program *program) {
    graph->model->store.attempts = 0;
    CASE_DO(tw_program_run(program));
    place p;
    if (!program->train || !place_of_buffer(program, program->value_buffer[graph->loss->id], &p)) return 0;
    return take(&p, 0);
}

static void collect(case_results *results, const char *kind, const char *name, const place *p) {
    case_result *result = &results->result[results->count++];
    snprintf(result->what, sizeof result->what, "%s%s", kind, name);
    result->count = twi_shape_count(&p->layout.shape);
    result->values = new_values(result->count);
    for (int64_t i = 0; i < result->count; i++) result->values[i] = take(p, i);
}

void case_collect(const case_graph *graph, tw_program *program, case_results *results) {
    place p;
    results->count = 0;
    if (place_of_buffer(program, program->value_buffer[graph->output->id], &p)) collect(results, "output", "", &p);
    if (!program->train) return;
    for (int o = 0; o < graph->operand_count; o++) {
        const tw_value *value = graph->operand[o].value;
        if (graph->operand[o].differentiated) {
            if (!place_of_buffer(program, program->gradient_buffer[value->id], &p))
                fail_msg("'%s' has no gradient", value->name);
            collect(results, "gradient of ", value->name, &p);
        } else if (value->kind == TWI_VALUE_BUFFER && place_of_value(program, value, &p)) {
            collect(results, "", value->name, &p);
        }
    }
}

void case_results_free(case_results *results) {
    for (int i = 0; i < results->count; i++) free(results->result[i].values);
    results->count = 0;
}

double case_least(const tw_program *program, const tw_value *value) {
    place p;
    double least = INFINITY;
    if (!place_of_buffer(program, program->value_buffer[value->id], &p)) return least;
    for (int64_t i = 0, count = twi_shape_count(&p.layout.shape); i < count; i++)
        least = fmin(least, fabs(take(&p, i)));
    return least;
}

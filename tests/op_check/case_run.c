/* Reads and writes a program's buffers element by element. Judging the results is left to test_ops.c. */
#include "case_run.h"

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

/* ---- elements ---- */

/* A value in some layout, in the device's own memory where the host may touch that, else in a copy. */
typedef struct place {
    tw_context *context;
    void *device;
    char *address;
    size_t bytes;
    twi_operand layout; /* shape and strides */
    size_t real_size;
} place;

/* Fetches the value; place_close brings it back. */
static void place_open(place *p, const tw_program *program, void *device, size_t bytes) {
    p->context = program->model->context;
    p->device = device;
    p->address = device;
    p->bytes = bytes;
    p->real_size = program->model->store.real_size;
    if (p->context->backend->host_memory) return;
    p->address = malloc(bytes ? bytes : 1);
    assert_non_null(p->address);
    CASE_DO(p->context->backend->copy_out(p->context, p->address, device, bytes));
}

static void place_close(place *p, bool changed) {
    if (p->context->backend->host_memory) return;
    if (changed) CASE_DO(p->context->backend->copy_in(p->context, p->device, p->address, p->bytes));
    free(p->address);
}

static bool open_buffer(const tw_program *program, int index, place *out) {
    if (index < 0) return false;
    const twi_buffer *buffer = &program->buffer[index];
    out->layout = (twi_operand){.shape = buffer->shape, .store = buffer->store, .dtype = buffer->dtype};
    memcpy(out->layout.stride, buffer->stride, sizeof buffer->stride);
    place_open(out, program, twi_program_address(program, index), buffer->bytes);
    return true;
}

/* Where a given value is: fed values in the program, kept ones in the store. */
static bool open_value(const tw_program *program, const tw_value *value, place *out) {
    if (value->parameter < 0) return open_buffer(program, program->value_buffer[value->id], out);
    const twi_store *store = &program->model->store;
    out->layout = (twi_operand){.shape = value->shape, .store = TWI_ACC};
    twi_store_strides(&value->shape, out->layout.stride);
    place_open(out, program, twi_store_at(store, twi_store_values(store, value->parameter), value->parameter),
               (size_t)twi_shape_count(&value->shape) * store->real_size);
    return true;
}

/* Fills the device's memory with not-a-number. */
static void spoil(tw_context *context, void *memory, size_t bytes) {
    void *filled = malloc(bytes ? bytes : 1);
    assert_non_null(filled);
    memset(filled, 0xff, bytes);
    CASE_DO(context->backend->copy_in(context, memory, filled, bytes));
    free(filled);
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
    else if (twi_is_half(p->layout.dtype))
        ((uint16_t *)p->address)[at] = twi_half_from_f32((tw_dtype)p->layout.dtype, (float)value);
    else
        ((float *)p->address)[at] = (float)value;
}

static double take(const place *p, int64_t index) {
    int64_t at = offset_of(p, index);
    if (p->layout.store == TWI_I32) return ((const int32_t *)p->address)[at];
    if (twi_is_half(p->layout.dtype))
        return (double)twi_half_to_f32((tw_dtype)p->layout.dtype, ((const uint16_t *)p->address)[at]);
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
    spoil(model->context, model->arena, model->arena_bytes);
    spoil(model->context, model->scratch, model->scratch_bytes);
    twi_store_written(&model->store);
    model->arena_user = program; /* its inputs are put there below, past tw_program_write */
    memset(program->fed, true, (size_t)program->value_count * sizeof *program->fed);
    model->arena_turns++;
    for (int o = 0; o < graph->operand_count; o++) {
        place p;
        if (!open_value(program, graph->operand[o].value, &p)) continue;
        for (int64_t i = 0; i < graph->operand[o].count; i++) put(&p, i, data->values[o][i]);
        place_close(&p, true);
    }
}

void case_set(const case_graph *graph, tw_program *program, int operand, int64_t index, double value) {
    place p;
    if (open_value(program, graph->operand[operand].value, &p)) {
        put(&p, index, value);
        place_close(&p, true);
    }
    twi_store_written(&graph->model->store);
}

/* ---- what comes out ---- */

double case_run(const case_graph *graph, tw_program *program) {
    graph->model->store.attempts = 0;
    CASE_DO(tw_program_run(program));
    place p;
    if (!program->train || !open_buffer(program, program->value_buffer[graph->loss->id], &p)) return 0;
    double loss = take(&p, 0);
    place_close(&p, false);
    return loss;
}

/* Takes a result out of an open place, and closes it. */
static void collect(case_results *results, const char *kind, const char *name, place *p) {
    case_result *result = &results->result[results->count++];
    snprintf(result->what, sizeof result->what, "%s%s", kind, name);
    result->count = twi_shape_count(&p->layout.shape);
    result->values = new_values(result->count);
    for (int64_t i = 0; i < result->count; i++) result->values[i] = take(p, i);
    place_close(p, false);
}

void case_collect(const case_graph *graph, tw_program *program, case_results *results) {
    place p;
    results->count = 0;
    if (open_buffer(program, program->value_buffer[graph->output->id], &p)) collect(results, "output", "", &p);
    if (!program->train) return;
    for (int o = 0; o < graph->operand_count; o++) {
        const tw_value *value = graph->operand[o].value;
        if (graph->operand[o].differentiated) {
            if (!open_buffer(program, program->gradient_buffer[value->id], &p))
                fail_msg("'%s' has no gradient", value->name);
            collect(results, "gradient of ", value->name, &p);
        } else if (value->kind == TWI_VALUE_BUFFER && open_value(program, value, &p)) {
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
    if (!open_buffer(program, program->value_buffer[value->id], &p)) return least;
    for (int64_t i = 0, count = twi_shape_count(&p.layout.shape); i < count; i++)
        least = fmin(least, fabs(take(&p, i)));
    place_close(&p, false);
    return least;
}

double case_rounding(const tw_program *program, const tw_value *value, tw_dtype half) {
    place p;
    double most = 0;
    if (!open_buffer(program, program->value_buffer[value->id], &p)) return INFINITY;
    for (int64_t i = 0, count = twi_shape_count(&p.layout.shape); i < count; i++) {
        const double element = take(&p, i);
        most = fmax(most, fabs(element - (double)twi_half_to_f32(half, twi_half_from_f32(half, (float)element))));
    }
    place_close(&p, false);
    return most;
}

/* Feeding, running and reading a program; turning device faults into errors. Allocates nothing. */
#include "program.h"
#include "base/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The arena now holds this program's values, and no longer another's. */
static void take_arena(tw_program *program) {
    if (program->model->arena_user == program) return;
    program->model->arena_user = program;
    program->model->arena_turns++;
    program->ran = false;
    memset(program->fed, 0, (size_t)program->value_count * sizeof *program->fed);
}

static tw_status check_runs(const tw_program *program, const char *function) {
    const tw_context *context = program->model->context;
    if (!context->plans_only) return TW_OK;
    return TWI_FAIL(TW_ERROR_STATE, "%s: the context was opened on \"%s\", to plan only; open it on \"%s\" to run",
                    function, context->device_name, context->backend->name);
}

static tw_status check_fed(tw_program *program, const char *function) {
    TWI_TRY(check_runs(program, function));
    bool held = program->model->arena_user == program;
    for (int v = 0; v < program->value_count; v++) {
        const tw_value *value = program->model->graph.value[v];
        if (value->kind == TWI_VALUE_INPUT && program->value_buffer[v] >= 0 && !(held && program->fed[v]) &&
            !twi_program_gathers(program, value))
            return TWI_FAIL(TW_ERROR_STATE,
                            "%s: input '%s' is not there: it was never fed, or another program of the model was fed or "
                            "run since (programs of a model share memory); feed them again",
                            function, value->name);
    }
    TWI_TRY(twi_source_check(program, function));
    take_arena(program);
    return TW_OK;
}

static tw_status check_ran(const tw_program *program, const char *function) {
    if (program->model->arena_user == program && program->ran) return TW_OK;
    return TWI_FAIL(
        TW_ERROR_STATE,
        "%s: there is nothing to read: the program has not run yet, or another program of the model was fed "
        "or run since (programs of a model share memory); feed and run it again",
        function);
}

/* A copy between the host's logical order and a buffer's own. */
typedef struct walk {
    const twi_buffer *buffer;
    const char *host_in; /* feeding */
    tw_dtype dtype;
    void *host_out; /* reading */
    void *memory;   /* the device's, or what goes there or came from there */
    size_t real_size;
} walk;

static bool is_real(uint8_t store) { return store == TWI_REAL || store == TWI_ACC; }

/* Feeds `count` elements from logical position i on to memory position `at`, `step` apart. */
static void feed_row(const walk *w, int64_t at, int64_t step, int64_t i, int64_t count) {
    const char *from = w->host_in + (size_t)i * tw_dtype_size(w->dtype);
    if (w->dtype == TW_F32 && w->real_size == sizeof(float)) {
        for (int64_t k = 0; k < count; k++) ((float *)w->memory)[at + k * step] = ((const float *)from)[k];
        return;
    }
    for (int64_t k = 0; k < count; k++, from += tw_dtype_size(w->dtype)) {
        float value;
        if (!is_real(w->buffer->store)) {
            twi_convert((int32_t *)w->memory + at + k * step, TW_I32, from, w->dtype, 1);
            continue;
        }
        twi_convert(&value, TW_F32, from, w->dtype, 1);
        if (w->real_size == sizeof(double))
            ((double *)w->memory)[at + k * step] = value;
        else
            ((float *)w->memory)[at + k * step] = value;
    }
}

static void read_row(const walk *w, int64_t at, int64_t step, int64_t i, int64_t count) {
    for (int64_t k = 0; k < count; k++, at += step) {
        if (!is_real(w->buffer->store))
            ((int32_t *)w->host_out)[i + k] = ((const int32_t *)w->memory)[at];
        else if (w->real_size == sizeof(double))
            ((float *)w->host_out)[i + k] = (float)((const double *)w->memory)[at];
        else
            ((float *)w->host_out)[i + k] = ((const float *)w->memory)[at];
    }
}

typedef void (*row_fn)(const walk *w, int64_t at, int64_t step, int64_t i, int64_t count);

/* Every run of elements along the last axis, in logical order. */
static void each_row(const walk *w, row_fn visit) {
    const twi_shape *shape = &w->buffer->shape;
    const int64_t *stride = w->buffer->stride;
    int64_t position[TW_MAX_RANK] = {0}, count = twi_shape_count(shape), at = 0;
    int last = shape->rank - 1;
    int64_t row = last >= 0 ? shape->dim[last] : 1;
    for (int64_t i = 0; i < count; i += row) {
        visit(w, at, last >= 0 ? stride[last] : 1, i, row);
        for (int axis = last - 1; axis >= 0; axis--) {
            at += stride[axis];
            if (++position[axis] < shape->dim[axis]) break;
            at -= position[axis] * stride[axis];
            position[axis] = 0;
        }
    }
}

/* Buffer of a value in this program, or an error. */
static tw_status locate(const tw_program *program, const tw_value *value, const int *table, const void *host,
                        int64_t count, const char *function, const twi_buffer **out) {
    if (!program || !value || !host) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: program, value or data is NULL", function);
    if (!twi_graph_owns(&program->model->graph, value))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: '%s' belongs to another model", function, value->name);
    if (value->id >= program->value_count || table[value->id] < 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: this program does not use '%s'; name it in the program's options",
                        function, value->name);
    *out = &program->buffer[table[value->id]];
    int64_t own = twi_shape_count(&(*out)->shape);
    if (own != count) {
        char shape[TWI_SHAPE_TEXT];
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: '%s' is %s, %lld elements, got %lld", function, value->name,
                        twi_shape_text(&(*out)->shape, shape), (long long)own, (long long)count);
    }
    return TW_OK;
}

static tw_status check_labels(const tw_value *value, const int64_t *labels, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (labels[i] < INT32_MIN || labels[i] > INT32_MAX)
            return TWI_FAIL(TW_ERROR_LABEL, "tw_program_write: '%s': label %lld of sample %lld is no class index",
                            value->name, (long long)labels[i], (long long)i);
    return TW_OK;
}

tw_status tw_program_write(tw_program *program, const tw_value *value, tw_dtype dtype, const void *data,
                           int64_t count) {
    const twi_buffer *buffer;
    TWI_TRY(locate(program, value, program ? program->value_buffer : NULL, data, count, "tw_program_write", &buffer));
    if (value->kind != TWI_VALUE_INPUT)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_write: '%s' is computed, not fed", value->name);
    if (twi_program_gathers(program, value))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_program_write: '%s' is gathered from the program's source, not fed; make a program without "
                        "one to feed it",
                        value->name);
    TWI_TRY(check_runs(program, "tw_program_write"));
    bool whole = dtype == TW_I32 || dtype == TW_I64 || dtype == TW_U8,
         fraction = dtype == TW_F32 || dtype == TW_F16 || dtype == TW_BF16;
    if (is_real(buffer->store) ? !(fraction || dtype == TW_U8) : !whole)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_write: '%s' takes %s, got %s", value->name,
                        is_real(buffer->store) ? "f32, f16, bf16 or u8" : "i32, i64 or u8", tw_dtype_name(dtype));
    if (dtype == TW_I64) TWI_TRY(check_labels(value, data, count));
    take_arena(program);
    program->fed[value->id] = true;
    void *device = twi_program_address(program, (int)(buffer - program->buffer));
    walk w = {.buffer = buffer, .host_in = data, .dtype = dtype, .real_size = program->model->store.real_size};
    bool same = twi_shape_is_row_major(&buffer->shape, buffer->stride) &&
                ((dtype == TW_F32 && w.real_size == sizeof(float)) || (dtype == TW_I32 && buffer->store == TWI_I32));
    tw_context *context = twi_program_context(program);
    if (same) return context->backend->copy_in(context, device, data, buffer->bytes);
    w.memory = program->staging ? program->staging : device;
    each_row(&w, feed_row);
    return program->staging ? context->backend->copy_in(context, device, program->staging, buffer->bytes) : TW_OK;
}

tw_status twi_program_feed(tw_program *program, const tw_value *value, const void *data) {
    tw_context *context = twi_program_context(program);
    int buffer = program->value_buffer[value->id];
    TWI_TRY(check_runs(program, "feed"));
    take_arena(program);
    program->fed[value->id] = true;
    return buffer < 0 ? TW_OK
                      : context->backend->copy_in(context, twi_program_address(program, buffer), data,
                                                  program->buffer[buffer].bytes);
}

/* A parameter's gradient is what the update takes: the sum over the window, where there is one. */
static void *address_to_read(const tw_program *program, const twi_buffer *buffer) {
    if (program->accumulate && buffer->source == TWI_SOURCE_GRADIENT)
        return twi_store_at(&program->model->store, program->model->store.gradient_sums, buffer->parameter);
    return twi_program_address(program, (int)(buffer - program->buffer));
}

static tw_status read_buffer(const tw_program *program, const twi_buffer *buffer, void *values) {
    void *device = address_to_read(program, buffer);
    walk w = {.buffer = buffer, .host_out = values, .real_size = program->model->store.real_size};
    bool same = twi_shape_is_row_major(&buffer->shape, buffer->stride) &&
                (!is_real(buffer->store) || w.real_size == sizeof(float));
    tw_context *context = twi_program_context(program);
    if (same) return context->backend->copy_out(context, values, device, buffer->bytes);
    if (program->staging) TWI_TRY(context->backend->copy_out(context, program->staging, device, buffer->bytes));
    w.memory = program->staging ? program->staging : device;
    each_row(&w, read_row);
    return TW_OK;
}

tw_status tw_program_read(tw_program *program, const tw_value *value, void *values, int64_t count) {
    const twi_buffer *buffer;
    TWI_TRY(locate(program, value, program ? program->value_buffer : NULL, values, count, "tw_program_read", &buffer));
    if (!program->buffer[twi_program_root(program, (int)(buffer - program->buffer))].pinned)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_read: '%s' is not kept; name it in the program's outputs",
                        value->name);
    TWI_TRY(check_ran(program, "tw_program_read"));
    return read_buffer(program, buffer, values);
}

tw_status tw_program_read_gradient(tw_program *program, const tw_value *value, float *values, int64_t count) {
    const twi_buffer *buffer;
    TWI_TRY(locate(program, value, program ? program->gradient_buffer : NULL, values, count, "tw_program_read_gradient",
                   &buffer));
    if (!program->buffer[twi_program_root(program, (int)(buffer - program->buffer))].pinned)
        return TWI_FAIL(
            TW_ERROR_ARGUMENT,
            "tw_program_read_gradient: the gradient of '%s' is not kept; name it in the program's gradients",
            value->name);
    TWI_TRY(check_ran(program, "tw_program_read_gradient"));
    return read_buffer(program, buffer, values);
}

tw_status tw_program_read_parameter_gradient(tw_program *program, const char *name, float *values, int64_t count) {
    if (!program || !name)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_read_parameter_gradient: program or name is NULL");
    const tw_value *value = tw_model_find(program->model, name); /* aliases too */
    if (!value || value->kind != TWI_VALUE_PARAMETER)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_read_parameter_gradient: the model has no parameter '%s'", name);
    if (value->id >= program->value_count || program->gradient_buffer[value->id] < 0)
        return TWI_FAIL(TW_ERROR_STATE,
                        "tw_program_read_parameter_gradient: '%s' gets no gradient in this program (frozen, or no loss "
                        "depends on it)",
                        name);
    const twi_buffer *buffer;
    TWI_TRY(
        locate(program, value, program->gradient_buffer, values, count, "tw_program_read_parameter_gradient", &buffer));
    if (program->model->gradients_by != program)
        return TWI_FAIL(
            TW_ERROR_STATE,
            "tw_program_read_parameter_gradient: '%s': the program has not run yet, or another one trained since",
            name);
    return read_buffer(program, buffer, values);
}

/* ---- running ---- */

static void name_run(const tw_program *program, const twi_control *control, char *text, size_t size) {
    bool whole = !(program->train && program->model->window.samples);
    snprintf(text, size, whole ? "run %llu" : "run %llu, batch %llu of its window",
             (unsigned long long)control->attempt + 1, (unsigned long long)control->micro + 1);
}

static tw_status explain_fault(const tw_program *program, const twi_control *control) {
    const twi_fault *fault = &control->fault;
    const twi_node *node = fault->node >= 0 ? program->model->graph.node[fault->node] : NULL;
    const char *op = node ? node->op->name : "program", *name = node ? node->name : "";
    char run[64];
    name_run(program, control, run, sizeof run);
    double value = isnan(fault->value) ? (double)NAN : fault->value; /* its sign means nothing */
    if (fault->code == TW_ERROR_LABEL)
        return TWI_FAIL(TW_ERROR_LABEL,
                        "%s '%s': label %.0f of sample %lld is outside 0 .. %lld (%lld classes); nothing was updated",
                        op, name, fault->value, (long long)fault->sample, (long long)node->input[0]->shape.dim[1] - 1,
                        (long long)node->input[0]->shape.dim[1]);
    if (fault->sample == TWI_FAULT_RUN)
        return TWI_FAIL(TW_ERROR_NUMERIC,
                        "%s '%s': the loss is %g in %s; nothing was updated. Look at the input's scale, or lower "
                        "the learning rate",
                        op, name, value, run);
    if (fault->sample >= TWI_FAULT_ELEMENT)
        return TWI_FAIL(TW_ERROR_NUMERIC,
                        "the gradient of '%s' holds %g in %s; nothing was updated. Look at the input's scale, the "
                        "loss weights or the learning rate",
                        twi_store_name_at(&program->model->store, fault->sample - TWI_FAULT_ELEMENT), value, run);
    return TWI_FAIL((tw_status)fault->code, "%s '%s': refuses %g in sample %lld of %s; nothing was updated", op, name,
                    value, (long long)fault->sample, run);
}

static tw_status collect_losses(tw_program *program) {
    program->loss_value = 0;
    for (int i = 0; i < program->loss_count; i++) {
        float value;
        TWI_TRY(read_buffer(program, &program->buffer[program->value_buffer[program->loss[i].value->id]], &value));
        program->loss_value += program->loss[i].weight * (double)value / (double)program->batch;
    }
    return TW_OK;
}

static tw_status run_segments(tw_program *program, int first, int count, bool gradients) {
    tw_context *context = twi_program_context(program);
    twi_store *store = &program->model->store;
    if (!program->prepared)
        TWI_TRY(twi_pass_prepare(program)); /* the arena moved, and memory for binding this one lacked then */
    twi_control control;
    const twi_window window = twi_window_of(program);
    memset(&control, 0, sizeof control);
    control.seed = program->model->seed;
    control.attempt = window.attempt;
    control.update = store->updates;
    control.learning_rate = store->learning_rate;
    control.constants = 1 + store->version + program->model->arena_turns;
    control.loss_scale = 1.0 / (double)window.samples;
    control.micro = window.micro;
    control.window_sample = window.done;
    if (gradients) twi_source_take(program, &control);
    TWI_TRY(context->backend->copy_in(context, store->control, &control, sizeof control));
    TWI_TRY(context->backend->run(context, program->prepared, first, count));
    TWI_TRY(context->backend->copy_out(context, &control, store->control, sizeof control));
    if (program->train && gradients && window.micro == 0) store->attempts++;
    if (gradients) {
        program->ran = true;
        if (program->train) program->model->gradients_by = program;
        TWI_TRY(collect_losses(program));
    }
    if (control.fault.code) return explain_fault(program, &control);
    if (control.update != store->updates) store->version++;
    store->updates = control.update;
    store->learning_rate = control.learning_rate;
    return TW_OK;
}

/* A training run overwrites the gradients that an update may have waited for, whichever program's they were. */
static void drop_update(tw_program *program) {
    if (program->train) program->model->update_due = false;
}

tw_status tw_program_run(tw_program *program) {
    if (!program) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_run: program is NULL");
    TWI_TRY(twi_window_admit(program, true, "tw_program_run"));
    TWI_TRY(check_fed(program, "tw_program_run"));
    drop_update(program);
    return run_segments(program, 0, program->segment_count, true);
}

tw_status tw_program_run_gradients(tw_program *program) {
    if (!program) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_run_gradients: program is NULL");
    TWI_TRY(twi_window_admit(program, false, "tw_program_run_gradients"));
    TWI_TRY(check_fed(program, "tw_program_run_gradients"));
    drop_update(program);
    tw_status status = run_segments(program, 0, program->update_segment, true);
    twi_window_count(program, status);
    if (program->train) program->model->update_due = status == TW_OK;
    return status;
}

tw_status tw_program_run_update(tw_program *program) {
    if (!program) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_run_update: program is NULL");
    if (program->update_segment == program->segment_count)
        return TWI_FAIL(TW_ERROR_STATE, "tw_program_run_update: the program was made without an optimizer");
    TWI_TRY(twi_window_admit_update(program));
    program->model->window.samples = 0; /* whatever comes of it */
    drop_update(program);
    return run_segments(program, program->update_segment, program->segment_count - program->update_segment, false);
}

double tw_program_get_loss(const tw_program *program) { return program ? program->loss_value : NAN; }

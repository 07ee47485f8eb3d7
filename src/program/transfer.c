/* Feeding a program and reading it: between the host's logical order and a buffer's own, unless the host lends (lend.c).
 * Allocates nothing. */
#include "program.h"
#include "base/dtype_text.h"
#include "base/half.h"

#include <string.h>

static tw_status check_ran(const tw_program *program, const char *function) {
    if (program->model->arena_user == program && program->ran) return TW_OK;
    return TWI_FAIL(
        TW_ERROR_STATE,
        "%s: there is nothing to read: the program has not run yet, or another program of the model was made, "
        "fed or run since (programs of a model share memory); feed and run it again",
        function);
}

/* A copy between the host's logical order and a buffer's own. */
typedef struct walk {
    tw_context *context;
    const twi_buffer *buffer;
    const char *host_in; /* feeding */
    tw_dtype dtype;      /* there */
    uint8_t stored;      /* in memory, of a real buffer: tw_dtype or TWI_DTYPE_DOUBLE */
    void *host_out;      /* reading */
    void *memory;        /* the device's, or what goes there or came from there */
} walk;

static bool is_real(uint8_t store) { return store == TWI_REAL || store == TWI_ACC; }

/* Does the back end round to what memory holds? */
static bool is_narrowed(const walk *w) {
    return w->dtype == TW_F32 && is_real(w->buffer->store) && twi_is_half(w->stored) &&
           w->context->backend->host_memory;
}

static tw_status feed_halves(const walk *w, int64_t at, int64_t step, const float *from, int64_t count) {
    const twi_backend *backend = w->context->backend;
    uint16_t *to = (uint16_t *)w->memory + at, some[256];
    if (step == 1) return backend->narrow(w->context, to, (tw_dtype)w->stored, from, count);
    for (int64_t done = 0, part; done < count; done += part) {
        part =
            count - done < (int64_t)(sizeof some / sizeof *some) ? count - done : (int64_t)(sizeof some / sizeof *some);
        TWI_TRY(backend->narrow(w->context, some, (tw_dtype)w->stored, from + done, part));
        for (int64_t k = 0; k < part; k++) to[(done + k) * step] = some[k];
    }
    return TW_OK;
}

/* Feeds `count` elements from logical position i on to memory position `at`, `step` apart. */
static tw_status feed_row(const walk *w, int64_t at, int64_t step, int64_t i, int64_t count) {
    const char *from = w->host_in + (size_t)i * tw_dtype_size(w->dtype);
    if (is_narrowed(w)) return feed_halves(w, at, step, (const float *)(const void *)from, count);
    if (w->dtype == TW_F32 && w->stored == TW_F32) {
        for (int64_t k = 0; k < count; k++) ((float *)w->memory)[at + k * step] = ((const float *)from)[k];
        return TW_OK;
    }
    for (int64_t k = 0; k < count; k++, from += tw_dtype_size(w->dtype)) {
        float value;
        if (!is_real(w->buffer->store)) {
            twi_convert((int32_t *)w->memory + at + k * step, TW_I32, from, w->dtype, 1);
            continue;
        }
        twi_convert(&value, TW_F32, from, w->dtype, 1);
        if (w->stored == TWI_DTYPE_DOUBLE)
            ((double *)w->memory)[at + k * step] = value;
        else if (twi_is_half(w->stored))
            ((uint16_t *)w->memory)[at + k * step] = twi_half_from_f32((tw_dtype)w->stored, value);
        else
            ((float *)w->memory)[at + k * step] = value;
    }
    return TW_OK;
}

static tw_status read_row(const walk *w, int64_t at, int64_t step, int64_t i, int64_t count) {
    for (int64_t k = 0; k < count; k++, at += step) {
        if (!is_real(w->buffer->store))
            ((int32_t *)w->host_out)[i + k] = ((const int32_t *)w->memory)[at];
        else if (w->stored == TWI_DTYPE_DOUBLE)
            ((float *)w->host_out)[i + k] = (float)((const double *)w->memory)[at];
        else if (twi_is_half(w->stored))
            ((float *)w->host_out)[i + k] = twi_half_to_f32((tw_dtype)w->stored, ((const uint16_t *)w->memory)[at]);
        else
            ((float *)w->host_out)[i + k] = ((const float *)w->memory)[at];
    }
    return TW_OK;
}

typedef tw_status (*row_fn)(const walk *w, int64_t at, int64_t step, int64_t i, int64_t count);

/* Every run of elements along the last axis, in logical order. */
static tw_status each_row(const walk *w, row_fn visit) {
    const twi_shape *shape = &w->buffer->shape;
    const int64_t *stride = w->buffer->stride;
    int64_t position[TW_MAX_RANK] = {0}, count = twi_shape_count(shape), at = 0;
    int last = shape->rank - 1;
    int64_t row = last >= 0 ? shape->dim[last] : 1;
    for (int64_t i = 0; i < count; i += row) {
        TWI_TRY(visit(w, at, last >= 0 ? stride[last] : 1, i, row));
        for (int axis = last - 1; axis >= 0; axis--) {
            at += stride[axis];
            if (++position[axis] < shape->dim[axis]) break;
            at -= position[axis] * stride[axis];
            position[axis] = 0;
        }
    }
    return TW_OK;
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

static tw_status check_labels(const tw_value *value, const int64_t *labels, int64_t count, const char *function) {
    for (int64_t i = 0; i < count; i++)
        if (labels[i] < INT32_MIN || labels[i] > INT32_MAX)
            return TWI_FAIL(TW_ERROR_LABEL, "%s: '%s': label %lld of sample %lld is no class index", function,
                            value->name, (long long)labels[i], (long long)i);
    return TW_OK;
}

size_t twi_program_fed_bytes(const tw_program *program, int buffer) {
    const twi_buffer *input = &program->buffer[buffer];
    return program->slots && twi_is_half(input->dtype) ? input->bytes * 2 : input->bytes;
}

/* What an input is stored as where it is fed to. */
static uint8_t fed_dtype(const tw_program *program, const twi_buffer *input) {
    return program->slots && twi_is_half(input->dtype) ? TW_F32 : input->dtype;
}

/* Where what is fed is converted. */
static void *workplace(const tw_program *program, int buffer) {
    return program->staging ? program->staging : twi_program_address(program, buffer);
}

/* To where the next run finds an input: its buffer, or the slot that the run takes. The data may be there already. */
static tw_status bring_in(tw_program *program, const tw_value *value, const void *data) {
    tw_context *context = twi_program_context(program);
    const int buffer = program->value_buffer[value->id], turn = program->turn;
    const size_t bytes = twi_program_fed_bytes(program, buffer);
    void *memory = program->slots ? program->slots[value->id].memory[turn] : twi_program_address(program, buffer);
    const size_t stride = twi_copy_stride(&program->buffer[twi_program_root(program, buffer)]);
    if (program->slots)
        TWI_TRY(context->backend->stream_in(context, memory, turn, data, bytes));
    else if (stride)
        TWI_TRY(context->backend->copy_in_each(context, memory, stride, data, bytes));
    else if (memory != data)
        TWI_TRY(context->backend->copy_in(context, memory, data, bytes));
    program->fed[value->id] = true;
    return TW_OK;
}

/* Can the input be fed that? Finds its buffer. */
static tw_status check_feeding(const tw_program *program, const tw_value *value, tw_dtype dtype, const void *data,
                               int64_t count, const char *function, const twi_buffer **out) {
    TWI_TRY(locate(program, value, program ? program->value_buffer : NULL, data, count, function, out));
    if (value->kind != TWI_VALUE_INPUT)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: '%s' is computed, not fed", function, value->name);
    if (twi_program_gathers(program, value))
        return TWI_FAIL(
            TW_ERROR_ARGUMENT,
            "%s: '%s' is gathered from the program's source, not fed; make a program without one to feed it", function,
            value->name);
    TWI_TRY(twi_program_check_runs(program, function));
    char type[TWI_DTYPE_TEXT];
    const bool real = is_real((*out)->store), whole = dtype == TW_I32 || dtype == TW_I64 || dtype == TW_U8,
               fraction = dtype == TW_F32 || dtype == TW_F16 || dtype == TW_BF16;
    if (real ? !(fraction || dtype == TW_U8) : !whole)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: '%s' takes %s, got %s", function, value->name,
                        real ? "f32, f16, bf16 or u8" : "i32, i64 or u8", twi_dtype_text(dtype, type));
    return dtype == TW_I64 ? check_labels(value, data, count, function) : TW_OK;
}

/* The arena is the program's, and the input is not there until all of it is. */
static tw_status begin_feeding(tw_program *program, const tw_value *value) {
    TWI_TRY(twi_program_take_arena(program));
    program->fed[value->id] = false;
    return TW_OK;
}

/* What needs no converting is copied as it is. */
static tw_status copy_fed(tw_program *program, const tw_value *value, tw_dtype dtype, const void *data, int64_t count) {
    const int index = program->value_buffer[value->id];
    const twi_buffer *buffer = &program->buffer[index];
    walk w = {.context = twi_program_context(program),
              .buffer = buffer,
              .host_in = data,
              .dtype = dtype,
              .stored = fed_dtype(program, buffer)};
    const bool row_major = twi_shape_is_row_major(&buffer->shape, buffer->stride);
    twi_program_take_back(program, index);
    if (row_major && (is_real(buffer->store) ? (uint8_t)dtype == w.stored : dtype == TW_I32))
        return bring_in(program, value, data);
    w.memory = workplace(program, index);
    if (row_major && is_narrowed(&w))
        TWI_TRY(feed_halves(&w, 0, 1, data, count));
    else
        TWI_TRY(each_row(&w, feed_row));
    return bring_in(program, value, w.memory);
}

tw_status tw_program_write(tw_program *program, const tw_value *value, tw_dtype dtype, const void *data,
                           int64_t count) {
    const twi_buffer *buffer;
    TWI_TRY(check_feeding(program, value, dtype, data, count, "tw_program_write", &buffer));
    TWI_TRY(begin_feeding(program, value));
    return copy_fed(program, value, dtype, data, count);
}

tw_status tw_program_lend(tw_program *program, const tw_value *value, tw_dtype dtype, const void *data, int64_t count) {
    const twi_buffer *buffer;
    TWI_TRY(check_feeding(program, value, dtype, data, count, "tw_program_lend", &buffer));
    TWI_TRY(begin_feeding(program, value));
    if (dtype != TW_F32 || !twi_program_lend(program, (int)(buffer - program->buffer), data))
        return copy_fed(program, value, dtype, data, count);
    program->fed[value->id] = true;
    return TW_OK;
}

tw_status twi_program_feed(tw_program *program, const tw_value *value, const void *data) {
    TWI_TRY(twi_program_check_runs(program, "feed"));
    TWI_TRY(begin_feeding(program, value));
    const int index = program->value_buffer[value->id];
    if (index < 0) return TW_OK;
    twi_program_take_back(program, index);
    const twi_buffer *buffer = &program->buffer[index];
    if (!is_real(buffer->store) || fed_dtype(program, buffer) == TW_F32) return bring_in(program, value, data);
    void *memory = workplace(program, index);
    tw_context *context = twi_program_context(program);
    if (context->backend->host_memory)
        TWI_TRY(
            context->backend->narrow(context, memory, (tw_dtype)buffer->dtype, data, twi_shape_count(&buffer->shape)));
    else
        twi_convert(memory, (tw_dtype)buffer->dtype, data, TW_F32, twi_shape_count(&buffer->shape));
    return bring_in(program, value, memory);
}

static tw_status read_buffer(const tw_program *program, const twi_buffer *buffer, void *values) {
    void *device = twi_program_address(program, (int)(buffer - program->buffer));
    walk w = {.buffer = buffer, .host_out = values, .stored = buffer->dtype};
    bool same =
        twi_shape_is_row_major(&buffer->shape, buffer->stride) && (!is_real(buffer->store) || w.stored == TW_F32);
    tw_context *context = twi_program_context(program);
    if (same) return context->backend->copy_out(context, values, device, buffer->bytes);
    if (program->staging)
        TWI_TRY(context->backend->copy_out(context, program->staging, device, buffer->bytes));
    w.memory = program->staging ? program->staging : device;
    return each_row(&w, read_row);
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

/* Without the loss scale of the run. */
static tw_status read_gradient(const tw_program *program, const twi_buffer *buffer, float *values, int64_t count) {
    TWI_TRY(read_buffer(program, buffer, values));
    const double scale = program->guard.scales ? program->model->store.guard.used : 1;
    for (int64_t i = 0; i < count && scale != 1; i++) values[i] = (float)((double)values[i] / scale);
    return TW_OK;
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
    return read_gradient(program, buffer, values, count);
}

tw_status tw_program_read_parameter_gradient(tw_program *program, const char *name, float *values, int64_t count) {
    if (!program || !name)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_read_parameter_gradient: program or name is NULL");
    const tw_value *value = tw_model_find(program->model, name); /* aliases too */
    if (!value || value->kind != TWI_VALUE_PARAMETER)
        return twi_model_refuse_name(program->model, name, "tw_program_read_parameter_gradient");
    if (value->id >= program->value_count || program->gradient_buffer[value->id] < 0)
        return TWI_FAIL(
            TW_ERROR_STATE,
            "tw_program_read_parameter_gradient: '%s' gets no gradient in this program (frozen, or no loss "
            "depends on it%s)",
            name,
            program->merged ? ", or it went into the weight as it was made; name it in the program's gradients" : "");
    const twi_buffer *buffer;
    TWI_TRY(
        locate(program, value, program->gradient_buffer, values, count, "tw_program_read_parameter_gradient", &buffer));
    if (program->model->gradients_by != program)
        return TWI_FAIL(
            TW_ERROR_STATE,
            "tw_program_read_parameter_gradient: '%s': the program has not run yet, or another one trained since",
            name);
    return read_gradient(program, buffer, values, count);
}

/* What the passes share: growing lists of buffers and steps, calls without data, bytes. */
#include "program.h"

#include <string.h>

/* Bytes of an element that is no bit. */
static size_t element_size(const tw_program *program, const twi_buffer *buffer) {
    return buffer->store == TWI_REAL && twi_is_half(buffer->dtype) ? 2 : twi_program_store_size(program, buffer->store);
}

/* Bytes of a sample and of the whole, whatever the layout. */
static tw_status measure(const tw_program *program, twi_buffer *buffer) {
    TWI_TRY(twi_shape_check(&buffer->shape, buffer->name));
    int64_t sample = buffer->batched ? twi_shape_count_from(&buffer->shape, 1) : twi_shape_count(&buffer->shape);
    if (buffer->store == TWI_BITS)
        buffer->sample_bytes = (size_t)twi_bits_bytes(sample);
    else
        buffer->sample_bytes = (size_t)sample * element_size(program, buffer);
    return twi_mul_size(&buffer->bytes, buffer->sample_bytes, buffer->batched ? (size_t)buffer->shape.dim[0] : 1,
                        buffer->name);
}

tw_status twi_program_add_buffer(tw_program *program, const twi_buffer *buffer, int *index) {
    if (program->buffer_count == program->buffer_capacity) {
        int grown = program->buffer_capacity ? 2 * program->buffer_capacity : 128;
        TWI_TRY(twi_grow(twi_program_context(program)->memory, &program->buffer, (size_t)grown, sizeof *program->buffer,
                         "program buffers"));
        program->buffer_capacity = grown;
    }
    twi_buffer *added = &program->buffer[program->buffer_count];
    *added = *buffer;
    added->alias = added->over = added->twin = -1;
    added->input = false;
    if (program->model->store.real_size == sizeof(double)) added->dtype = TWI_DTYPE_DOUBLE;
    TWI_TRY(measure(program, added));
    *index = program->buffer_count++;
    return TW_OK;
}

tw_status twi_program_set_shape(tw_program *program, int buffer, const twi_shape *shape) {
    program->buffer[buffer].shape = *shape;
    return measure(program, &program->buffer[buffer]);
}

tw_status twi_program_set_dtype(tw_program *program, int buffer, tw_dtype dtype) {
    program->buffer[buffer].store = TWI_REAL;
    program->buffer[buffer].dtype = (uint8_t)dtype;
    return measure(program, &program->buffer[buffer]);
}

tw_status twi_program_add_step(tw_program *program, const twi_kernel *kernel, const void *attrs, const twi_node *node,
                               const char *label, twi_part part, const int *operands) {
    if (program->step_count == program->step_capacity) {
        int grown = program->step_capacity ? 2 * program->step_capacity : 128;
        TWI_TRY(twi_grow(twi_program_context(program)->memory, &program->step, (size_t)grown, sizeof *program->step,
                         "program steps"));
        program->step_capacity = grown;
    }
    twi_step *step = &program->step[program->step_count++];
    memset(step, 0, sizeof *step);
    step->kernel = kernel;
    step->attrs = attrs;
    step->node = node;
    step->label = label;
    step->part = (uint8_t)part;
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) step->operand[o] = o < kernel->operand_count ? operands[o] : TWI_NO_REF;
    return TW_OK;
}

/* Blocks form a list through their first word. */
tw_status twi_program_block(tw_program *program, void *out, size_t bytes, const char *what) {
    enum { HEADER = 64 };
    char *block;
    TWI_TRY(twi_add_size(&bytes, bytes, HEADER, what));
    TWI_TRY(twi_get(twi_program_context(program)->memory, &block, 1, bytes, what));
    *(void **)block = program->blocks;
    program->blocks = block;
    *(void **)out = block + HEADER;
    return TW_OK;
}

void twi_program_free_blocks(tw_program *program) {
    while (program->blocks) {
        void *next = *(void **)program->blocks;
        twi_put(twi_program_context(program)->memory, program->blocks);
        program->blocks = next;
    }
}

tw_status twi_program_kernel(const tw_program *program, const char *name, const twi_kernel **out) {
    *out = twi_registry_find_kernel(twi_program_context(program)->registry, name);
    return *out ? TW_OK
                : TWI_FAIL(TW_ERROR_UNSUPPORTED, "kernel '%s' is missing from the registry (back end %s)", name,
                           twi_program_context(program)->backend->name);
}

int twi_program_root(const tw_program *program, int buffer) {
    while (program->buffer[buffer].alias >= 0) buffer = program->buffer[buffer].alias;
    return buffer;
}

size_t twi_program_store_size(const tw_program *program, uint8_t store) {
    if (store == TWI_U8) return 1;
    return store == TWI_I32 || store == TWI_F32 ? 4 : program->model->store.real_size;
}

void twi_program_call(const tw_program *program, const twi_step *step, int64_t samples, twi_call *call) {
    memset(call, 0, sizeof *call);
    call->kernel = step->kernel;
    call->attrs = step->attrs;
    call->operand_count = step->kernel->operand_count;
    call->first = true;
    call->tf32 = step->tf32;
    for (int o = 0; o < call->operand_count; o++) {
        if (step->operand[o] < 0) continue;
        const twi_buffer *buffer = &program->buffer[step->operand[o]];
        twi_operand *operand = &call->operand[o];
        operand->shape = buffer->shape;
        memcpy(operand->stride, buffer->stride, sizeof operand->stride);
        operand->store = buffer->store;
        operand->lanes = buffer->lanes;
        operand->dtype = buffer->dtype;
        if (samples > 0 && step->kernel->split == TWI_BY_SAMPLE && step->kernel->operand[o].reach == TWI_BATCHED)
            operand->shape.dim[0] = samples;
    }
    if (step->kernel->split == TWI_BY_RANGE) call->end = step->kernel->range(call);
}

bool twi_program_is_taken(const tw_program *program, const twi_step *step) {
    tw_context *context = twi_program_context(program);
    twi_call call;
    twi_program_call(program, step, 0, &call);
    return context->backend->takes && context->backend->takes(context, step->kernel, &call);
}

int64_t twi_program_step_samples(const tw_program *program, const twi_step *step) {
    if (step->kernel->split == TWI_BY_SAMPLE)
        for (int o = 0; o < step->kernel->operand_count; o++)
            if (step->operand[o] >= 0 && step->kernel->operand[o].reach == TWI_BATCHED)
                return program->buffer[step->operand[o]].shape.dim[0];
    return 0;
}

tw_status twi_program_extent(const tw_program *program, const twi_buffer *buffer, size_t *out) {
    *out = buffer->lanes ? buffer->sample_bytes * twi_whole_blocks(buffer, buffer->shape.dim[0]) : buffer->bytes;
    if (!buffer->copied) return TW_OK;
    return twi_mul_size(out, twi_copy_stride(buffer), (size_t)twi_program_copies(program),
                        "workers' copies of an input");
}

void twi_reverse_steps(twi_step *step, int count) {
    for (int i = 0; i < count / 2; i++) {
        const twi_step other = step[i];
        step[i] = step[count - 1 - i];
        step[count - 1 - i] = other;
    }
}

bool twi_program_uses(const tw_program *program, int buffer, bool written) {
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++)
            if (program->step[i].operand[o] >= 0 &&
                (program->step[i].kernel->operand[o].access != TWI_READ) == written &&
                twi_program_root(program, program->step[i].operand[o]) == buffer)
                return true;
    return false;
}

void twi_program_compact(tw_program *program) {
    int kept = 0;
    for (int i = 0; i < program->step_count; i++)
        if (program->step[i].kernel) program->step[kept++] = program->step[i];
    program->step_count = kept;
}

double twi_program_step_flops(const tw_program *program, const twi_step *step) {
    twi_call call;
    if (!step->kernel->flops) return 0;
    twi_program_call(program, step, 0, &call);
    return step->kernel->flops(&call);
}

/* How much of the flat arrays a step goes over: all, but for weights that other steps update, and gradients that other
 * steps measure. */
static double share_of_flat(const tw_program *program, const twi_step *step) {
    const bool partly = program->merged || program->measured;
    for (const twi_flat_list *list = program->flat_lists; list && partly; list = list->next) {
        int64_t elements = 0;
        if (list->attrs != step->attrs) continue;
        for (int32_t s = 0; s < list->attrs->segment_count; s++)
            if (!list->attrs->segment[s].row) elements += list->attrs->segment[s].end - list->attrs->segment[s].begin;
        return (double)elements / (double)program->model->store.learned_count;
    }
    return 1;
}

double twi_program_step_bytes(const tw_program *program, const twi_step *step) {
    const double share = share_of_flat(program, step);
    double bytes = 0;
    for (int o = 0; o < step->kernel->operand_count; o++) {
        if (step->operand[o] < 0) continue;
        const twi_buffer *buffer = &program->buffer[step->operand[o]];
        bytes += (double)buffer->bytes * (buffer->source == TWI_SOURCE_FLAT ? share : 1) *
                 (step->kernel->operand[o].access == TWI_UPDATE ? 2 : 1);
    }
    return bytes;
}

/* Gives every buffer its memory order: images N,H,W,C; parameters and what is added up to their gradients the store's
 * canonical order; everything else row-major. Copies that then move nothing (flatten after global pooling) become
 * views. */
#include "program.h"

#include <string.h>

static void channels_last(const twi_shape *shape, int64_t stride[TW_MAX_RANK]) {
    stride[1] = 1;
    stride[3] = shape->dim[1];
    stride[2] = stride[3] * shape->dim[3];
    stride[0] = stride[2] * shape->dim[2];
}

static void lay_out(twi_buffer *buffer) {
    if (!buffer->batched)
        twi_store_strides(&buffer->shape, buffer->stride);
    else if (buffer->shape.rank == 4 && !buffer->row_major)
        channels_last(&buffer->shape, buffer->stride);
    else
        twi_shape_row_major(&buffer->shape, buffer->stride);
}

/* A copy between two orders that agree is a view; what is read from outside keeps memory of its own. */
static bool moves_nothing(const tw_program *program, const twi_step *step) {
    const twi_buffer *from = &program->buffer[step->operand[0]], *to = &program->buffer[step->operand[1]];
    if (to->source != TWI_SOURCE_ARENA || from->batched != to->batched || from->store != to->store ||
        from->dtype != to->dtype)
        return false;
    bool same = twi_shape_equal(&from->shape, &to->shape) && memcmp(from->stride, to->stride, sizeof from->stride) == 0;
    return same ||
           (twi_shape_is_row_major(&from->shape, from->stride) && twi_shape_is_row_major(&to->shape, to->stride));
}

tw_status twi_pass_layout(tw_program *program) {
    for (int i = 0; i < program->buffer_count; i++) lay_out(&program->buffer[i]);
    const twi_kernel *copy;
    TWI_TRY(twi_program_kernel(program, "reshape.copy", &copy));
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        if (step->kernel != copy || !moves_nothing(program, step)) continue;
        twi_buffer *view = &program->buffer[step->operand[1]];
        view->alias = step->operand[0];
        program->buffer[twi_program_root(program, view->alias)].pinned |= view->pinned;
        step->kernel = NULL;
    }
    twi_program_compact(program);
    return TW_OK;
}

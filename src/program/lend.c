/* Inputs that runs read where the host program has them, instead of in the arena, so that nobody copies them. A program is
 * planned and bound for what is copied; where the host lends, the back end exchanges addresses. The place in the arena
 * stays, so either may follow on the other. */
#include "program.h"

/* An input that lies in the arena as in the host's memory, f32 and row-major, and that steps only read. It is pinned: so
 * nothing takes its memory over, in place or later, and its samples lie one after the other. */
bool twi_is_lendable(const tw_program *program, int buffer) {
    const twi_buffer *b = &program->buffer[buffer];
    return b->input && b->pinned && twi_program_context(program)->backend->lend && b->source == TWI_SOURCE_ARENA &&
           (b->store == TWI_REAL || b->store == TWI_ACC) && b->dtype == TW_F32 && !b->lanes &&
           twi_shape_is_row_major(&b->shape, b->stride) && !twi_program_uses(program, buffer, true);
}

static void lend(tw_program *program, int buffer, const void *data) {
    tw_context *context = twi_program_context(program);
    program->buffer[buffer].lent = data;
    if (program->prepared) context->backend->lend(context, program->prepared, buffer, data);
}

/* Only what is aligned as buffers of the arena are: with vectors that lie across two cache lines, as malloc has them, an MLP's
 * step of 784 numbers an image took 10 to 15 % longer on AVX-512, more than the copy does. */
bool twi_program_lend(tw_program *program, int buffer, const float *data) {
    buffer = twi_program_root(program, buffer);
    if (!program->plan.buffer[buffer].lendable || (uintptr_t)data % TWI_ARENA_ALIGNMENT) return false;
    lend(program, buffer, data);
    return true;
}

bool twi_program_lends(const tw_program *program) {
    for (int i = 0; i < program->buffer_count; i++)
        if (program->buffer[i].lent) return true;
    return false;
}

void twi_program_take_back(tw_program *program, int buffer) {
    buffer = twi_program_root(program, buffer);
    if (program->buffer[buffer].lent) lend(program, buffer, NULL);
}

void twi_program_lend_again(tw_program *program) {
    for (int i = 0; i < program->buffer_count; i++)
        if (program->buffer[i].lent) lend(program, i, program->buffer[i].lent);
}

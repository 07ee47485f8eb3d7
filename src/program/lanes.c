/* Lets samples lie side by side where convolutions of few channels hand values to each other: what one of them turns,
 * the next need not turn back. Knows no op: the back end says for every operand whether it would like that, and for
 * every step whether it takes it. */
#include "program.h"

static twi_buffer *operand_of(const tw_program *program, const twi_step *step, int o) {
    return step->operand[o] < 0 ? NULL : &program->buffer[step->operand[o]];
}

static void call_of(const tw_program *program, const twi_step *step, twi_call *call) {
    twi_program_call(program, step, program->segment[step->segment].chunk, call);
}

/* Turns every buffer that some step would like that way; how many samples it would like, all alike, or 0. */
static int ask_steps(tw_program *program) {
    tw_context *context = twi_program_context(program);
    int found = 0;
    for (int i = 0; i < program->step_count; i++) {
        const twi_step *step = &program->step[i];
        for (int o = 0; o < step->kernel->operand_count; o++) {
            twi_buffer *buffer = operand_of(program, step, o);
            if (!buffer || step->kernel->operand[o].reach != TWI_BATCHED) continue;
            twi_call call;
            call_of(program, step, &call);
            int lanes = context->backend->lanes(context, step->kernel, &call, o);
            if (!lanes) continue;
            buffer->lanes = (uint8_t)lanes;
            found = lanes;
        }
    }
    return found;
}

/* May its samples lie so? They must be nobody else's to read, and chunks begin where blocks begin. */
static bool possible(const tw_program *program, const twi_step *step, int o, int lanes) {
    const twi_buffer *buffer = operand_of(program, step, o);
    const twi_segment *segment = &program->segment[step->segment];
    return buffer->batched && buffer->source == TWI_SOURCE_ARENA && !buffer->pinned &&
           (buffer->store == TWI_REAL || buffer->store == TWI_U8) && segment->split == TWI_BY_SAMPLE &&
           step->kernel->operand[o].reach == TWI_BATCHED &&
           (segment->chunk % lanes == 0 || segment->chunk == segment->samples);
}

/* Settles what cannot be. */
static void keep_possible(tw_program *program, int lanes) {
    for (int i = 0; i < program->buffer_count; i++) { /* views name what they are views of */
        if (program->buffer[i].alias < 0) continue;
        program->buffer[twi_program_root(program, i)].unturned = program->buffer[i].unturned = true;
    }
    for (int i = 0; i < program->step_count; i++) {
        const twi_step *step = &program->step[i];
        for (int o = 0; o < step->kernel->operand_count; o++) {
            twi_buffer *buffer = operand_of(program, step, o);
            if (buffer) buffer->unturned = buffer->unturned || !possible(program, step, o, lanes);
        }
    }
    for (int i = 0; i < program->buffer_count; i++)
        if (program->buffer[i].unturned) program->buffer[i].lanes = 0;
}

/* How many samples lie side by side in some operand of a step; 0: in none. */
static uint8_t lanes_of(const tw_program *program, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0 && operand_of(program, step, o)->lanes) return operand_of(program, step, o)->lanes;
    return 0;
}

/* Would the step take all operands that may be turned, those that nobody asked for with them? */
static bool takes_all(tw_program *program, const twi_step *step, uint8_t lanes) {
    tw_context *context = twi_program_context(program);
    twi_call call;
    call_of(program, step, &call);
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0) call.operand[o].lanes = operand_of(program, step, o)->unturned ? 0 : lanes;
    return context->backend->takes(context, step->kernel, &call);
}

/* Turns more of a step's operands, or none of them, until it takes them; true if anything has changed. */
static bool agree(tw_program *program, const twi_step *step) {
    tw_context *context = twi_program_context(program);
    const uint8_t lanes = lanes_of(program, step);
    twi_call call;
    call_of(program, step, &call);
    if (!lanes || context->backend->takes(context, step->kernel, &call)) return false;
    const bool all = takes_all(program, step, lanes);
    for (int o = 0; o < step->kernel->operand_count; o++) {
        twi_buffer *buffer = operand_of(program, step, o);
        if (!buffer || buffer->unturned) continue;
        buffer->lanes = all ? lanes : 0;
        buffer->unturned = !all;
    }
    return true;
}

void twi_pass_lanes(tw_program *program) {
    const twi_backend *backend = twi_program_context(program)->backend;
    const int lanes = backend->lanes && backend->takes ? ask_steps(program) : 0;
    if (!lanes) return;
    keep_possible(program, lanes);
    for (bool again = true; again;) { /* every change turns a buffer that was not, or settles one that stays as it is */
        again = false;
        for (int i = 0; i < program->step_count; i++) again |= agree(program, &program->step[i]);
    }
}

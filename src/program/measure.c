/* Gradients that are measured where they are made: squares are summed before the sums leave registers. So the guard
 * need not read them again, which takes as long as the memory that holds them is slow. The guard's blocks are then the
 * rows of the weight. Knows no op: the table is in fuse_patterns.c. */
#include "program.h"
#include "backend/attrs.h"
#include "patterns.h"

/* Shorter rows make more blocks than are worth their while. */
enum { ROW_LEAST = 256 };

/* Where nobody updates there is no hurry. Under clipping the norm is a factor of every update, and has to be the same to
 * the bit in every program that trains the model, in windows of batches too: there all gradients are measured in the
 * same blocks. */
static bool measures(const tw_program *program, const tw_program_options *options) {
    return program->guarded && program->fuse && options->optimizer && !program->accumulate && program->guard.clip == 0;
}

/* The value whose gradient the step makes, in one piece; -1: it makes none. */
static int value_of(const tw_program *program, const twi_step *step, const twi_measure *row) {
    if (!twi_is_kernel(step, row->product)) return -1;
    const twi_buffer *gradient = &program->buffer[step->operand[row->gradient]];
    const bool kept = gradient->source == TWI_SOURCE_GRADIENT || gradient->source == TWI_SOURCE_HALF_GRADIENT;
    const bool fits = kept && twi_shape_count_from(&gradient->shape, 1) >= ROW_LEAST;
    return fits ? twi_program_learned_by(program, step, row->gradient) : -1;
}

static tw_status make_measured(tw_program *program, const twi_step *product, const twi_measure *row, int value,
                               twi_step *measured) {
    twi_measure_attrs *attrs;
    *measured = *product;
    TWI_TRY(twi_program_kernel(program, row->measured, &measured->kernel));
    TWI_TRY(twi_program_block(program, &attrs, sizeof *attrs, "guard of a gradient"));
    const tw_model *model = program->model;
    *attrs = (twi_measure_attrs){.guarded = program->guarded,
                                 .begin = model->store.parameter[model->graph.value[value]->parameter].offset,
                                 .dtype = program->buffer[product->operand[row->gradient]].dtype};
    measured->attrs = attrs;
    measured->operand[product->kernel->operand_count] = program->guard_blocks;
    return TW_OK;
}

static tw_status consider(tw_program *program, const twi_measure *row, int index) {
    twi_step measured;
    const int value = value_of(program, &program->step[index], row);
    if (value < 0) return TW_OK;
    TWI_TRY(make_measured(program, &program->step[index], row, value, &measured));
    if (!twi_program_is_taken(program, &measured)) return TW_OK;
    program->step[index] = measured;
    program->buffer[program->gradient_buffer[value]].measured = true;
    program->measured = true;
    return TW_OK;
}

tw_status twi_pass_measure(tw_program *program, const tw_program_options *options) {
    if (!measures(program, options)) return TW_OK;
    for (const twi_measure *row = twi_measures; row->product; row++)
        for (int i = 0; i < program->step_count; i++) TWI_TRY(consider(program, row, i));
    if (!program->measured) return TW_OK;
    /* In memory of its own, products need not wait for those whose memory it would take over. */
    program->buffer[program->guard_blocks].pinned = !twi_program_is_limited(program);
    return twi_lower_segments_again(program);
}

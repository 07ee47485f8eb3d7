/* Which steps use a buffer: an index, so that passes need not go through all steps for each of them. A step that is no
 * longer what it was keeps its entries; so who looks something up here asks the step that is found. */
#include "program.h"

static tw_status add(tw_program *program, int root, int step) {
    twi_uses *uses = &program->uses;
    if (uses->head[root] >= 0 && uses->use[uses->head[root]].step == step) return TW_OK;
    if (uses->count == uses->capacity) {
        const int grown = uses->capacity ? 2 * uses->capacity : 512;
        TWI_TRY(twi_grow(twi_program_context(program)->memory, &uses->use, (size_t)grown, sizeof *uses->use,
                         "uses of buffers"));
        uses->capacity = grown;
    }
    uses->use[uses->count] = (twi_buffer_use){step, uses->head[root]};
    uses->head[root] = uses->count++;
    return TW_OK;
}

/* For buffers that are new. */
static tw_status grow_heads(tw_program *program) {
    twi_uses *uses = &program->uses;
    if (program->buffer_count <= uses->heads) return TW_OK;
    TWI_TRY(twi_grow(twi_program_context(program)->memory, &uses->head, (size_t)program->buffer_capacity,
                     sizeof *uses->head, "uses of buffers"));
    while (uses->heads < program->buffer_capacity) uses->head[uses->heads++] = -1;
    return TW_OK;
}

static tw_status add_step(tw_program *program, int index) {
    const twi_step *step = &program->step[index];
    TWI_TRY(grow_heads(program));
    for (int o = 0; step->kernel && o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0) TWI_TRY(add(program, twi_program_root(program, step->operand[o]), index));
    return TW_OK;
}

tw_status twi_uses_open(tw_program *program) {
    tw_status status = TW_OK;
    twi_uses_close(program);
    for (int i = program->step_count - 1; i >= 0 && status == TW_OK; i--) /* so that the first come first */
        status = add_step(program, i);
    if (status) twi_uses_close(program);
    return status;
}

void twi_uses_close(tw_program *program) {
    twi_memory *memory = twi_program_context(program)->memory;
    twi_put(memory, program->uses.head);
    twi_put(memory, program->uses.use);
    program->uses = (twi_uses){0};
}

int twi_uses_first(const tw_program *program, int buffer) {
    const int root = buffer < 0 ? buffer : twi_program_root(program, buffer);
    return root >= 0 && root < program->uses.heads ? program->uses.head[root] : -1;
}

tw_status twi_uses_replace(tw_program *program, int index, const twi_step *step) {
    program->step[index] = *step;
    return add_step(program, index);
}

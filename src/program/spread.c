/* Which products share their weights among the workers, rather than the samples. A weight that is trained is written by one
 * worker, where the optimizer's range has it, and read by all that take samples: half of it and more travels from cache to
 * cache, twice a step. Where nobody else reads the weight, and the samples are what the program was fed, which all workers
 * read for its gradient anyhow, the product goes by rows of the weight instead: a row then stays with its worker. Kernel
 * records say which can; bits do not change, and nothing depends on the number of workers. */
#include "program.h"

/* Weights that are smaller travel faster than workers meet once more. */
#define SPREAD_BYTES ((size_t)64 << 10)

static int readers_of(const tw_program *program, int parameter) {
    int readers = 0;
    for (int i = 0; i < program->step_count; i++) {
        const twi_step *step = &program->step[i];
        for (int o = 0; o < step->kernel->operand_count; o++) {
            const twi_buffer *buffer =
                step->operand[o] < 0 ? NULL : &program->buffer[twi_program_root(program, step->operand[o])];
            readers += buffer && buffer->parameter == parameter && step->kernel->operand[o].access == TWI_READ &&
                       (buffer->source == TWI_SOURCE_VALUES || buffer->source == TWI_SOURCE_HALF_VALUES);
        }
    }
    return readers;
}

static bool reads_only_inputs(const tw_program *program, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->kernel->operand[o].reach == TWI_BATCHED && step->kernel->operand[o].access == TWI_READ &&
            !twi_program_is_input(program, twi_program_root(program, step->operand[o])))
            return false;
    return true;
}

static bool is_worth_it(const tw_program *program, const twi_step *step) {
    if (!step->kernel->by_rows || step->dtype != TW_F32) return false; /* halves would be widened anew by every part */
    const twi_buffer *weight = &program->buffer[twi_program_root(program, step->operand[step->kernel->rows_of])];
    return weight->source == TWI_SOURCE_VALUES && weight->bytes >= SPREAD_BYTES &&
           readers_of(program, weight->parameter) == 1 && reads_only_inputs(program, step);
}

tw_status twi_pass_spread(tw_program *program) {
    const twi_backend *backend = twi_program_context(program)->backend;
    for (int i = 0; i < program->step_count && program->train && backend->chunked; i++)
        if (is_worth_it(program, &program->step[i]))
            TWI_TRY(twi_program_kernel(program, program->step[i].kernel->by_rows, &program->step[i].kernel));
    return TW_OK;
}

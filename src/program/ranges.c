/* Which products share out parts of their weights among the workers, rather than the samples. Kernel records say which
 * can; shapes decide, and nothing depends on the number of workers.
 *
 * Forward: a weight that is trained is written by one worker, where the optimizer's range has it, and read by all that
 * take samples: it travels from cache to cache, twice a step. Where nobody else reads the weight, and the samples are
 * what the program was fed, which all workers read for its gradient anyhow, the product goes by rows of the weight
 * instead: a row then stays with its worker. No bit changes.
 *
 * Gradients: by samples, every group of chunks keeps sums of its own, which are added up in the end. Weights that are
 * larger than all that they are summed from, as in the last layers of networks for images, then go through memory many
 * times. By ranges every part is summed over the whole batch, and written once. */
#include "patterns.h"

#define SHARED_WEIGHT_BYTES ((size_t)64 << 10) /* weights that are smaller travel faster than workers meet once more */

static int count_reads(const tw_program *program, int buffer) {
    int reads = 0;
    TWI_FOR_USES(program, buffer, u)
    reads += twi_count_reads(program, &program->step[program->uses.use[u].step], buffer);
    return reads;
}

/* Of a weight as it is and of its halves. */
static int count_readers(const tw_program *program, int weight) {
    const int halves = program->buffer[weight].twin;
    return count_reads(program, weight) + (halves < 0 ? 0 : count_reads(program, halves));
}

static bool reads_only_inputs(const tw_program *program, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->kernel->operand[o].reach == TWI_BATCHED && step->kernel->operand[o].access == TWI_READ &&
            !program->buffer[twi_program_root(program, step->operand[o])].input)
            return false;
    return true;
}

static bool keeps_rows_in_place(const tw_program *program, const twi_step *step) {
    const int root = twi_program_root(program, step->operand[step->kernel->range_of]);
    const twi_buffer *weight = &program->buffer[root];
    return weight->source == TWI_SOURCE_VALUES && weight->bytes >= SHARED_WEIGHT_BYTES &&
           count_readers(program, root) == 1 && reads_only_inputs(program, step);
}

/* Is the sum larger than all that it is made from? */
static bool is_heavy(const tw_program *program, const twi_step *step) {
    const size_t sums = program->buffer[step->operand[step->kernel->range_of]].bytes;
    const size_t samples = (size_t)twi_program_step_samples(program, step);
    size_t read = 0;
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0 && step->kernel->operand[o].access == TWI_READ)
            read += program->buffer[step->operand[o]].sample_bytes * samples;
    return sums > TWI_CACHED_BYTES && sums > read;
}

static bool is_worth_it(const tw_program *program, const twi_step *step) {
    const twi_kernel *kernel = step->kernel;
    if (!kernel->by_range || step->dtype != TW_F32 || step->operand[kernel->range_of] < 0) return false;
    /* Halves would be widened anew by every part, and narrowed before they are summed. */
    return kernel->operand[kernel->range_of].access == TWI_READ ? keeps_rows_in_place(program, step)
                                                                : is_heavy(program, step);
}

tw_status twi_pass_ranges(tw_program *program) {
    if (!program->train || !twi_program_context(program)->backend->chunked) return TW_OK;
    TWI_TRY(twi_uses_open(program));
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        if (!is_worth_it(program, step)) continue;
        TWI_TRY(twi_program_kernel(program, step->kernel->by_range, &step->kernel));
        step->ranged = true;
    }
    twi_uses_close(program);
    return TW_OK;
}

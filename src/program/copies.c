/* Inputs of which every worker has a copy of its own. Where products go by rows of their weights (ranges.c) every worker
 * reads all of the batch, for them and for the weights' gradients. Out of the cache of another worker, which wrote it, it
 * comes more slowly than out of the memory that it is fed from, and lines that both have read cost more to write anew.
 * So what is fed is copied once by every worker, for itself, and what a program gathers (source.c) every worker gathers
 * for itself. Values are the same, so it does not show in results. */
#include "program.h"

#define COPIED_BYTES ((size_t)64 << 10) /* less comes over as fast as workers meet to copy it */

int twi_program_copies(const tw_program *program) {
    const tw_context *context = twi_program_context(program);
    return context->backend->copies ? context->backend->copies(context) : 1;
}

/* Could every worker do the step for itself? It makes that one value, sample by sample, of what no step makes. */
static bool is_repeatable(const twi_step *step, int written) {
    if (step->kernel->split != TWI_BY_SAMPLE || step->kernel->user) return false;
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (o != written &&
            (step->kernel->operand[o].access != TWI_READ || step->kernel->operand[o].reach != TWI_WHOLE))
            return false;
    return step->kernel->operand[written].reach == TWI_BATCHED;
}

/* Do all workers read all of it? A step by samples would find its samples in the first copy alone, which one worker has
 * in its cache. */
static bool is_read_by_ranges(const tw_program *program, int input) {
    int readers = 0;
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++) {
            const twi_step *step = &program->step[i];
            if (step->operand[o] < 0 || twi_program_root(program, step->operand[o]) != input) continue;
            const bool reads = step->kernel->operand[o].access == TWI_READ;
            if (reads ? step->kernel->split != TWI_BY_RANGE : !is_repeatable(step, o)) return false;
            readers += reads;
        }
    return readers > 0;
}

/* As large as a worker's cache holds, or every worker would bring it from memory anyhow. */
static bool is_copied(const tw_program *program, int buffer) {
    const twi_buffer *b = &program->buffer[buffer];
    return b->source == TWI_SOURCE_ARENA && b->bytes >= COPIED_BYTES && b->bytes <= TWI_CACHED_BYTES && b->input &&
           is_read_by_ranges(program, buffer);
}

void twi_pass_copies(tw_program *program) {
    if (twi_program_copies(program) < 2 || twi_program_is_limited(program)) return;
    for (int i = 0; i < program->buffer_count; i++) program->buffer[i].copied = is_copied(program, i);
}

bool twi_makes_copies(const tw_program *program, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0 && step->kernel->operand[o].access != TWI_READ &&
            program->buffer[twi_program_root(program, step->operand[o])].copied)
            return true;
    return false;
}

size_t twi_copy_stride(const twi_buffer *buffer) { return buffer->copied ? twi_arena_aligned(buffer->bytes) : 0; }

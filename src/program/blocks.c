/* The forward of a program as a chain of blocks, and what each step costs. Knows no op: steps, who reads what, and what
 * a back end would keep in the arena. What to do with the blocks is decided in recompute_choose.c. */
#include "recompute.h"

#include <string.h>

double twi_outline_cost(const twi_outline *outline, int index) {
    const twi_step *step = &outline->step[index];
    return twi_cost_of(twi_program_step_flops(outline->program, step), twi_program_step_bytes(outline->program, step),
                       1);
}

/* ---- what can be done again ---- */

/* A step whose results are of the samples alone, and lie nowhere but in planned memory. Sums over the batch are not
 * done twice: they are small, and what moves with them (running statistics) moves once. */
static bool is_repeatable(const tw_program *program, const twi_step *step) {
    int written = 0;
    if (step->kernel->split != TWI_BY_SAMPLE || step->kernel->nondeterministic) return false;
    for (int o = 0; o < step->kernel->operand_count; o++) {
        const twi_operand_rule *rule = &step->kernel->operand[o];
        if (rule->access == TWI_UPDATE) return false;
        if (step->operand[o] < 0 || rule->access == TWI_READ) continue;
        const twi_buffer *buffer = &program->buffer[step->operand[o]];
        if (rule->reach != TWI_BATCHED || buffer->source != TWI_SOURCE_ARENA || buffer->alias >= 0 || buffer->pinned ||
            buffer->input)
            return false;
        written++;
    }
    return written > 0;
}

static void note_step(twi_outline *outline, int index) {
    const tw_program *program = outline->program;
    const twi_step *step = &outline->step[index];
    const bool forward = index < outline->forward_count, repeatable = forward && is_repeatable(program, step);
    for (int o = 0; o < step->kernel->operand_count; o++) {
        if (step->operand[o] < 0) continue;
        twi_kept *kept = &outline->kept[twi_program_root(program, step->operand[o])];
        if (step->kernel->operand[o].access == TWI_READ) {
            if (forward)
                kept->last_forward = index;
            else
                kept->read_later = true;
        } else if (repeatable) {
            kept->writer = index;
        }
    }
}

/* ---- blocks ---- */

/* The buffers that steps from `at` on still read of what the forward before it made: how many, and one of them. */
static int crossing(const twi_outline *outline, int at, int *border) {
    int count = 0;
    *border = -1;
    for (int i = 0; i < outline->buffer_count; i++) {
        const twi_kept *kept = &outline->kept[i];
        if (kept->writer < 0 || kept->writer >= at || kept->last_forward < at) continue;
        *border = i;
        count++;
    }
    return count;
}

static void cut_blocks(twi_outline *outline) {
    int first = 0, border, last_border = -1;
    for (int at = 1; at < outline->forward_count; at++) {
        if (crossing(outline, at, &border) > 1 || border < 0 || border == last_border) continue;
        outline->block[outline->block_count++] = (twi_block){first, at, border};
        first = at;
        last_border = border;
    }
    if (first < outline->forward_count)
        outline->block[outline->block_count++] = (twi_block){first, outline->forward_count, -1};
}

static tw_status copy(twi_memory *memory, void *out, const void *from, int count, size_t size) {
    void *made;
    TWI_TRY(twi_get(memory, &made, (size_t)count, size, "outline of a program"));
    if (count) memcpy(made, from, (size_t)count * size);
    memcpy(out, &made, sizeof made);
    return TW_OK;
}

static tw_status fill(twi_outline *outline) {
    const tw_program *program = outline->program;
    TWI_TRY(copy(outline->memory, &outline->step, program->step, program->step_count, sizeof *outline->step));
    TWI_TRY(copy(outline->memory, &outline->buffer, program->buffer, program->buffer_count, sizeof *outline->buffer));
    outline->step_count = program->step_count;
    outline->buffer_count = program->buffer_count;
    while (outline->forward_count < outline->step_count &&
           outline->step[outline->forward_count].part == TWI_PART_FORWARD)
        outline->forward_count++;
    TWI_TRY(twi_get(outline->memory, &outline->kept, (size_t)outline->buffer_count, sizeof *outline->kept,
                    "outline of a program"));
    for (int i = 0; i < outline->buffer_count; i++) outline->kept[i] = (twi_kept){-1, -1, false};
    for (int i = 0; i < outline->step_count; i++) {
        note_step(outline, i);
        outline->work += twi_outline_cost(outline, i);
    }
    TWI_TRY(twi_get(outline->memory, &outline->block, (size_t)outline->forward_count + 1, sizeof *outline->block,
                    "blocks of a program"));
    cut_blocks(outline);
    return TW_OK;
}

tw_status twi_outline_open(twi_outline *outline, tw_program *program) {
    *outline = (twi_outline){.program = program, .memory = twi_program_context(program)->memory};
    tw_status status = fill(outline);
    if (status) twi_outline_close(outline);
    return status;
}

void twi_outline_close(twi_outline *outline) {
    void *const owned[] = {outline->step, outline->buffer, outline->kept, outline->block, outline->price};
    for (size_t i = 0; outline->memory && i < sizeof owned / sizeof *owned; i++) twi_put(outline->memory, owned[i]);
    *outline = (twi_outline){0};
}

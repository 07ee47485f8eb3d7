/* Steps that give the same in another order, where that is less work: the relu before a max pooling comes after it, on
 * the elements that won alone. Which steps those are is in the table of fuse_patterns.c. */
#include "program.h"
#include "patterns.h"

#include <string.h>

typedef struct found {
    int first, second, second_backward, first_backward; /* steps; -1: there is no backward */
} found;

/* The only steps that may read a value; -1: none. */
static bool read_by(const tw_program *program, int buffer, int one, int other) {
    if (!twi_may_vanish(program, buffer)) return false;
    TWI_FOR_USES(program, buffer, u) {
        const int i = program->uses.use[u].step;
        if (i != one && i != other && twi_count_reads(program, &program->step[i], buffer)) return false;
    }
    return true;
}

/* The first step of a kernel that reads a buffer as that operand; -1: none. */
static int reader_of(const tw_program *program, const char *kernel, int operand, int buffer) {
    int found = -1;
    TWI_FOR_USES(program, buffer, u) {
        const int i = program->uses.use[u].step;
        if ((found < 0 || i < found) && twi_is_kernel(&program->step[i], kernel) &&
            program->step[i].operand[operand] == buffer)
            found = i;
    }
    return found;
}

static bool find(const tw_program *program, const twi_swap *swap, int first, found *f) {
    const twi_step *step = program->step;
    f->first = first;
    f->second = reader_of(program, swap->second, 0, step[first].operand[1]);
    if (f->second < 0) return false;
    int index = step[f->second].operand[2];
    f->second_backward = index < 0 ? -1 : reader_of(program, swap->second_backward, 1, index);
    f->first_backward =
        f->second_backward < 0 ? -1 : reader_of(program, swap->first_backward, 0, step[f->second_backward].operand[2]);
    if (f->second_backward >= 0) { /* all four, one behind the other, or none */
        int between = step[f->second_backward].operand[2];
        if (f->first_backward < 0 || step[f->first_backward].operand[1] != step[first].operand[1]) return false;
        if (!read_by(program, between, f->first_backward, -1)) return false;
    }
    return read_by(program, step[first].operand[1], f->second, f->first_backward);
}

/* A value between the two that is as large as `like`. */
static tw_status add_between(tw_program *program, int like, int *index) {
    twi_buffer between = program->buffer[like];
    between.source = TWI_SOURCE_ARENA;
    between.pinned = false;
    between.parameter = -1;
    return twi_program_add_buffer(program, &between, index);
}

/* The steps change places, so that each stands where its operands are written and not yet read. */
static tw_status swap_steps(tw_program *program, const found *f) {
    int between;
    twi_step first = program->step[f->first], second = program->step[f->second];
    TWI_TRY(add_between(program, second.operand[1], &between));
    int x = first.operand[0], y = second.operand[1];
    second.operand[0] = x, second.operand[1] = between;
    first.operand[0] = between, first.operand[1] = y;
    TWI_TRY(twi_uses_replace(program, f->first, &second));
    TWI_TRY(twi_uses_replace(program, f->second, &first));
    if (f->second_backward < 0) return TW_OK;
    twi_step last = program->step[f->first_backward], before = program->step[f->second_backward];
    int dy = before.operand[0], dx = last.operand[2];
    TWI_TRY(add_between(program, dy, &between));
    last.operand[0] = dy, last.operand[1] = y, last.operand[2] = between;
    before.operand[0] = between, before.operand[2] = dx;
    TWI_TRY(twi_uses_replace(program, f->second_backward, &last));
    return twi_uses_replace(program, f->first_backward, &before);
}

/* Swaps, and swaps back what gains nothing by it. */
static tw_status try_swap(tw_program *program, const found *f) {
    const int at[] = {f->first, f->second, f->second_backward, f->first_backward};
    twi_step before[4];
    bool fuses;
    for (int k = 0; k < 4; k++)
        if (at[k] >= 0) before[k] = program->step[at[k]];
    TWI_TRY(swap_steps(program, f));
    TWI_TRY(twi_fuse_probe(program, f->second, &fuses));
    for (int k = 0; k < 4 && !fuses; k++)
        if (at[k] >= 0) TWI_TRY(twi_uses_replace(program, at[k], &before[k]));
    return TW_OK;
}

tw_status twi_swap_steps(tw_program *program) {
    if (!twi_program_context(program)->backend->takes) return TW_OK;
    for (const twi_swap *swap = twi_swaps; swap->first; swap++)
        for (int i = 0; i < program->step_count; i++) {
            found f;
            if (twi_is_kernel(&program->step[i], swap->first) && find(program, swap, i, &f))
                TWI_TRY(try_swap(program, &f));
        }
    return TW_OK;
}

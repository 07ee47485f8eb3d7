/* Does forward steps again in the backward: what they wrote is then free in between. A step that is done again is a
 * copy of the fused original: kernel, attributes, node, chunks, groups and implementation, so that not a bit of its
 * results differs, drops of dropout included. It stands just before the first step that reads a result of it, and
 * writes to buffers of its own. */
#include "recompute.h"

#include <string.h>

typedef struct again {
    const twi_outline *outline;
    tw_program *program;
    const bool *dropped;
    bool *done;     /* per forward step: it stands in the list once more */
    int *twin;      /* per buffer of the outline: what stands for it in the backward; -1: itself */
    twi_step *step; /* the new list */
    int count;
} again;

/* The dropped step that wrote what a step reads as operand o; -1: none. */
static int dropped_writer(const again *a, const twi_step *step, int o) {
    if (step->operand[o] < 0 || step->kernel->operand[o].access != TWI_READ) return -1;
    const int root = twi_program_root(a->program, step->operand[o]);
    const int writer = root < a->outline->buffer_count ? a->outline->kept[root].writer : -1;
    return writer >= 0 && a->dropped[writer] ? writer : -1;
}

/* A buffer for the backward like one of the forward. */
static tw_status add_twin(again *a, int buffer, int alias, int *out) {
    const twi_buffer like = a->outline->buffer[buffer];
    TWI_TRY(twi_program_add_buffer(a->program, &like, out));
    a->program->buffer[*out].alias = alias;
    a->twin[buffer] = *out;
    return TW_OK;
}

/* What the backward reads instead of a buffer of the forward, which may be a view. */
static tw_status find_twin(again *a, int buffer, int *out) {
    const int alias = a->outline->buffer[buffer].alias;
    int below;
    *out = a->twin[buffer] >= 0 ? a->twin[buffer] : buffer;
    if (a->twin[buffer] >= 0 || alias < 0) return TW_OK;
    TWI_TRY(find_twin(a, alias, &below));
    return below == alias ? TW_OK : add_twin(a, buffer, below, out);
}

static tw_status read_twins(again *a, twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0 && step->kernel->operand[o].access == TWI_READ &&
            step->operand[o] < a->outline->buffer_count)
            TWI_TRY(find_twin(a, step->operand[o], &step->operand[o]));
    return TW_OK;
}

/* What a step of the backward, or one done again, reads of what was dropped: made again before it. */
static tw_status make_again(again *a, int writer);
static tw_status make_operands(again *a, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++) {
        const int writer = dropped_writer(a, step, o);
        if (writer >= 0 && !a->done[writer]) TWI_TRY(make_again(a, writer));
    }
    return TW_OK;
}

static tw_status make_again(again *a, int writer) {
    twi_step step = a->outline->step[writer];
    a->done[writer] = true;
    TWI_TRY(make_operands(a, &step));
    TWI_TRY(read_twins(a, &step));
    for (int o = 0; o < step.kernel->operand_count; o++)
        if (step.operand[o] >= 0 && step.kernel->operand[o].access != TWI_READ)
            TWI_TRY(add_twin(a, step.operand[o], -1, &step.operand[o]));
    step.again = true;
    step.part = TWI_PART_BACKWARD;
    step.choice.state = NULL; /* until it is finished: what it wants, but nothing to run */
    a->step[a->count++] = step;
    return TW_OK;
}

static tw_status list_steps(again *a) {
    const twi_outline *outline = a->outline;
    for (int i = 0; i < outline->step_count; i++) {
        twi_step step = outline->step[i];
        if (a->dropped && i >= outline->forward_count) {
            TWI_TRY(make_operands(a, &step));
            TWI_TRY(read_twins(a, &step));
        }
        a->step[a->count++] = step;
    }
    return TW_OK;
}

static void restore_buffers(const twi_outline *outline) {
    tw_program *program = outline->program;
    memcpy(program->buffer, outline->buffer, (size_t)outline->buffer_count * sizeof *outline->buffer);
    program->buffer_count = outline->buffer_count;
    for (int i = 0; i < program->buffer_count; i++) program->buffer[i].over = -1; /* planned anew */
}

static tw_status begin(again *a) {
    const twi_outline *outline = a->outline;
    const size_t most = (size_t)outline->step_count + (size_t)outline->forward_count;
    TWI_TRY(twi_get(outline->memory, &a->done, (size_t)outline->forward_count, sizeof *a->done, "dropped steps"));
    TWI_TRY(twi_get(outline->memory, &a->twin, (size_t)outline->buffer_count, sizeof *a->twin, "dropped buffers"));
    for (int i = 0; i < outline->buffer_count; i++) a->twin[i] = -1;
    return twi_get(outline->memory, &a->step, most, sizeof *a->step, "program steps");
}

/* The program keeps its own list until there is a new one: it owns the implementations. */
static tw_status change(again *a) {
    tw_program *program = a->program;
    TWI_TRY(begin(a));
    restore_buffers(a->outline);
    TWI_TRY(list_steps(a));
    twi_put(a->outline->memory, program->step);
    program->step = a->step;
    program->step_count = program->step_capacity = a->count;
    a->step = NULL;
    return TW_OK;
}

static void count_work(const twi_outline *outline, const again *a) {
    twi_recomputed *r = &outline->program->recomputed;
    *r = (twi_recomputed){0};
    for (int i = 0; i < outline->forward_count; i++) {
        if (!a->done[i]) continue;
        const twi_step *step = &outline->step[i];
        r->steps++;
        r->flops += twi_program_step_flops(outline->program, step);
        r->bytes += twi_program_step_bytes(outline->program, step);
        r->work += twi_outline_cost(outline, i) / outline->work;
    }
}

tw_status twi_recompute_apply(const twi_outline *outline, const bool *dropped) {
    again a = {.outline = outline, .program = outline->program, .dropped = dropped};
    tw_status status = change(&a);
    if (status == TW_OK) count_work(outline, &a);
    twi_put(outline->memory, a.done);
    twi_put(outline->memory, a.twin);
    twi_put(outline->memory, a.step);
    TWI_TRY(status);
    TWI_TRY(twi_schedule_segments(outline->program));
    return twi_pass_memory_plan(outline->program);
}

tw_status twi_recompute_finish(const twi_outline *outline) {
    tw_program *program = outline->program;
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        if (!step->again || step->choice.state) continue;
        const twi_choice planned = step->choice;
        TWI_TRY(twi_choose_step(program, step));
        if (strcmp(planned.implementation, step->choice.implementation) != 0 ||
            planned.shared_bytes != step->choice.shared_bytes || planned.worker_bytes != step->choice.worker_bytes)
            return TWI_FAIL(TW_ERROR_INTERNAL, "'%s': %s would be done again by '%s' instead of '%s'; please report it",
                            step->label, step->kernel->name, step->choice.implementation, planned.implementation);
    }
    return TW_OK;
}

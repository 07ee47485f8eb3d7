/* Where barriers stand. A phase needs none if it touches nothing that a phase since the last barrier writes, and writes
 * nothing that such a phase touches. Names of buffers do not tell, since later buffers take the arena's memory over:
 * addresses do. Who does what does not matter: the phases alone decide. */
#include "cpu_program.h"

/* Memory that all workers see. */
typedef struct access {
    uintptr_t begin, end;
    bool writes;
} access;

typedef struct touched {
    const access *access;
    int count;
    uint8_t control; /* twi_control_use */
    bool raises;     /* may raise a fault */
    bool foreign;    /* calls a user's functions, which may share memory that nobody knows of */
} touched;

/* ---- conflicts ---- */

/* Raising faults is no conflict of two that raise some: of several the same one stays, in any order. */
static bool controls_conflict(const touched *a, const touched *b) {
    return (a->control & TWI_CONTROL_WRITE && b->control & (TWI_CONTROL_READ | TWI_CONTROL_WRITE)) ||
           (a->raises && b->control & TWI_CONTROL_FAULTS);
}

static bool conflict(const touched *a, const touched *b) {
    if (controls_conflict(a, b) || controls_conflict(b, a) || (a->foreign && b->foreign)) return true;
    for (int i = 0; i < a->count; i++)
        for (int k = 0; k < b->count; k++) {
            const access *x = &a->access[i], *y = &b->access[k];
            if ((x->writes || y->writes) && x->begin < y->end && y->begin < x->end) return true;
        }
    return false;
}

/* ---- what a phase touches ---- */

/* What is listed: of one phase after the other, first counted and then noted. */
typedef struct listing {
    const twi_cpu_program *program;
    const twi_plan *plan;
    const unsigned char *arena;
    access *access; /* of all phases; NULL: they are counted */
    size_t used;
    touched *touch; /* of the phase in hand */
} listing;

static void touch(listing *l, const void *at, size_t bytes, bool writes) {
    if (!bytes) return;
    if (l->access) l->access[l->used] = (access){(uintptr_t)at, (uintptr_t)at + bytes, writes};
    l->used++;
    l->touch->count++;
}

/* Samples side by side come in whole blocks of them. */
static size_t extent(const twi_buffer_plan *buffer) {
    if (!buffer->lanes) return buffer->bytes;
    const size_t lanes = buffer->lanes, samples = (size_t)buffer->shape.dim[0];
    return (samples + lanes - 1) / lanes * lanes * buffer->sample_bytes;
}

/* What is in a worker's own scratch, or is its own copy, nobody else touches; nobody takes over the memory of copies. */
static void touch_operand(listing *l, const twi_step_plan *step, int operand, bool writes) {
    if (step->buffer[operand] < 0) return;
    const twi_buffer_plan *buffer = &l->plan->buffer[step->buffer[operand]];
    if (buffer->place == TWI_PLACE_LOCAL || buffer->copy_stride) return;
    touch(l, buffer->place == TWI_PLACE_FIXED ? (unsigned char *)buffer->address : l->arena + buffer->offset,
          extent(buffer), writes);
}

/* All groups' parts. */
static void touch_parts(listing *l, const twi_cpu_segment *segment, const twi_cpu_sum *sum) {
    touch(l, sum->part, (size_t)(segment->groups - 1) * sum->stride + sum->bytes, true);
}

static void touch_shared(listing *l, const twi_step_plan *step) {
    touch(l, l->arena + step->shared_offset, step->choice.shared_bytes, true);
}

/* A step's begin reads what the step reads, and fills the shared workspace. */
static void touch_begin(listing *l, int index) {
    const twi_step_plan *step = &l->plan->step[index];
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->kernel->operand[o].access != TWI_WRITE) touch_operand(l, step, o, false);
    touch_shared(l, step);
    l->touch->raises = true;
}

/* A step's calls. Sums they add up in their groups' parts; its outputs are written when those are finished. */
static void touch_step(listing *l, const twi_cpu_segment *segment, int index, bool finishing) {
    const twi_step_plan *step = &l->plan->step[index];
    const twi_kernel *kernel = step->kernel;
    const twi_cpu_step *bound = &l->program->step[index];
    for (int o = 0; o < kernel->operand_count; o++)
        if (kernel->operand[o].reach != TWI_SUMMED || finishing)
            touch_operand(l, step, o, kernel->operand[o].access != TWI_READ);
    for (int s = 0; s < bound->sum_count; s++) touch_parts(l, segment, &bound->sum[s]);
    touch_shared(l, step);
    l->touch->control |= kernel->control;
    l->touch->raises =
        l->touch->raises || !(kernel->control & TWI_CONTROL_FAULTS) || kernel->control & TWI_CONTROL_WRITE;
    l->touch->foreign = l->touch->foreign || kernel->user;
}

static void touch_piece(listing *l, const twi_cpu_segment *segment, const twi_cpu_piece *piece) {
    if (piece->begin > 0) return; /* the first of its sum stands for all of it */
    touch_parts(l, segment, piece->sum);
    touch(l, piece->sum->total, piece->sum->bytes, true);
}

static void touch_phase(listing *l, const twi_cpu_phase *phase) {
    const twi_cpu_program *program = l->program;
    const twi_cpu_segment *segment = phase->segment;
    for (int part = phase->first; part < phase->first + phase->parts; part++) {
        if (phase->part == twi_cpu_run_begin) touch_begin(l, program->begin[part]);
        if (phase->part == twi_cpu_run_piece) touch_piece(l, segment, &program->piece[part]);
        if (phase->part == twi_cpu_run_finish) touch_step(l, segment, program->finish[part], true);
    }
    if (phase->part == twi_cpu_run_range)
        for (int s = phase->first; s < phase->first + phase->steps; s++) touch_step(l, segment, s, false);
    if (phase->part != twi_cpu_run_group && phase->part != twi_cpu_run_once) return;
    for (int s = 0; s < segment->step_count; s++) touch_step(l, segment, segment->first_step + s, false);
}

/* Fills touches[] and, if l->access is there, what they list. */
static void list_phases(listing *l, touched *touches) {
    l->used = 0;
    for (int p = 0; p < l->program->phase_count; p++) {
        touches[p] = (touched){.access = l->access ? l->access + l->used : NULL};
        l->touch = &touches[p];
        touch_phase(l, &l->program->phase[p]);
    }
}

/* ---- barriers ---- */

/* Does phase p conflict with one of those from `first` on? What worker 0 does alone it does in order anyway. */
static bool must_wait(const twi_cpu_program *program, const touched *touches, int first, int p) {
    for (int q = first; q < p; q++)
        if (!(program->phase[p].alone && program->phase[q].alone) && conflict(&touches[p], &touches[q])) return true;
    return false;
}

/* Phases that are alone, at the start of a run or behind a barrier, are over before the others begin, so they are not
 * among those to wait for. A run that starts further on has fewer phases to wait for, and none that is not counted here.
 * Segments of constants are run by themselves. */
static void mark(twi_cpu_program *program, const touched *touches) {
    const int constants = program->constant_segments < program->segment_count
                              ? program->segment[program->constant_segments].first_phase
                              : program->phase_count;
    bool opening = true;
    for (int p = 0, first = 0; p < program->phase_count; p++) {
        twi_cpu_phase *phase = &program->phase[p];
        phase->barrier =
            p > 0 && (p == constants || (!(opening && phase->alone) && must_wait(program, touches, first, p)));
        if (phase->barrier) opening = true;
        opening = opening && phase->alone;
        if (phase->barrier) first = p;
        if (opening) first = p + 1;
    }
}

tw_status twi_cpu_place_barriers(twi_cpu_program *program, const twi_plan *plan, const void *arena) {
    touched *touches;
    listing l = {.program = program, .plan = plan, .arena = arena};
    TWI_TRY(twi_get(program->memory, &touches, (size_t)program->phase_count, sizeof *touches, "what phases touch"));
    list_phases(&l, touches);
    tw_status status = twi_get(program->memory, &l.access, l.used, sizeof *l.access, "what phases touch");
    if (status == TW_OK) {
        list_phases(&l, touches);
        mark(program, touches);
    }
    twi_put(program->memory, l.access);
    twi_put(program->memory, touches);
    return status;
}

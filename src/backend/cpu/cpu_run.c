/* Runs a prepared program on the context's workers. A run patches addresses and counters in what cpu_prepare.c made; it
 * allocates nothing and copies no call. */
#include "cpu_program.h"
#include "base/clock.h"
#include "onednn.h"

#include <string.h>

/* Work that one worker is guessed to do faster than waking and meeting the others takes. Nor are they woken where there
 * is nothing to share: one image is one worker's. */
#define ALONE_NANOSECONDS 20000
#define BARRIER_NANOSECONDS 500.0

static twi_cpu_workspace workspace_of(const twi_cpu_program *program, const twi_cpu_step *step, int worker, bool tail) {
    return (twi_cpu_workspace){.shared = step->shared,
                               .scratch = program->worker[worker].scratch + program->scratch_offset,
                               .worker = worker,
                               .workers = program->workers,
                               .tail = tail};
}

/* The specification adds to its sums, implementations replace them in a first call. */
static void run_step(const twi_cpu_program *program, const twi_cpu_step *step, const twi_call *call, int worker,
                     bool tail) {
    const twi_cpu_impl *impl = step->site->impl;
    if (impl) {
        twi_cpu_workspace workspace = workspace_of(program, step, worker, tail);
        impl->run(step->site, call, &workspace);
        return;
    }
    for (int s = 0; call->first && s < step->sum_count; s++)
        memset(call->operand[step->sum[s].operand].data, 0, step->sum[s].bytes);
    step->kernel->run(call);
}

/* ---- times, where they are asked for ---- */

static int64_t watch(const twi_cpu_program *program) { return program->times ? twi_clock() : 0; }

/* Gives a step what has passed since, and starts anew. */
static void lap(const twi_cpu_program *program, const twi_cpu_step *step, int worker, int calls, int64_t *since) {
    if (!program->times) return;
    twi_step_time *time = &program->times[(size_t)worker * program->times_row + (size_t)(step - program->step)];
    int64_t now = twi_clock();
    time->nanoseconds += now - *since;
    time->calls += (uint64_t)calls;
    *since = now;
}

/* ---- parts ---- */

void twi_cpu_run_begin(const twi_cpu_program *program, const twi_cpu_phase *phase, int part, int worker) {
    const twi_cpu_step *step = &program->step[program->begin[phase->first + part]];
    int64_t since = watch(program);
    twi_cpu_workspace workspace = workspace_of(program, step, worker, false);
    step->site->impl->begin(step->site, &step->whole, &workspace);
    lap(program, step, worker, 0, &since);
}

static void run_chunk(const twi_cpu_program *program, const twi_cpu_segment *segment, int64_t chunk, int group,
                      bool first, int worker) {
    int64_t sample = chunk * segment->chunk;
    bool tail = segment->samples - sample < segment->chunk;
    int64_t since = watch(program);
    for (int s = segment->first_step; s < segment->first_step + segment->step_count; s++) {
        const twi_cpu_step *step = &program->step[s];
        twi_call *call = &program->worker[worker].call[step->call + tail];
        for (int i = 0; i < step->slice_count; i++) {
            const twi_cpu_slice *slice = &step->slice[i];
            call->operand[slice->operand].data =
                slice->base + (size_t)worker * slice->copy_stride + (size_t)sample * slice->sample_bytes;
        }
        for (int i = 0; i < step->sum_count; i++) {
            const twi_cpu_sum *sum = &step->sum[i];
            call->operand[sum->operand].data = sum->part + (size_t)group * sum->stride;
        }
        call->sample = sample;
        call->first = first;
        run_step(program, step, call, worker, tail);
        lap(program, step, worker, 1, &since);
    }
}

void twi_cpu_run_group(const twi_cpu_program *program, const twi_cpu_phase *phase, int part, int worker) {
    const twi_cpu_segment *segment = phase->segment;
    int64_t begin = part * segment->chunks / segment->groups, end = (part + 1) * segment->chunks / segment->groups;
    for (int64_t chunk = begin; chunk < end; chunk++) run_chunk(program, segment, chunk, part, chunk == begin, worker);
}

void twi_cpu_run_range(const twi_cpu_program *program, const twi_cpu_phase *phase, int part, int worker) {
    const twi_cpu_segment *segment = phase->segment;
    const int64_t grains = (segment->range + phase->grain - 1) / phase->grain,
                  begin = part * grains / phase->parts * phase->grain,
                  end = part + 1 == phase->parts ? segment->range : (part + 1) * grains / phase->parts * phase->grain;
    int64_t since = watch(program);
    for (int s = phase->first; s < phase->first + phase->steps; s++) {
        const twi_cpu_step *step = &program->step[s];
        twi_call *call = &program->worker[worker].call[step->call];
        call->begin = begin;
        call->end = end;
        run_step(program, step, call, worker, false);
        lap(program, step, worker, 1, &since);
    }
}

void twi_cpu_run_once(const twi_cpu_program *program, const twi_cpu_phase *phase, int part, int worker) {
    const twi_cpu_segment *segment = phase->segment;
    (void)part;
    int64_t since = watch(program);
    for (int s = segment->first_step; s < segment->first_step + segment->step_count; s++) {
        run_step(program, &program->step[s], &program->step[s].whole, worker, false);
        lap(program, &program->step[s], worker, 1, &since);
    }
}

static void add_f32(void *restrict total, const void *restrict part, size_t bytes) {
    float *restrict sum = total;
    const float *restrict term = part;
    for (size_t i = 0; i < bytes / sizeof *sum; i++) sum[i] += term[i];
}
static void add_f64(void *restrict total, const void *restrict part, size_t bytes) {
    double *restrict sum = total;
    const double *restrict term = part;
    for (size_t i = 0; i < bytes / sizeof *sum; i++) sum[i] += term[i];
}

void twi_cpu_run_piece(const twi_cpu_program *program, const twi_cpu_phase *phase, int part, int worker) {
    const twi_cpu_piece *piece = &program->piece[phase->first + part];
    int64_t since = watch(program);
    const twi_cpu_sum *sum = piece->sum;
    size_t bytes = piece->end - piece->begin;
    unsigned char *total = sum->total + piece->begin;
    if (sum->total != sum->part) memcpy(total, sum->part + piece->begin, bytes);
    for (int group = 1; group < phase->segment->groups; group++) {
        const unsigned char *term = sum->part + (size_t)group * sum->stride + piece->begin;
        (piece->step->wide ? add_f64 : add_f32)(total, term, bytes);
    }
    lap(program, piece->step, worker, 0, &since);
}

void twi_cpu_run_finish(const twi_cpu_program *program, const twi_cpu_phase *phase, int part, int worker) {
    const twi_cpu_step *step = &program->step[program->finish[phase->first + part]];
    int64_t since = watch(program);
    twi_cpu_workspace workspace = workspace_of(program, step, worker, false);
    void *total[TWI_MAX_OPERANDS] = {NULL};
    for (int s = 0; s < step->sum_count; s++) total[step->sum[s].operand] = step->sum[s].total;
    step->site->impl->finish(step->site, &step->whole, &workspace, total);
    lap(program, step, worker, 0, &since);
}

/* ---- phases ---- */

static int share_begin(const twi_cpu_program *program, const twi_cpu_phase *phase, int worker) {
    return (int)((int64_t)phase->parts * worker / program->workers);
}

static void reset_phase(const twi_cpu_program *program, const twi_cpu_phase *phase) {
    for (int w = 0; w < program->workers; w++)
        atomic_store_explicit(&phase->share[w].next, share_begin(program, phase, w), memory_order_relaxed);
}

static void run_whole(const twi_cpu_program *program, const twi_cpu_phase *phase, int worker) {
    for (int part = 0; part < phase->parts; part++) phase->part(program, phase, part, worker);
}

static void run_phase(const twi_cpu_program *program, const twi_cpu_phase *phase, int worker) {
    if (phase->alone || phase->each) {
        if (phase->each || worker == 0) run_whole(program, phase, worker);
        return;
    }
    for (int k = 0; k < program->workers; k++) {
        const int owner = (worker + k) % program->workers, end = share_begin(program, phase, owner + 1);
        for (int part; (part = atomic_fetch_add_explicit(&phase->share[owner].next, 1, memory_order_relaxed)) < end;)
            phase->part(program, phase, part, worker);
    }
}

/* ---- runs ---- */

typedef struct run {
    twi_cpu_program *program;
    int first_phase, end_phase;
    bool begins; /* workers share what steps begin with, before all else */
    int opened;  /* phases before are alone, and done by the caller before it calls the others */
    int closing; /* phases from here on are alone, and done by the worker that is done last */
} run;

static void run_wholes(const twi_cpu_program *program, int first, int end, int worker) {
    for (int p = first; p < end; p++) run_whole(program, &program->phase[p], worker);
}

static void run_opening(void *argument, int worker, int workers) {
    const run *r = argument;
    (void)workers;
    int threads = twi_onednn_enter();
    if (!r->begins) run_whole(r->program, &r->program->begin_phase, worker);
    run_wholes(r->program, r->first_phase, r->opened, worker);
    twi_onednn_leave(threads);
}

static void run_closing(void *argument, int worker, int workers) {
    const run *r = argument;
    (void)workers;
    int threads = twi_onednn_enter(); /* its own phases it has left */
    run_wholes(r->program, r->closing, r->end_phase, worker);
    twi_onednn_leave(threads);
}

static void run_all(void *argument, int worker, int workers) {
    const run *r = argument;
    (void)workers;
    int threads = twi_onednn_enter();
    run_whole(r->program, &r->program->begin_phase, worker);
    run_wholes(r->program, r->first_phase, r->end_phase, worker);
    twi_onednn_leave(threads);
}

static int skip_alone(const twi_cpu_program *program, int first, int end) {
    while (first < end && program->phase[first].alone) first++;
    return first;
}

/* Some phases in a row. */
typedef struct stretch {
    const twi_cpu_program *program;
    int first, end;
} stretch;

static void run_stretch(void *argument, int worker, int workers) {
    const stretch *s = argument;
    (void)workers;
    run_wholes(s->program, s->first, s->end, worker);
}

/* Who comes last does the phases that are alone; returns the first that is not. */
static int pass_barrier(const run *r, int first, int worker) {
    stretch alone = {r->program, first, skip_alone(r->program, first, r->closing)};
    twi_pool_barrier(r->program->pool, worker, alone.end > first ? run_stretch : NULL, &alone);
    return alone.end;
}

static void run_phases(void *argument, int worker, int workers) {
    const run *r = argument;
    const twi_cpu_program *program = r->program;
    int threads = twi_onednn_enter();
    (void)workers;
    if (r->begins) run_phase(program, &program->begin_phase, worker);
    for (int p = r->opened; p < r->closing; p++) {
        if (p == r->opened ? r->begins : program->phase[p].barrier) p = pass_barrier(r, p, worker);
        run_phase(program, &program->phase[p], worker);
    }
    twi_onednn_leave(threads);
}

/* At the end are those behind the last barrier, if they are all alone. */
static void find_ends(run *r) {
    const twi_cpu_program *program = r->program;
    r->begins = program->begin_phase.parts > 1;
    r->opened = r->begins ? r->first_phase : skip_alone(program, r->first_phase, r->end_phase);
    r->closing = r->end_phase;
    while (r->closing > r->opened && program->phase[r->closing - 1].alone) r->closing--;
    while (r->closing < r->end_phase && !(program->phase[r->closing].barrier || (r->begins && r->closing == r->opened)))
        r->closing++;
}

static tw_status run_shared(run *r) {
    const twi_cpu_program *program = r->program;
    twi_pool *pool = program->pool;
    find_ends(r);
    if (r->opened > r->first_phase || program->begin_phase.parts == 1) twi_pool_run_alone(pool, run_opening, r);
    return twi_pool_run_to(pool, run_phases, r->closing < r->end_phase ? run_closing : NULL, r);
}

/* On the program's threads nobody can wait in the middle: every phase is handed out by itself. */
typedef struct hosted {
    twi_cpu_program *program;
    twi_cpu_phase *phase;
} hosted;

static void run_hosted_phase(void *argument, int worker, int workers) {
    const hosted *h = argument;
    (void)workers;
    int threads = twi_onednn_enter();
    run_phase(h->program, h->phase, worker);
    twi_onednn_leave(threads);
}

static tw_status run_hosted(const run *r) {
    hosted h = {r->program, &r->program->begin_phase};
    if (h.phase->parts > 0) TWI_TRY(twi_pool_run(r->program->pool, run_hosted_phase, &h));
    for (int p = r->first_phase; p < r->end_phase; p++) {
        h.phase = &r->program->phase[p];
        if (h.phase->alone)
            twi_pool_run_alone(r->program->pool, run_hosted_phase, &h);
        else
            TWI_TRY(twi_pool_run(r->program->pool, run_hosted_phase, &h));
    }
    return TW_OK;
}

tw_status twi_cpu_run(tw_context *context, void *prepared, int first_segment, int segment_count) {
    (void)context;
    twi_cpu_program *program = prepared;
    if (first_segment < 0 || segment_count < 0 || segment_count > program->segment_count - first_segment)
        return TWI_FAIL(TW_ERROR_INTERNAL, "cpu: run of segments %d to %d of a program of %d; please report it",
                        first_segment, first_segment + segment_count - 1, program->segment_count);
    if (segment_count == 0) return TW_OK;
    const twi_cpu_segment *first = &program->segment[first_segment], *last = first + segment_count - 1;
    run r = {.program = program, .first_phase = first->first_phase, .end_phase = last->first_phase + last->phase_count};
    const bool apart = first_segment < program->constant_segments; /* what other steps begin with is not made yet */
    bool fresh = program->control->constants && program->constants == program->control->constants;
    program->begin_phase.parts = fresh || apart ? 0 : program->begin_count;
    reset_phase(program, &program->begin_phase);
    double nanoseconds = 0;
    for (const twi_cpu_segment *s = first; s <= last; s++) nanoseconds += s->nanoseconds;
    bool shared = program->begin_phase.parts > 1;
    int barriers = 1;
    for (int p = r.first_phase; p < r.end_phase; p++) {
        reset_phase(program, &program->phase[p]);
        shared = shared || !program->phase[p].alone;
        barriers += program->phase[p].barrier;
    }
    if (program->workers == 1 || !shared || nanoseconds < ALONE_NANOSECONDS + barriers * BARRIER_NANOSECONDS) {
        twi_pool_run_alone(program->pool, run_all, &r);
    } else {
        TWI_TRY(twi_pool_is_hosted(program->pool) ? run_hosted(&r) : run_shared(&r));
    }
    if (!apart) program->constants = program->control->constants; /* for which steps have begun now */
    return TW_OK;
}

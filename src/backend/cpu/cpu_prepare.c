/* Binds a plan to memory: makes every call, address and phase that a run needs, so that a run only patches. What a run
 * does with them is in cpu_run.c; chunks, groups and offsets are decisions of the plan. */
#include "cpu_program.h"
#include "parts.h"

#include <string.h>

/* A range is cut into so many parts at most, whatever the number of workers. Divides TWI_UPDATE_SHARES. */
#define RANGE_PARTS 16
/* A worker combines so many bytes of a sum at a time; where all of a segment's parts are fewer, one worker does it
 * alone. */
#define PIECE_BYTES ((size_t)64 << 10)
/* What one worker is guessed to do, to tell tiny runs from others. */
#define FLOPS_A_NANOSECOND 20.0
/* Chunks or parts that take less in all are not worth handing out: worker 0 does them. */
#define SHARED_NANOSECONDS 2000
#define BYTES_A_NANOSECOND 10.0

typedef struct binding {
    const twi_plan *plan;
    twi_control *control;
    unsigned char *arena;
    twi_cpu_program *program;
    int calls, phases, pieces, lents, begins, finishes; /* first counted, then the next free one */
} binding;

/* ---- what a step is ---- */

static const twi_cpu_site *site_of(const twi_step_plan *plan) { return plan->choice.state; }

static bool is_begun(const twi_step_plan *plan) { return site_of(plan)->impl && site_of(plan)->impl->begin; }

/* Are sums kept in a layout of the implementation's? */
static bool is_finished(const twi_step_plan *plan) {
    for (int o = 0; o < plan->kernel->operand_count; o++)
        if (plan->choice.partial_bytes[o]) return true;
    return false;
}

static const twi_buffer_plan *buffer_of(const binding *b, const twi_step_plan *plan, int operand) {
    return plan->buffer[operand] < 0 ? NULL : &b->plan->buffer[plan->buffer[operand]];
}

static bool is_summed(const binding *b, const twi_step_plan *plan, int operand) {
    return plan->kernel->operand[operand].reach == TWI_SUMMED && buffer_of(b, plan, operand);
}

static bool is_lendable(const binding *b, const twi_step_plan *plan, int operand) {
    const twi_buffer_plan *buffer = buffer_of(b, plan, operand);
    return buffer && buffer->lendable;
}

/* Bytes of one group's part of a sum. */
static size_t part_bytes(const binding *b, const twi_step_plan *plan, int operand) {
    size_t own = plan->choice.partial_bytes[operand];
    return own ? own : buffer_of(b, plan, operand)->bytes;
}

static int piece_count(size_t bytes) { return (int)((bytes + PIECE_BYTES - 1) / PIECE_BYTES); }

static int64_t tail_of(const twi_segment *segment) {
    return segment->split == TWI_BY_SAMPLE ? segment->samples % segment->chunk : 0;
}

/* ---- checks: what does not hold here is a defect of the planner ---- */

static tw_status check_segment(const twi_plan *plan, int index) {
    const twi_segment *s = &plan->segment[index];
    if (s->first_step < 0 || s->step_count < 1 || s->step_count > plan->step_count - s->first_step)
        return TWI_FAIL(TW_ERROR_INTERNAL, "cpu: segment %d has steps %d to %d of %d; please report it", index,
                        s->first_step, s->first_step + s->step_count - 1, plan->step_count);
    if (s->split == TWI_BY_SAMPLE &&
        (s->samples < 1 || s->chunk < 1 || s->groups < 1 || s->groups > (s->samples + s->chunk - 1) / s->chunk))
        return TWI_FAIL(TW_ERROR_INTERNAL,
                        "cpu: segment %d has %d groups of chunks of %lld out of %lld samples; please report it", index,
                        s->groups, (long long)s->chunk, (long long)s->samples);
    return TW_OK;
}

static tw_status check_step(const binding *b, const twi_step_plan *plan, const twi_segment *segment) {
    const twi_kernel *kernel = plan->kernel;
    if (kernel->split != segment->split)
        return TWI_FAIL(TW_ERROR_INTERNAL, "cpu: step '%s': %s stands in a segment of another split; please report it",
                        plan->label, kernel->name);
    if (is_finished(plan) && !site_of(plan)->impl->finish)
        return TWI_FAIL(TW_ERROR_INTERNAL, "cpu: step '%s': '%s' does not finish its sums; please report it",
                        plan->label, site_of(plan)->impl->name);
    for (int o = 0; o < kernel->operand_count; o++) {
        const twi_buffer_plan *buffer = buffer_of(b, plan, o);
        uint8_t reach = kernel->operand[o].reach;
        bool fits = segment->split != TWI_BY_SAMPLE ? reach != TWI_SUMMED
                                                    : reach != TWI_BATCHED || !buffer ||
                                                          (buffer->batched && buffer->shape.dim[0] == segment->samples);
        if (reach == TWI_SUMMED && buffer) fits = fits && (buffer->store == TWI_REAL || buffer->store == TWI_ACC);
        if (!fits)
            return TWI_FAIL(TW_ERROR_INTERNAL,
                            "cpu: step '%s': operand %s of %s does not go with its segment; please report it",
                            plan->label, kernel->operand[o].name, kernel->name);
    }
    return TW_OK;
}

/* ---- counting ---- */

static tw_status count_segment(binding *b, int index) {
    const twi_segment *segment = &b->plan->segment[index];
    TWI_TRY(check_segment(b->plan, index));
    b->phases += 4; /* at most: what its steps begin with, its steps, their sums, their layouts */
    if (segment->split == TWI_BY_RANGE) b->phases += segment->step_count;
    for (int s = segment->first_step; s < segment->first_step + segment->step_count; s++) {
        const twi_step_plan *plan = &b->plan->step[s];
        TWI_TRY(check_step(b, plan, segment));
        b->calls += segment->split == TWI_AT_ONCE ? 0 : tail_of(segment) ? 2 : 1;
        b->begins += is_begun(plan);
        b->finishes += is_finished(plan);
        for (int o = 0; o < plan->kernel->operand_count; o++) {
            if (is_summed(b, plan, o)) b->pieces += piece_count(part_bytes(b, plan, o));
            if (is_lendable(b, plan, o)) b->lents += 1 + 2 * b->program->workers; /* at most: its calls, two a worker */
        }
    }
    return TW_OK;
}

static tw_status allocate(binding *b) {
    twi_cpu_program *p = b->program;
    const twi_plan *plan = b->plan;
    TWI_TRY(twi_get(p->memory, &p->step, (size_t)plan->step_count, sizeof *p->step, "program steps"));
    TWI_TRY(twi_get(p->memory, &p->segment, (size_t)plan->segment_count, sizeof *p->segment, "program segments"));
    TWI_TRY(twi_get(p->memory, &p->phase, (size_t)b->phases, sizeof *p->phase, "program phases"));
    size_t shares;
    TWI_TRY(twi_mul_size(&shares, (size_t)b->phases + 1, (size_t)p->workers, "workers' shares of phases"));
    TWI_TRY(twi_get(p->memory, &p->share, shares, sizeof *p->share, "workers' shares of phases"));
    p->begin_phase.share = p->share + (size_t)b->phases * (size_t)p->workers;
    TWI_TRY(twi_get(p->memory, &p->piece, (size_t)b->pieces, sizeof *p->piece, "pieces of sums"));
    TWI_TRY(twi_get(p->memory, &p->lent, (size_t)b->lents, sizeof *p->lent, "addresses of what may be lent"));
    TWI_TRY(twi_get(p->memory, &p->begin, (size_t)b->begins, sizeof *p->begin, "program steps"));
    TWI_TRY(twi_get(p->memory, &p->finish, (size_t)b->finishes, sizeof *p->finish, "program steps"));
    TWI_TRY(twi_get(p->memory, &p->worker, (size_t)p->workers, sizeof *p->worker, "workers' calls"));
    for (int w = 0; w < p->workers; w++)
        TWI_TRY(twi_get(p->memory, &p->worker[w].call, (size_t)b->calls, sizeof *p->worker[w].call, "workers' calls"));
    b->calls = b->phases = b->pieces = b->lents = b->begins = b->finishes = 0;
    return TW_OK;
}

/* ---- steps ---- */

static void *address(const binding *b, const twi_buffer_plan *buffer, int worker) {
    if (buffer->place == TWI_PLACE_FIXED) return buffer->address;
    if (buffer->place == TWI_PLACE_LOCAL) return b->program->worker[worker].scratch + buffer->offset;
    return b->arena + buffer->offset + buffer->copy_stride * (size_t)worker;
}

/* For twi_cpu_lend, which puts other addresses there and these back. */
static void note_lendable(binding *b, const twi_buffer_plan *buffer, twi_operand *operand, twi_cpu_slice *slice) {
    if (!buffer->lendable) return;
    b->program->lent[b->lents++] = (twi_cpu_lent){.buffer = buffer->lendable - 1,
                                                  .operand = operand,
                                                  .slice = slice,
                                                  .own = operand ? operand->data : slice->base,
                                                  .copy_stride = buffer->copy_stride};
}

/* samples 0: on whole operands. */
static void bind_call(binding *b, const twi_step_plan *plan, int64_t samples, int worker, twi_call *call) {
    *call = (twi_call){.kernel = plan->kernel,
                       .attrs = plan->attrs,
                       .workspace = b->program->worker[worker].scratch + b->plan->scratch_offset,
                       .control = b->control,
                       .stream = plan->stream,
                       .node = plan->node,
                       .first = true,
                       .tf32 = plan->tf32,
                       .operand_count = plan->kernel->operand_count};
    for (int o = 0; o < call->operand_count; o++) {
        const twi_buffer_plan *buffer = buffer_of(b, plan, o);
        if (!buffer) continue;
        twi_operand *operand = &call->operand[o];
        operand->data = address(b, buffer, worker);
        operand->shape = buffer->shape;
        memcpy(operand->stride, buffer->stride, sizeof operand->stride);
        operand->store = buffer->store;
        operand->lanes = buffer->lanes;
        operand->dtype = buffer->dtype;
        if (samples && plan->kernel->operand[o].reach == TWI_BATCHED)
            operand->shape.dim[0] = samples; /* its address is a slice's, chunk by chunk */
        else
            note_lendable(b, buffer, operand, NULL);
    }
}

static void bind_worker_calls(binding *b, const twi_step_plan *plan, int64_t samples, int64_t tail) {
    for (int w = 0; w < b->program->workers; w++) {
        twi_call *call = &b->program->worker[w].call[b->calls];
        bind_call(b, plan, samples, w, &call[0]);
        if (tail) bind_call(b, plan, tail, w, &call[1]);
    }
    b->calls += tail ? 2 : 1;
}

static void bind_slice(binding *b, twi_cpu_step *step, int operand, const twi_buffer_plan *buffer) {
    if (buffer->place == TWI_PLACE_LOCAL) return; /* stays where it is in the worker's scratch */
    twi_cpu_slice *slice = &step->slice[step->slice_count++];
    *slice = (twi_cpu_slice){.operand = operand,
                             .base = address(b, buffer, 0),
                             .sample_bytes = buffer->sample_bytes,
                             .copy_stride = buffer->copy_stride};
    note_lendable(b, buffer, NULL, slice);
}

/* One group of a plain sum adds straight into the output; all others have parts of their own. */
static void bind_sum(const binding *b, const twi_step_plan *plan, twi_cpu_step *step, int operand, int groups) {
    unsigned char *output = address(b, buffer_of(b, plan, operand), 0);
    bool own = plan->choice.partial_bytes[operand] != 0;
    twi_cpu_sum *sum = &step->sum[step->sum_count++];
    *sum = (twi_cpu_sum){.operand = operand, .part = output, .bytes = part_bytes(b, plan, operand), .total = output};
    if (own || groups > 1) {
        sum->part = b->arena + plan->partial_offset[operand];
        sum->stride = twi_partial_stride(sum->bytes);
    }
    if (own) sum->total = sum->part;
}

static double guess_nanoseconds(const twi_step_plan *plan, const twi_call *whole, double bytes) {
    double flops = plan->kernel->flops ? plan->kernel->flops(whole) : 0;
    return flops / FLOPS_A_NANOSECOND + bytes / BYTES_A_NANOSECOND;
}

static void bind_step(binding *b, int index, const twi_segment *segment, twi_cpu_segment *bound) {
    const twi_step_plan *plan = &b->plan->step[index];
    twi_cpu_step *step = &b->program->step[index];
    step->kernel = plan->kernel;
    step->site = site_of(plan);
    step->shared = b->arena + plan->shared_offset;
    step->call = b->calls;
    bind_call(b, plan, 0, 0, &step->whole);
    if (segment->split != TWI_AT_ONCE)
        bind_worker_calls(b, plan, segment->split == TWI_BY_SAMPLE ? segment->chunk : 0, tail_of(segment));
    double bytes = 0;
    for (int o = 0; o < plan->kernel->operand_count; o++) {
        const twi_buffer_plan *buffer = buffer_of(b, plan, o);
        if (!buffer) continue;
        bytes += (double)buffer->bytes;
        step->wide = step->wide || buffer->dtype == TWI_DTYPE_DOUBLE;
        if (is_summed(b, plan, o))
            bind_sum(b, plan, step, o, segment->groups);
        else if (segment->split == TWI_BY_SAMPLE && plan->kernel->operand[o].reach == TWI_BATCHED)
            bind_slice(b, step, o, buffer);
    }
    bound->nanoseconds += guess_nanoseconds(plan, &step->whole, bytes);
    if (is_begun(plan)) b->program->begin[b->begins++] = index;
    if (is_finished(plan)) b->program->finish[b->finishes++] = index;
}

/* ---- phases ---- */

static twi_cpu_phase *add_phase(binding *b, const twi_cpu_segment *segment, twi_cpu_part *part, int first, int parts) {
    twi_cpu_phase *phase = &b->program->phase[b->phases];
    phase->share = b->program->share + (size_t)b->phases++ * (size_t)b->program->workers;
    phase->part = part;
    phase->parts = parts;
    phase->alone = parts == 1;
    phase->segment = segment;
    phase->first = first;
    return phase;
}

/* Such steps are in segments of their own. */
static bool makes_copies(const binding *b, const twi_cpu_segment *segment) {
    const twi_cpu_step *step = &b->program->step[segment->first_step];
    for (int i = 0; i < step->slice_count; i++)
        if (step->slice[i].copy_stride) return true;
    return false;
}

static void add_group_phases(binding *b, twi_cpu_segment *segment, int first_finish) {
    twi_cpu_phase *chunks = add_phase(b, segment, twi_cpu_run_group, 0, segment->groups);
    chunks->each = makes_copies(b, segment);
    chunks->alone = !chunks->each && (chunks->alone || segment->nanoseconds < SHARED_NANOSECONDS);
    size_t bytes = 0;
    int first_piece = b->pieces;
    for (int s = segment->first_step; s < segment->first_step + segment->step_count && segment->groups > 1; s++) {
        const twi_cpu_step *step = &b->program->step[s];
        for (int i = 0; i < step->sum_count; i++) {
            const twi_cpu_sum *sum = &step->sum[i];
            bytes += sum->bytes * (size_t)segment->groups;
            for (size_t begin = 0; begin < sum->bytes; begin += PIECE_BYTES) {
                size_t end = sum->bytes - begin < PIECE_BYTES ? sum->bytes : begin + PIECE_BYTES;
                b->program->piece[b->pieces++] = (twi_cpu_piece){step, sum, begin, end};
            }
        }
    }
    if (b->pieces > first_piece) {
        twi_cpu_phase *phase = add_phase(b, segment, twi_cpu_run_piece, first_piece, b->pieces - first_piece);
        phase->alone = phase->alone || bytes < PIECE_BYTES;
    }
    if (b->finishes > first_finish) add_phase(b, segment, twi_cpu_run_finish, first_finish, b->finishes - first_finish);
}

static int range_parts(const twi_cpu_segment *segment, int64_t grain) {
    return (int)twi_smaller((segment->range + grain - 1) / grain, RANGE_PARTS);
}

/* Steps of one range, part by part: of their grains the largest is a multiple of the others. */
static int64_t grain_of(const twi_cpu_step *step, int steps) {
    int64_t grain = 1;
    for (int s = 0; s < steps; s++) grain = twi_larger(grain, step[s].kernel->grain);
    return grain;
}

static void add_range_phase(binding *b, const twi_cpu_segment *segment, int first, int steps) {
    const int64_t grain = grain_of(&b->program->step[first], steps);
    twi_cpu_phase *parts = add_phase(b, segment, twi_cpu_run_range, first, range_parts(segment, grain));
    parts->steps = steps;
    parts->grain = grain;
    parts->alone = parts->alone || segment->nanoseconds < SHARED_NANOSECONDS;
}

/* One phase for all steps of the segment; where that has fewer parts than there are workers, one a step, since some have
 * finer grains. */
static tw_status add_range_phases(binding *b, twi_cpu_segment *segment) {
    const twi_cpu_step *step = &b->program->step[segment->first_step];
    segment->range = step->kernel->range(&step->whole);
    for (int s = 1; s < segment->step_count; s++) {
        const int64_t range = step[s].kernel->range(&step[s].whole);
        if (range != segment->range)
            return TWI_FAIL(TW_ERROR_INTERNAL,
                            "cpu: %s has a range of %lld, in a segment of ranges of %lld; please report it",
                            step[s].kernel->name, (long long)range, (long long)segment->range);
    }
    const bool together = b->program->workers <= range_parts(segment, grain_of(step, segment->step_count));
    const int steps = together ? segment->step_count : 1;
    for (int s = 0; s < segment->step_count; s += steps) add_range_phase(b, segment, segment->first_step + s, steps);
    return TW_OK;
}

/* Workspaces that last for their segment alone are filled before it, whatever the run before left. */
static void add_begin_phase(binding *b, const twi_cpu_segment *segment) {
    int first = b->begins, count = 0;
    for (int s = segment->first_step; s < segment->first_step + segment->step_count; s++)
        count += is_begun(&b->plan->step[s]);
    if (count && b->plan->brief_shared) add_phase(b, segment, twi_cpu_run_begin, first, count);
}

static tw_status bind_segment(binding *b, int index) {
    const twi_segment *plan = &b->plan->segment[index];
    twi_cpu_segment *segment = &b->program->segment[index];
    segment->first_step = plan->first_step;
    segment->step_count = plan->step_count;
    segment->first_phase = b->phases;
    int first_finish = b->finishes;
    add_begin_phase(b, segment);
    for (int s = plan->first_step; s < plan->first_step + plan->step_count; s++) bind_step(b, s, plan, segment);
    if (plan->split == TWI_BY_SAMPLE) {
        segment->samples = plan->samples;
        segment->chunk = plan->chunk;
        segment->chunks = (plan->samples + plan->chunk - 1) / plan->chunk;
        segment->groups = plan->groups;
        add_group_phases(b, segment, first_finish);
    } else if (plan->split == TWI_BY_RANGE) {
        TWI_TRY(add_range_phases(b, segment));
    } else {
        add_phase(b, segment, twi_cpu_run_once, 0, 1);
    }
    segment->phase_count = b->phases - segment->first_phase;
    return TW_OK;
}

/* ---- entries ---- */

static tw_status bind(binding *b, unsigned char *scratch) {
    twi_cpu_program *program = b->program;
    for (int s = 0; s < b->plan->segment_count; s++) TWI_TRY(count_segment(b, s));
    TWI_TRY(allocate(b));
    for (int w = 0; w < program->workers; w++) program->worker[w].scratch = scratch + (size_t)w * b->plan->worker_bytes;
    for (int s = 0; s < b->plan->segment_count; s++) TWI_TRY(bind_segment(b, s));
    program->begin_count = b->plan->brief_shared ? 0 : b->begins;
    program->phase_count = b->phases;
    program->lent_count = b->lents;
    return twi_cpu_place_barriers(program, b->plan, b->arena);
}

tw_status twi_cpu_prepare(tw_context *context, void **out, const twi_plan *plan, twi_control *control, void *arena,
                          void *scratch) {
    *out = NULL;
    twi_cpu_program *program;
    TWI_TRY(twi_get(context->memory, &program, 1, sizeof *program, "program"));
    program->memory = context->memory;
    program->pool = context->pool;
    program->workers = twi_pool_size(context->pool);
    program->segment_count = plan->segment_count;
    program->constant_segments = plan->constant_segments;
    program->scratch_offset = plan->scratch_offset;
    program->begin_phase.part = twi_cpu_run_begin;
    program->control = control;
    program->times = plan->times;
    program->times_row = plan->times_row;
    binding b = {.plan = plan, .control = control, .arena = arena, .program = program};
    tw_status status = bind(&b, scratch);
    if (status) {
        twi_cpu_discard(context, program);
        return status;
    }
    *out = program;
    return TW_OK;
}

void twi_cpu_discard(tw_context *context, void *prepared) {
    (void)context;
    twi_cpu_program *program = prepared;
    if (!program) return;
    for (int w = 0; program->worker && w < program->workers; w++) twi_put(program->memory, program->worker[w].call);
    twi_put(program->memory, program->worker);
    twi_put(program->memory, program->finish);
    twi_put(program->memory, program->begin);
    twi_put(program->memory, program->lent);
    twi_put(program->memory, program->piece);
    twi_put(program->memory, program->share);
    twi_put(program->memory, program->phase);
    twi_put(program->memory, program->segment);
    twi_put(program->memory, program->step);
    twi_put(program->memory, program);
}

/* Barriers stay where they are: nothing writes to what is lent, nor to its place in the arena, so there is no conflict
 * with either. */
void twi_cpu_lend(tw_context *context, void *prepared, int buffer, const void *host) {
    (void)context;
    twi_cpu_program *program = prepared;
    for (int i = 0; i < program->lent_count; i++) {
        const twi_cpu_lent *lent = &program->lent[i];
        if (lent->buffer != buffer) continue;
        unsigned char *at = host ? (unsigned char *)host : lent->own; /* only read */
        if (lent->operand) {
            lent->operand->data = at;
        } else {
            lent->slice->base = at;
            lent->slice->copy_stride = host ? 0 : lent->copy_stride;
        }
    }
}

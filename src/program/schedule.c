/* Orders steps and cuts them into segments: runs of steps that go chunk by chunk without waiting for each other, so
 * that a chunk stays in cache from step to step and workers meet only at segment ends. Chunks and groups depend on
 * shapes alone, never on the number of workers: that is what keeps results the same for any number of them. */
#include "patterns.h"

#include <string.h>

enum {
    CHUNK_BYTES = 512 * 1024,        /* what one step of a chunk should touch: about an L2 cache */
    HEAVY_CHUNK_BYTES = 4096 * 1024, /* chunks of up to this size make up for weights beyond TWI_CACHED_BYTES */
    GROUPS_MAX = 8,                  /* partial sums kept apart, hence workers that can share a segment */
    GROUPS_MIN = 2,                  /* however large the sums */
    CHUNKS_WANTED = 4,               /* cut even a small batch into this many, for the workers */
    CHUNK_SAMPLES_MIN = 8,           /* but small samples not finer than this */
    UNCUT_WORK = 32 * 1024,          /* demands.work that one worker does sooner than several meet */
    PARTIAL_BYTES = 32 * 1024 * 1024 /* all groups' partial sums of one step, where no limit of workspace is lower */
};

/* Does a later step, before `end`, read what this step writes? */
static bool awaited(const tw_program *program, int at, int end) {
    const twi_step *step = &program->step[at];
    for (int o = 0; o < step->kernel->operand_count; o++) {
        if (step->operand[o] < 0 || step->kernel->operand[o].access == TWI_READ) continue;
        const int root = twi_program_root(program, step->operand[o]);
        TWI_FOR_USES(program, root, u) {
            const int i = program->uses.use[u].step;
            if (i > at && i < end && twi_count_reads(program, &program->step[i], root)) return true;
        }
    }
    return false;
}

/* Ranged steps of the backward that nobody waits for (weight gradients of dense layers) go to its end: they would cut
 * segments. Those that the ranges pass made stay: they are heavy, so that a cut costs them little, and what they read
 * need not be kept. */
static tw_status sink_ranged(tw_program *program) {
    if (program->step_count == 0) return TW_OK; /* what is read is what was fed */
    twi_step *sorted;
    TWI_TRY(twi_uses_open(program));
    TWI_TRY(twi_get(twi_program_context(program)->memory, &sorted, (size_t)program->step_count, sizeof *sorted,
                    "step order"));
    int count = 0;
    for (int begin = 0, end; begin < program->step_count; begin = end) {
        for (end = begin; end < program->step_count && program->step[end].part == program->step[begin].part; end++) {}
        bool backward = program->step[begin].part == TWI_PART_BACKWARD;
        for (int sunk = 0; sunk < 2; sunk++)
            for (int i = begin; i < end; i++)
                if ((backward && program->step[i].kernel->split == TWI_BY_RANGE && !program->step[i].ranged &&
                     !awaited(program, i, end)) == sunk)
                    sorted[count++] = program->step[i];
    }
    twi_uses_close(program);
    memcpy(program->step, sorted, (size_t)count * sizeof *sorted);
    twi_put(twi_program_context(program)->memory, sorted);
    return TW_OK;
}

/* Does a step write what another one has as operand r, other than batch by batch or range by range? */
static bool clash(const tw_program *program, const twi_step *writer, const twi_step *step, int r) {
    const int root = twi_program_root(program, step->operand[r]);
    for (int o = 0; o < writer->kernel->operand_count; o++) {
        const twi_operand_rule *rule = &writer->kernel->operand[o];
        if (writer->operand[o] >= 0 && rule->access != TWI_READ &&
            twi_program_root(program, writer->operand[o]) == root &&
            (rule->reach != step->kernel->operand[r].reach ||
             (rule->reach != TWI_BATCHED && rule->reach != TWI_RANGED)))
            return true;
    }
    return false;
}

/* Does the step touch, other than as batches or ranges, what a step since `first` writes? */
static bool needs_whole(const tw_program *program, int first, int at) {
    const twi_step *step = &program->step[at];
    for (int r = 0; r < step->kernel->operand_count; r++) TWI_FOR_USES(program, step->operand[r], u) {
            const int i = program->uses.use[u].step;
            if (i >= at) break; /* they come in the order of the steps */
            if (i >= first && clash(program, &program->step[i], step, r)) return true;
        }
    return false;
}

/* May `step` join the segment that began at step `first`? Not if it reads what only the whole segment completes. */
static bool joins(const tw_program *program, int first, int at) {
    const twi_step *step = &program->step[at];
    const twi_step *head = &program->step[first];
    if (step->kernel->split != head->kernel->split) return false;
    /* Where both go by so many features, a part of what they share is of the same features. */
    if (step->kernel->split == TWI_BY_RANGE && (!step->features || step->features != head->features)) return false;
    if (step->chunk != head->chunk || step->groups != head->groups) return false;
    if ((step->part == TWI_PART_UPDATE) != (head->part == TWI_PART_UPDATE)) return false;
    if (step->constant != head->constant) return false;
    if (twi_makes_copies(program, step) != twi_makes_copies(program, head)) return false;
    if (step->kernel->split == TWI_AT_ONCE) return true;
    if (step->kernel->split == TWI_BY_RANGE) return !needs_whole(program, first, at);
    if (!twi_program_context(program)->backend->chunked) return false;
    if (twi_program_step_samples(program, step) != twi_program_step_samples(program, head)) return false;
    return !needs_whole(program, first, at);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* What the steps of a segment ask of its chunks. */
typedef struct demands {
    int64_t samples;
    size_t touched;   /* bytes of one sample that the widest step touches */
    size_t partial;   /* bytes of the largest sum that chunks add to */
    size_t whole;     /* bytes of the most weights and sums that a step goes through with every chunk */
    double work;      /* bytes that all steps go through with all samples, and one for every two of their FLOPs */
    int64_t multiple; /* samples the pickiest implementation likes chunks to be a multiple of */
} demands;

/* A step that brings an input has no say: others are cut as if it had been fed, since whether the step stands there depends
 * on the source, and on the number of workers (copies.c). */
static demands ask_steps(const tw_program *program, const twi_segment *segment) {
    tw_context *context = twi_program_context(program);
    demands d = {.samples = segment->samples, .touched = 1, .multiple = 1};
    for (int i = segment->first_step; i < segment->first_step + segment->step_count; i++) {
        const twi_step *step = &program->step[i];
        if (twi_brings_input(program, step)) continue;
        size_t touched = 0, sums = 0, whole = 0;
        for (int o = 0; o < step->kernel->operand_count; o++) {
            if (step->operand[o] < 0) continue;
            const twi_buffer *buffer = &program->buffer[step->operand[o]];
            if (step->kernel->operand[o].reach == TWI_BATCHED)
                touched += buffer->sample_bytes;
            else
                whole += buffer->bytes;
            if (step->kernel->operand[o].reach == TWI_SUMMED) sums += buffer->bytes;
        }
        twi_call call;
        twi_program_call(program, step, 0, &call);
        int64_t liked = context->backend->chunk_multiple(context, step->kernel, &call);
        if (touched > d.touched) d.touched = touched;
        if (sums > d.partial) d.partial = sums;
        if (whole > d.whole) d.whole = whole;
        const double flops = step->kernel->flops ? step->kernel->flops(&call) : 0;
        d.work += (double)whole + (double)touched * (double)d.samples + flops / 2;
        if (liked > d.multiple) d.multiple = liked;
    }
    return d;
}

/* Of steps that have no say nothing is known. */
static bool is_little(const demands *d) { return d->work > 0 && d->work <= UNCUT_WORK; }

/* What fits the cache, but enough chunks to share. Weights that do not stay in the cache beside a chunk are read once a
 * chunk, and their gradients written: then larger ones, until they weigh as much, but still one for every group. Of the
 * sizes near that, one that leaves no shorter last chunk, since that doubles what is to be prepared. */
static int64_t chunk_size(const demands *d) {
    int64_t fits = (int64_t)(CHUNK_BYTES / d->touched), shared = (d->samples + CHUNKS_WANTED - 1) / CHUNKS_WANTED;
    if (d->whole > TWI_CACHED_BYTES) {
        const size_t bytes = d->whole < HEAVY_CHUNK_BYTES ? d->whole : HEAVY_CHUNK_BYTES;
        fits = larger(fits, smaller((int64_t)(bytes / d->touched), d->samples / GROUPS_MAX));
    }
    if (fits > CHUNK_SAMPLES_MIN && shared < CHUNK_SAMPLES_MIN) shared = CHUNK_SAMPLES_MIN;
    int64_t chunk = smaller(fits, shared);
    chunk = chunk >= d->multiple ? chunk - chunk % d->multiple : d->multiple;
    chunk = smaller(chunk, d->samples);
    for (int64_t even = chunk; even > chunk / 2; even -= d->multiple)
        if (d->samples % even == 0) return even;
    return chunk;
}

/* Groups whose partial sums, so large each, do not take too much memory. */
static int64_t afford(int64_t groups, size_t partial, size_t workspace_limit) {
    const bool limited = workspace_limit < PARTIAL_BYTES;
    const size_t most = limited ? workspace_limit : PARTIAL_BYTES;
    if (partial <= most / GROUPS_MAX) return groups;
    return smaller(groups, larger((int64_t)(most / partial), limited ? 1 : GROUPS_MIN));
}

/* As many as there may be workers. */
static int group_count(const demands *d, int64_t chunk, size_t workspace_limit) {
    return (int)afford(smaller((d->samples + chunk - 1) / chunk, GROUPS_MAX), d->partial, workspace_limit);
}

/* Cuts a segment's batch into chunks and groups, and notes them with its steps. */
static void cut(tw_program *program, twi_segment *segment) {
    const bool chunked = twi_program_context(program)->backend->chunked;
    if (segment->split == TWI_BY_SAMPLE && chunked) {
        const demands d = ask_steps(program, segment);
        segment->chunk = is_little(&d) ? d.samples : chunk_size(&d);
        segment->groups = group_count(&d, segment->chunk, program->workspace_limit);
    }
    for (int k = segment->first_step; k < segment->first_step + segment->step_count; k++) {
        program->step[k].chunk = segment->chunk;
        program->step[k].groups = segment->groups;
    }
}

/* Steps that have been cut before stay as they were. */
static void add_segment(tw_program *program, int first, int end) {
    twi_segment *segment = &program->segment[program->segment_count];
    *segment = (twi_segment){.first_step = first,
                             .step_count = end - first,
                             .split = program->step[first].kernel->split,
                             .samples = 1,
                             .chunk = 1,
                             .groups = 1};
    if (segment->split == TWI_BY_SAMPLE) {
        const int64_t samples = twi_program_step_samples(program, &program->step[first]);
        segment->samples = segment->chunk = samples > 0 ? samples : 1;
    }
    if (program->step[first].chunk) {
        segment->chunk = program->step[first].chunk;
        segment->groups = program->step[first].groups;
    } else {
        cut(program, segment);
    }
    for (int k = first; k < end; k++) program->step[k].segment = program->segment_count;
    program->segment_count++;
}

tw_status twi_schedule_segments(tw_program *program) {
    TWI_TRY(twi_grow(twi_program_context(program)->memory, &program->segment, (size_t)program->step_count,
                     sizeof *program->segment, "segments"));
    twi_constants_order(program);
    TWI_TRY(twi_uses_open(program));
    const bool apart = !twi_program_saves_workspace(program);
    program->segment_count = 0;
    program->constant_segments = 0;
    program->update_segment = -1;
    for (int first = 0, end; first < program->step_count; first = end) {
        for (end = first + 1; end < program->step_count && joins(program, first, end); end++) continue;
        if (program->step[first].part == TWI_PART_UPDATE && program->update_segment < 0)
            program->update_segment = program->segment_count;
        add_segment(program, first, end);
        if (program->step[first].constant && apart) program->constant_segments = program->segment_count;
    }
    if (program->update_segment < 0) program->update_segment = program->segment_count;
    twi_uses_close(program);
    return TW_OK;
}

/* Of one group, the most that a step of the segment adds to: implementations may keep more than the sum itself. */
static size_t largest_sums(const tw_program *program, const twi_segment *segment) {
    size_t most = 0;
    for (int k = segment->first_step; k < segment->first_step + segment->step_count; k++) {
        const twi_step *step = &program->step[k];
        size_t sums = 0;
        for (int o = 0; o < step->kernel->operand_count; o++) {
            if (step->operand[o] < 0 || step->kernel->operand[o].reach != TWI_SUMMED) continue;
            const size_t own = step->choice.partial_bytes[o];
            sums += own ? own : program->buffer[step->operand[o]].bytes;
        }
        if (sums > most) most = sums;
    }
    return most;
}

void twi_schedule_groups(tw_program *program) {
    for (int s = 0; s < program->segment_count; s++) {
        twi_segment *segment = &program->segment[s];
        segment->groups = (int)afford(segment->groups, largest_sums(program, segment), program->workspace_limit);
        for (int k = segment->first_step; k < segment->first_step + segment->step_count; k++)
            program->step[k].groups = segment->groups;
    }
}

tw_status twi_pass_schedule(tw_program *program) {
    TWI_TRY(sink_ranged(program));
    TWI_TRY(twi_schedule_segments(program));
    return twi_place_sums(program);
}

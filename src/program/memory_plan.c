/* Places everything a run touches: activations by lifetime in one arena, implementations' workspaces and partial sums
 * beside them, buffers that live within a chunk in the workers' scratch. The peak is exact: nothing is taken later.
 *
 * Lifetimes count in segments, since the chunks of a segment interleave its steps; within a chunk, in steps. */
#include "program.h"

#include <stdlib.h>
#include <string.h>

/* Something to be placed: bytes alive from first to last, both included. */
typedef struct block {
    size_t bytes, offset;
    int first, last;
    int order;    /* among the blocks to be placed: equals stay as they came, so that a plan is always the same */
    size_t *home; /* where the offset is wanted */
} block;

static int by_size(const void *a, const void *b) {
    const block *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* The lowest offset that is free during all of a block's life; `placed` are those of the others, by offset. */
static size_t find_offset(const block *b, block *const *placed, int count) {
    size_t at = 0;
    for (int k = 0; k < count; k++) {
        const block *other = placed[k];
        if (other->first > b->last || b->first > other->last) continue;
        if (other->offset >= at && other->offset - at >= b->bytes) break;
        const size_t end = other->offset + twi_arena_aligned(other->bytes);
        if (end > at) at = end;
    }
    return at;
}

/* Keeps them by offset. */
static void insert(block *b, block **placed, int count) {
    int low = 0, high = count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (placed[middle]->offset < b->offset)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(placed + low + 1, placed + low, (size_t)(count - low) * sizeof *placed);
    placed[low] = b;
}

/* Largest first, each at the lowest offset free during its whole life. */
static tw_status place_among(block *blocks, int count, block **placed, size_t *peak) {
    qsort(blocks, (size_t)count, sizeof *blocks, by_size);
    *peak = 0;
    for (int i = 0; i < count; i++) {
        size_t end;
        blocks[i].offset = *blocks[i].home = find_offset(&blocks[i], placed, i);
        TWI_TRY(twi_add_size(&end, blocks[i].offset, twi_arena_aligned(blocks[i].bytes), "memory plan"));
        insert(&blocks[i], placed, i);
        if (end > *peak) *peak = end;
    }
    return TW_OK;
}

static tw_status place(twi_memory *memory, block *blocks, int count, size_t *peak) {
    block **placed;
    TWI_TRY(twi_get(memory, &placed, (size_t)count, sizeof *placed, "memory plan"));
    tw_status status = place_among(blocks, count, placed, peak);
    twi_put(memory, placed);
    return status;
}

static twi_buffer *root_of(tw_program *program, int buffer) {
    return &program->buffer[twi_program_root(program, buffer)];
}

static void live_in_step(twi_buffer *buffer, int step) {
    if (step < buffer->first_step) buffer->first_step = step;
    if (step > buffer->last_step) buffer->last_step = step;
}

/* First and last segment and step that use each buffer that owns memory. */
static void find_lives(tw_program *program) {
    for (int i = 0; i < program->buffer_count; i++) {
        program->buffer[i].first = program->segment_count;
        program->buffer[i].first_step = program->step_count;
        program->buffer[i].last = program->buffer[i].last_step = -1;
    }
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++) {
            if (program->step[i].operand[o] < 0) continue;
            twi_buffer *buffer = root_of(program, program->step[i].operand[o]);
            if (program->step[i].segment < buffer->first) buffer->first = program->step[i].segment;
            if (program->step[i].segment > buffer->last) buffer->last = program->step[i].segment;
            live_in_step(buffer, i);
        }
    for (int i = 0; i < program->buffer_count; i++) {
        twi_buffer *buffer = root_of(program, i);
        const bool pinned = program->buffer[i].pinned || buffer->pinned;
        /* Copies have no conflicts with what takes their memory over (cpu_conflicts.c): nobody does. */
        if (!pinned && !buffer->copied && !(buffer->constant && program->constant_segments)) continue;
        buffer->pinned = pinned;
        buffer->first = 0;
        buffer->last = program->segment_count ? program->segment_count - 1 : 0;
    }
}

/* Batched, used in one chunked segment only and as a batch only: each worker needs just one chunk of it. */
static void find_local(tw_program *program) {
    for (int i = 0; i < program->buffer_count; i++) {
        twi_buffer *buffer = &program->buffer[i];
        buffer->local = buffer->alias < 0 && buffer->source == TWI_SOURCE_ARENA && buffer->batched && !buffer->pinned &&
                        buffer->last >= 0 && buffer->first == buffer->last &&
                        program->segment[buffer->first].split == TWI_BY_SAMPLE &&
                        twi_program_context(program)->backend->chunked;
    }
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++)
            if (program->step[i].operand[o] >= 0 && program->step[i].kernel->operand[o].reach != TWI_BATCHED)
                root_of(program, program->step[i].operand[o])->local = false;
}

/* An output takes the memory of an input that dies with its step, where the kernel allows it. */
static void find_in_place(tw_program *program) {
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++) {
            int over = program->step[i].kernel->operand[o].over;
            if (!over || program->step[i].operand[o] < 0 || program->step[i].operand[over - 1] < 0) continue;
            int from = twi_program_root(program, program->step[i].operand[over - 1]), to = program->step[i].operand[o];
            twi_buffer *input = &program->buffer[from], *output = &program->buffer[to];
            if (input->source != TWI_SOURCE_ARENA || output->source != TWI_SOURCE_ARENA || output->alias >= 0) continue;
            if (program->constant_segments && (input->constant || output->constant)) continue;
            if (input->pinned || output->pinned || input->copied || input->local != output->local ||
                input->bytes != output->bytes || input->sample_bytes != output->sample_bytes ||
                input->lanes != output->lanes)
                continue;
            if (input->last_step != i) continue;
            output->over = from;
        }
}

int twi_program_owner(const tw_program *program, int buffer) {
    buffer = twi_program_root(program, buffer);
    while (program->buffer[buffer].over >= 0) buffer = twi_program_root(program, program->buffer[buffer].over);
    return buffer;
}

typedef struct planner {
    tw_program *program;
    block *block;
    int count;
} planner;

static void add_block(planner *p, size_t bytes, int first, int last, size_t *home) {
    if (!bytes) return;
    p->block[p->count] = (block){bytes, 0, first, last, p->count, home};
    p->count++;
}

tw_status twi_program_partial_bytes(const tw_program *program, const twi_step *step, int operand, size_t *out) {
    const int groups = program->segment[step->segment].groups;
    *out = 0;
    if (step->operand[operand] < 0 || step->kernel->operand[operand].reach != TWI_SUMMED) return TW_OK;
    size_t bytes = step->choice.partial_bytes[operand];
    if (!bytes && groups > 1) bytes = program->buffer[step->operand[operand]].bytes;
    return twi_mul_size(out, twi_partial_stride(bytes), (size_t)groups, "partial sums");
}

/* A buffer written in place lengthens its owner's life. */
static void lengthen_lives(tw_program *program) {
    for (int i = 0; i < program->buffer_count; i++) {
        twi_buffer *buffer = &program->buffer[i], *owner = &program->buffer[twi_program_owner(program, i)];
        if (buffer->alias >= 0 || buffer->over < 0 || buffer->last < 0) continue;
        if (buffer->first < owner->first) owner->first = buffer->first;
        if (buffer->last > owner->last) owner->last = buffer->last;
        live_in_step(owner, buffer->first_step);
        live_in_step(owner, buffer->last_step);
    }
}

/* Arena: planned buffers, shared workspaces (whole run, or their segment), partial sums (their segment). */
static tw_status plan_arena(planner *p) {
    tw_program *program = p->program;
    p->count = 0;
    for (int i = 0; i < program->buffer_count; i++) {
        twi_buffer *buffer = &program->buffer[i];
        if (buffer->source != TWI_SOURCE_ARENA || buffer->alias >= 0 || buffer->over >= 0 || buffer->local ||
            buffer->last < 0)
            continue;
        size_t bytes;
        TWI_TRY(twi_program_extent(program, buffer, &bytes));
        add_block(p, bytes, buffer->first, buffer->last, &buffer->offset);
    }
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        const bool brief = twi_program_saves_workspace(program);
        add_block(p, step->choice.shared_bytes, brief ? step->segment : 0,
                  brief ? step->segment : program->segment_count, &step->shared_offset);
        for (int o = 0; o < step->kernel->operand_count; o++) {
            size_t bytes;
            TWI_TRY(twi_program_partial_bytes(program, step, o, &bytes));
            add_block(p, bytes, step->segment, step->segment, &step->partial_offset[o]);
        }
    }
    return place(twi_program_context(program)->memory, p->block, p->count, &program->arena_bytes);
}

/* Scratch of one worker: local buffers by their steps, so that those of different segments are never there at once;
 * after them the widest implementation scratch. */
static tw_status plan_scratch(planner *p) {
    tw_program *program = p->program;
    size_t widest = 0;
    p->count = 0;
    for (int i = 0; i < program->buffer_count; i++) {
        twi_buffer *buffer = &program->buffer[i];
        if (!buffer->local || buffer->over >= 0) continue;
        const size_t samples = twi_whole_blocks(buffer, program->segment[buffer->first].chunk);
        add_block(p, buffer->sample_bytes * samples, buffer->first_step, buffer->last_step, &buffer->offset);
    }
    TWI_TRY(place(twi_program_context(program)->memory, p->block, p->count, &program->scratch_offset));
    for (int i = 0; i < program->step_count; i++)
        if (program->step[i].choice.worker_bytes > widest) widest = program->step[i].choice.worker_bytes;
    /* Whole pages apart, so that workers do not share cache lines. */
    return twi_add_size(&program->worker_bytes, twi_arena_aligned(program->scratch_offset),
                        (widest + 4095) / 4096 * 4096, "worker scratch");
}

tw_status twi_pass_memory_plan(tw_program *program) {
    twi_memory *memory = twi_program_context(program)->memory;
    planner p = {.program = program};
    size_t most = (size_t)program->buffer_count + (size_t)program->step_count * (1 + TWI_MAX_OPERANDS) + 1;
    find_lives(program);
    find_local(program);
    find_in_place(program);
    lengthen_lives(program);
    TWI_TRY(twi_get(memory, &p.block, most, sizeof *p.block, "memory plan"));
    tw_status status = plan_scratch(&p);
    if (status == TW_OK) status = plan_arena(&p);
    twi_put(memory, p.block);
    if (status) return status;
    program->scratch_offset = twi_arena_aligned(program->scratch_offset);
    for (int i = 0; i < program->buffer_count; i++) { /* views and in-place outputs lie where their owner lies */
        const twi_buffer *owner = &program->buffer[twi_program_owner(program, i)];
        if (program->buffer[i].alias >= 0 || program->buffer[i].over >= 0) {
            program->buffer[i].offset = owner->offset;
            program->buffer[i].local = owner->local;
        }
    }
    return TW_OK;
}

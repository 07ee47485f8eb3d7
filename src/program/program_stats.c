/* Planned memory and work of a program as numbers: what lies in the arena at its fullest moment, and the sums over all
 * steps. */
#include "account.h"

#include <string.h>

static bool lies_in_arena(const twi_buffer *buffer) {
    return buffer->source == TWI_SOURCE_ARENA && buffer->alias < 0 && buffer->over < 0 && !buffer->local &&
           buffer->last >= 0;
}

static bool is_alive(const twi_buffer *buffer, int segment) {
    return buffer->first <= segment && segment <= buffer->last;
}

/* Shared workspace and partial sums of a step, as they lie in the arena in a segment. Their sizes are those of a plan
 * that was made. */
static size_t workspace_of(const tw_program *program, const twi_step *step, int segment) {
    const bool whole_run = !twi_program_saves_workspace(program);
    size_t bytes = whole_run || step->segment == segment ? twi_arena_aligned(step->choice.shared_bytes) : 0;
    for (int o = 0; step->segment == segment && o < step->kernel->operand_count; o++) {
        size_t partial;
        if (twi_program_partial_bytes(program, step, o, &partial) == TW_OK) bytes += twi_arena_aligned(partial);
    }
    return bytes;
}

size_t twi_program_workspace_bytes(const tw_program *program) {
    size_t most = 0;
    for (int s = 0; s < program->segment_count; s++) {
        size_t bytes = 0;
        for (int i = 0; i < program->step_count; i++) bytes += workspace_of(program, &program->step[i], s);
        if (bytes > most) most = bytes;
    }
    tw_context *context = twi_program_context(program);
    const size_t worker =
        program->worker_bytes - program->scratch_offset; /* what lives within a chunk lies before it */
    return most + worker * (size_t)context->backend->workers(context);
}

/* Of a plan that was made: it can be counted. */
static size_t extent_of(const tw_program *program, const twi_buffer *buffer) {
    size_t bytes;
    return twi_program_extent(program, buffer, &bytes) == TW_OK ? twi_arena_aligned(bytes) : 0;
}

static size_t alive_bytes(const tw_program *program, int segment) {
    size_t bytes = 0;
    for (int i = 0; i < program->buffer_count; i++)
        if (lies_in_arena(&program->buffer[i]) && is_alive(&program->buffer[i], segment))
            bytes += extent_of(program, &program->buffer[i]);
    for (int i = 0; i < program->step_count; i++) bytes += workspace_of(program, &program->step[i], segment);
    return bytes;
}

/* Of the buffers that share a block in place, the one that is there: the last to have come. */
static int occupant(const tw_program *program, int block, int segment) {
    int latest = block;
    for (int i = 0; i < program->buffer_count; i++) {
        const twi_buffer *buffer = &program->buffer[i];
        if (buffer->alias >= 0 || buffer->over < 0 || buffer->last < 0 || buffer->first > segment) continue;
        if (twi_program_owner(program, i) != block) continue;
        if (latest == block || buffer->first >= program->buffer[latest].first) latest = i;
    }
    return latest;
}

static const twi_step *writer_of(const tw_program *program, int buffer) {
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++)
            if (program->step[i].operand[o] == buffer && program->step[i].kernel->operand[o].access == TWI_WRITE)
                return &program->step[i];
    return NULL;
}

typedef struct teller {
    twi_account *account;
    twi_account_fn visit;
    void *user;
} teller;

static void tell(const teller *t, const char *label, twi_share share, size_t bytes) {
    t->account->bytes[share] += bytes;
    if (t->visit && bytes) t->visit(t->user, label, share, bytes);
}

static void tell_of_buffer(const tw_program *program, int block, const teller *t) {
    const int there = occupant(program, block, t->account->segment);
    const twi_step *writer = writer_of(program, there);
    const size_t bytes = extent_of(program, &program->buffer[block]);
    const bool to_sum = writer && writer->part == TWI_PART_BACKWARD && program->buffer[there].parameter >= 0;
    if (writer && (writer->constant || to_sum)) /* a weight's gradient, until it is in its sum */
        tell(t, writer->label, TWI_SHARE_WORKSPACE, bytes);
    else if (!writer || program->buffer[there].input)
        tell(t, program->buffer[there].name, TWI_SHARE_INPUT, bytes);
    else
        tell(t, writer->label,
             writer->part == TWI_PART_FORWARD || writer->again ? TWI_SHARE_ACTIVATION : TWI_SHARE_GRADIENT, bytes);
}

void twi_program_account(const tw_program *program, twi_account *out, twi_account_fn visit, void *user) {
    const teller t = {out, visit, user};
    size_t most = 0;
    memset(out, 0, sizeof *out);
    for (int s = 0; s < program->segment_count; s++) {
        const size_t bytes = alive_bytes(program, s);
        if (bytes > most) most = bytes, out->segment = s;
    }
    for (int i = 0; i < program->buffer_count; i++)
        if (lies_in_arena(&program->buffer[i]) && is_alive(&program->buffer[i], out->segment))
            tell_of_buffer(program, i, &t);
    for (int i = 0; i < program->step_count; i++)
        tell(&t, program->step[i].label, TWI_SHARE_WORKSPACE, workspace_of(program, &program->step[i], out->segment));
    out->unused = program->arena_bytes > most ? program->arena_bytes - most : 0;
}

tw_program_stats tw_program_get_stats(const tw_program *program) {
    tw_program_stats stats = {0};
    if (!program) return stats;
    const twi_store *store = &program->model->store;
    size_t learned = (size_t)store->learned_count * store->real_size;
    stats.arena_bytes = program->arena_bytes;
    stats.scratch_bytes = twi_program_scratch_bytes(program);
    stats.parameter_bytes = learned + (size_t)store->buffer_count * store->real_size;
    stats.gradient_bytes = program->train ? learned : 0;
    if (program->half_weights) stats.parameter_bytes += (size_t)store->learned_count * 2;
    if (program->half_gradients) stats.gradient_bytes += (size_t)store->learned_count * 2;
    stats.state_bytes = (size_t)program->moments.count * learned;
    stats.steps = program->step_count;
    stats.segments = program->segment_count;
    stats.recomputed_steps = program->recomputed.steps;
    stats.recomputed_flops = program->recomputed.flops;
    stats.recomputed_bytes = program->recomputed.bytes;
    stats.recomputed_work = program->recomputed.work;
    stats.workspace_limit = twi_program_saves_workspace(program) ? program->workspace_limit : 0;
    for (int i = 0; i < program->step_count; i++) {
        if (program->step[i].segment < program->constant_segments) continue; /* not of every run */
        stats.flops += twi_program_step_flops(program, &program->step[i]);
        stats.bytes += twi_program_step_bytes(program, &program->step[i]);
    }
    twi_account account;
    twi_program_account(program, &account, NULL, NULL);
    stats.input_bytes = account.bytes[TWI_SHARE_INPUT];
    stats.activation_bytes = account.bytes[TWI_SHARE_ACTIVATION];
    stats.activation_gradient_bytes = account.bytes[TWI_SHARE_GRADIENT];
    stats.workspace_bytes = account.bytes[TWI_SHARE_WORKSPACE];
    stats.unused_bytes = account.unused;
    return stats;
}

/* Fusion: applies the pattern table wherever it moves fewer bytes. Knows no op: only kernel names from the table and
 * who reads what. */
#include "program.h"
#include "patterns.h"

#include <string.h>

typedef struct match {
    const twi_pattern *pattern;
    int step[TWI_PATTERN_MEMBERS];
} match;

/* The first step behind `earlier` that is what a member of a pattern is to be; -1: there is none. */
static int find_member(const tw_program *program, const twi_pattern_member *member, int earlier) {
    const int link = program->step[earlier].operand[member->from];
    int found = -1;
    TWI_FOR_USES(program, link, u) {
        const int i = program->uses.use[u].step;
        if (i > earlier && (found < 0 || i < found) && twi_is_kernel(&program->step[i], member->kernel) &&
            program->step[i].operand[member->to] == link)
            found = i;
    }
    return found;
}

static bool find_members(const tw_program *program, match *m) {
    for (int k = 1; k < m->pattern->members; k++) {
        const twi_pattern_member *member = &m->pattern->member[k];
        m->step[k] = find_member(program, member, m->step[member->earlier]);
        if (m->step[k] < 0) return false;
    }
    return true;
}

static bool is_member(const match *m, int step) {
    for (int k = 0; k < m->pattern->members; k++)
        if (m->step[k] == step) return true;
    return false;
}

static int last_step(const match *m) {
    int last = m->step[0];
    for (int k = 1; k < m->pattern->members; k++)
        if (m->step[k] > last) last = m->step[k];
    return last;
}

/* May `buffer`, written by a member, vanish (or, if kept, be written as late as the last member)? */
static bool readers_allow(const tw_program *program, const match *m, int buffer, bool kept) {
    if (!kept && !twi_may_vanish(program, buffer)) return false;
    int last = last_step(m);
    TWI_FOR_USES(program, buffer, u) {
        const int i = program->uses.use[u].step;
        if (twi_count_reads(program, &program->step[i], buffer) && !is_member(m, i) && (!kept || i < last))
            return false;
    }
    return true;
}

/* What becomes of a buffer that a member writes. */
typedef enum fate {
    FATE_GONE,
    FATE_KEPT,  /* the replacement writes it */
    FATE_MISSED /* the replacement reads it, and nobody would write it: add(y, y) after a norm that vanishes */
} fate;

static fate fate_of(const tw_program *program, const match *m, int buffer) {
    fate found = FATE_GONE;
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) {
        const twi_pattern_operand *take = &m->pattern->operand[o];
        if (take->member < 0) continue; /* a new mask, or none */
        const twi_step *member = &program->step[m->step[take->member]];
        int taken = member->operand[take->operand];
        if (taken < 0 || twi_program_root(program, taken) != buffer) continue;
        if (member->kernel->operand[take->operand].access == TWI_READ) return FATE_MISSED;
        found = FATE_KEPT;
    }
    return found;
}

static bool legal(const tw_program *program, const match *m) {
    for (int k = 0; k < m->pattern->members; k++) {
        const twi_step *step = &program->step[m->step[k]];
        for (int o = 0; o < step->kernel->operand_count; o++) {
            int buffer = step->operand[o];
            if (buffer < 0 || step->kernel->operand[o].access == TWI_READ) continue;
            fate then = fate_of(program, m, buffer);
            if (then == FATE_MISSED || !readers_allow(program, m, buffer, then == FATE_KEPT)) return false;
        }
    }
    return true;
}

/* Bits for what the replacement writes as operand `like`, which says where it is positive. */
static tw_status add_mask(tw_program *program, int like, int *index) {
    twi_buffer mask = program->buffer[like];
    mask.name = "mask";
    mask.store = TWI_BITS;
    mask.source = TWI_SOURCE_ARENA;
    mask.pinned = false;
    mask.parameter = -1;
    return twi_program_add_buffer(program, &mask, index);
}

static bool reads_sign(const twi_step *step, const twi_pattern *pattern, int value) {
    return twi_is_kernel(step, pattern->sign_reader) && step->operand[pattern->sign_operand] == value;
}

/* Does anybody ask for the sign of a value? Without a backward nobody does, and no mask is made. */
static bool sign_is_read(const tw_program *program, const twi_pattern *pattern, int value) {
    TWI_FOR_USES(program, value, u)
    if (reads_sign(&program->step[program->uses.use[u].step], pattern, value)) return true;
    return false;
}

static tw_status readers_take_mask(tw_program *program, const twi_pattern *pattern, int output, int mask) {
    const twi_kernel *kernel;
    TWI_TRY(twi_program_kernel(program, pattern->mask_reader, &kernel));
    TWI_FOR_USES(program, output, u) {
        const int i = program->uses.use[u].step;
        twi_step step = program->step[i];
        if (!reads_sign(&step, pattern, output)) continue;
        step.kernel = kernel;
        step.operand[pattern->sign_operand] = mask;
        TWI_TRY(twi_uses_replace(program, i, &step));
    }
    return TW_OK;
}

/* Attributes of `step`, and behind them those of `second`. */
static tw_status join_attrs(tw_program *program, const twi_step *step, const twi_step *second, const void **out) {
    size_t first_bytes = step->node->op->attr_size, second_bytes = second->node->op->attr_size;
    unsigned char *joined;
    TWI_TRY(twi_program_block(program, &joined, first_bytes + second_bytes, "attributes of a fused step"));
    memcpy(joined, step->attrs, first_bytes);
    memcpy(joined + first_bytes, second->attrs, second_bytes);
    *out = joined;
    return TW_OK;
}

/* The step that a match becomes, without its mask. */
static tw_status make_fused(tw_program *program, const match *m, twi_step *fused) {
    const twi_pattern *pattern = m->pattern;
    const twi_step *first = &program->step[m->step[0]];
    *fused = program->step[last_step(m)];
    TWI_TRY(twi_program_kernel(program, pattern->replacement, &fused->kernel));
    fused->attrs = first->attrs;
    fused->node = first->node;
    fused->label = first->label;
    fused->dtype = first->dtype;
    fused->tf32 = first->tf32;
    if (pattern->joined) TWI_TRY(join_attrs(program, first, &program->step[m->step[pattern->joined]], &fused->attrs));
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) fused->operand[o] = TWI_NO_REF;
    for (int o = 0; o < fused->kernel->operand_count; o++) {
        const twi_pattern_operand *take = &pattern->operand[o];
        if (take->member >= 0) fused->operand[o] = program->step[m->step[take->member]].operand[take->operand];
    }
    return TW_OK;
}

static tw_status apply_match(tw_program *program, const match *m) {
    const twi_pattern *pattern = m->pattern;
    twi_step fused;
    int mask = TWI_NO_REF, masked = TWI_NO_REF;
    TWI_TRY(make_fused(program, m, &fused));
    for (int o = 0; o < fused.kernel->operand_count; o++) {
        const twi_pattern_operand *take = &pattern->operand[o];
        if (take->member != TWI_MASK) continue;
        masked = fused.operand[take->operand];
        if (sign_is_read(program, pattern, masked)) TWI_TRY(add_mask(program, masked, &mask));
        fused.operand[o] = mask;
    }
    double before = 0, after = twi_program_step_bytes(program, &fused);
    for (int k = 0; k < pattern->members; k++) before += twi_program_step_bytes(program, &program->step[m->step[k]]);
    if (after >= before || (pattern->asked && !twi_program_is_taken(program, &fused))) return TW_OK;
    program->fused_bytes += before - after;
    int last = last_step(m);
    for (int k = 0; k < pattern->members; k++) program->step[m->step[k]].kernel = NULL;
    TWI_TRY(twi_uses_replace(program, last, &fused));
    return mask < 0 ? TW_OK : readers_take_mask(program, pattern, masked, mask);
}

static tw_status apply_patterns(tw_program *program) {
    for (const twi_pattern *pattern = twi_patterns; pattern->name; pattern++)
        for (int i = 0; i < program->step_count; i++) {
            match m = {.pattern = pattern, .step = {i}};
            if (twi_is_kernel(&program->step[i], pattern->member[0].kernel) && find_members(program, &m) &&
                legal(program, &m))
                TWI_TRY(apply_match(program, &m));
        }
    return TW_OK;
}

tw_status twi_fuse_probe(tw_program *program, int step, bool *out) {
    *out = false;
    for (const twi_pattern *pattern = twi_patterns; pattern->name && !*out; pattern++)
        for (int i = 0; pattern->asked && i <= step && !*out; i++) {
            match m = {.pattern = pattern, .step = {i}};
            if (!twi_is_kernel(&program->step[i], pattern->member[0].kernel) || !find_members(program, &m) ||
                !is_member(&m, step) || !legal(program, &m))
                continue;
            twi_step fused;
            TWI_TRY(make_fused(program, &m, &fused));
            *out = twi_program_is_taken(program, &fused);
        }
    return TW_OK;
}

static const twi_absorb *absorb_row(const twi_step *producer, const twi_step *reader, int buffer) {
    for (const twi_absorb *row = twi_absorbs; row->producer; row++)
        if (twi_is_kernel(producer, row->producer) && twi_is_kernel(reader, row->reader) &&
            reader->operand[row->operand] == buffer)
            return row;
    return NULL;
}

static tw_status make_twin(tw_program *program, const twi_absorb *row, const twi_step *producer, const twi_step *reader,
                           twi_step *twin) {
    *twin = *reader;
    TWI_TRY(twi_program_kernel(program, row->twin, &twin->kernel));
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) twin->operand[o] = TWI_NO_REF;
    for (int o = 0; o < twin->kernel->operand_count; o++) {
        int8_t from = row->order[o];
        twin->operand[o] = from == TWI_ABSORB_VALUE  ? producer->operand[0]
                           : from == TWI_ABSORB_MASK ? producer->operand[1]
                                                     : reader->operand[from];
    }
    return row->joined ? join_attrs(program, reader, producer, &twin->attrs) : TW_OK;
}

/* The producer goes if every reader of its output has a twin, which replaces one operand: none may read it twice. */
static tw_status absorb(tw_program *program, int at) {
    const twi_step producer = program->step[at];
    int value = producer.operand[2], hits = 0;
    twi_step twin;
    if (program->buffer[value].pinned) return TW_OK;
    TWI_FOR_USES(program, value, u) {
        const int i = program->uses.use[u].step, reads = twi_count_reads(program, &program->step[i], value);
        if (!reads) continue;
        const twi_absorb *row = absorb_row(&producer, &program->step[i], value);
        if (reads > 1 || !row) return TW_OK;
        TWI_TRY(make_twin(program, row, &producer, &program->step[i], &twin));
        if (row->asked && !twi_program_is_taken(program, &twin)) return TW_OK;
        hits++;
    }
    if (!hits) return TW_OK;
    TWI_FOR_USES(program, value, u) {
        const int i = program->uses.use[u].step;
        const twi_absorb *row = absorb_row(&producer, &program->step[i], value);
        if (!row) continue;
        TWI_TRY(make_twin(program, row, &producer, &program->step[i], &twin));
        program->fused_bytes -=
            twi_program_step_bytes(program, &twin) - twi_program_step_bytes(program, &program->step[i]);
        TWI_TRY(twi_uses_replace(program, i, &twin));
    }
    program->fused_bytes += twi_program_step_bytes(program, &producer);
    program->step[at].kernel = NULL;
    return TW_OK;
}

tw_status twi_pass_fuse(tw_program *program) {
    TWI_TRY(twi_uses_open(program));
    TWI_TRY(twi_swap_steps(program));
    TWI_TRY(apply_patterns(program));
    for (int i = 0; i < program->step_count; i++)
        for (const twi_absorb *row = twi_absorbs; row->producer; row++)
            if (twi_is_kernel(&program->step[i], row->producer)) {
                TWI_TRY(absorb(program, i));
                break;
            }
    TWI_TRY(apply_patterns(program)); /* who read what has disappeared now reads something else */
    twi_uses_close(program);
    twi_program_compact(program);
    return TW_OK;
}

/* Which values lie feature by feature, and which steps then go by ranges of their features.
 *
 * A dense layer that goes by rows of its weight (ranges.c) makes each feature on the worker that has its row. Steps by
 * samples behind it would have every worker read what all others made, and hand back gradients of all features; and
 * where a row of samples' features lies in two workers' parts, the hardware prefetcher of each core takes lines that the
 * other one writes. Where a small layer follows, a classifier's last one, all goes by features instead, up to that
 * layer's gradients: a worker's features are one piece of memory, and what workers hand each other is the last layer's
 * few numbers. Its sums over features are made block by block and then joined, so their order differs from that by
 * samples, but never depends on the number of workers.
 *
 * Knows no op: the table is in fuse_patterns.c. */
#include "backend/attrs.h"
#include "patterns.h"

enum { SAMPLES_LEAST = 16 }; /* a feature's samples that are fewer are not worth it */

/* What the table says of a buffer as operand o of a step; NULL: the step cannot go by its features. */
static const twi_feature *row_of(const twi_step *step, int o) {
    for (const twi_feature *row = twi_features; row->kernel; row++)
        if (row->operand == o && twi_is_kernel(step, row->kernel)) return row;
    return NULL;
}

/* Are the sums of a block of features no more numbers than those features? */
static bool shrinks(const tw_program *program, const twi_step *step) {
    return program->buffer[step->operand[1]].shape.dim[0] <= TWI_FEATURE_BLOCK;
}

static bool may_lie_by_features(const tw_program *program, int index) {
    const twi_buffer *buffer = &program->buffer[index];
    return twi_may_vanish(program, index) && buffer->alias < 0 && buffer->batched && buffer->shape.rank == 2 &&
           buffer->shape.dim[0] >= SAMPLES_LEAST && buffer->shape.dim[1] >= 2 * TWI_FEATURE_BLOCK;
}

/* Can all that is done with the buffer go by its features, and so on with those that are made of it? */
static bool can_lie_by_features(const tw_program *program, int index) {
    if (!may_lie_by_features(program, index)) return false;
    TWI_FOR_USES(program, index, u) {
        const twi_step *step = &program->step[program->uses.use[u].step];
        for (int o = 0; step->kernel && o < step->kernel->operand_count; o++) {
            const twi_feature *row = row_of(step, o);
            if (step->operand[o] < 0) continue;
            if (step->operand[o] == index) {
                if (!row || step->dtype != TW_F32 || (row->join && !shrinks(program, step))) return false;
            } else if (row && step->kernel->operand[o].access != TWI_READ) {
                if (!can_lie_by_features(program, step->operand[o])) return false;
            } else if (twi_program_root(program, step->operand[o]) == index) {
                return false; /* a view of it */
            }
        }
    }
    return true;
}

/* Everything that is done with the buffer goes by its features. Steps whose sums are to be joined stay as they are. */
static tw_status lay_by_features(tw_program *program, int index) {
    const int64_t features = program->buffer[index].shape.dim[1];
    program->buffer[index].stride[0] = 1;
    program->buffer[index].stride[1] = program->buffer[index].shape.dim[0];
    program->buffer[index].by_features = true;
    TWI_FOR_USES(program, index, u) {
        twi_step *step = &program->step[program->uses.use[u].step];
        for (int o = 0; o < step->kernel->operand_count; o++)
            if (step->operand[o] >= 0 && step->operand[o] != index && row_of(step, o) &&
                step->kernel->operand[o].access != TWI_READ)
                TWI_TRY(lay_by_features(program, step->operand[o]));
        for (int o = 0; o < step->kernel->operand_count && !step->features; o++) {
            const twi_feature *row = step->operand[o] == index ? row_of(step, o) : NULL;
            if (!row) continue;
            step->features = features;
            if (row->twin && !row->join) TWI_TRY(twi_program_kernel(program, row->twin, &step->kernel));
        }
    }
    return TW_OK;
}

/* x, w, b, y or x, w, y becomes x, w, parts, and a step behind it that makes y of parts, b. */
static tw_status split(tw_program *program, int at, const twi_feature *row) {
    const twi_step whole = program->step[at];
    const int operands = whole.kernel->operand_count, y = whole.operand[operands - 1];
    const twi_buffer *x = &program->buffer[whole.operand[0]];
    const int64_t blocks = (x->shape.dim[1] + TWI_FEATURE_BLOCK - 1) / TWI_FEATURE_BLOCK;
    const twi_kernel *makes, *joins;
    int made;
    twi_buffer parts = {.name = program->buffer[y].name,
                        .shape = {3, {blocks, program->buffer[y].shape.dim[1], x->shape.dim[0]}},
                        .store = TWI_ACC,
                        .source = TWI_SOURCE_ARENA,
                        .parameter = -1,
                        .joined = true};
    twi_shape_row_major(&parts.shape, parts.stride);
    TWI_TRY(twi_program_kernel(program, row->twin, &makes));
    TWI_TRY(twi_program_kernel(program, row->join, &joins));
    TWI_TRY(twi_program_add_buffer(program, &parts, &made));
    const int join[TWI_MAX_OPERANDS] = {made, operands > 3 ? whole.operand[2] : TWI_NO_REF, y};
    TWI_TRY(twi_program_add_step(program, joins, whole.attrs, whole.node, whole.label, (twi_part)whole.part, join));
    twi_step added = program->step[program->step_count - 1];
    added.dtype = whole.dtype;
    added.tf32 = whole.tf32;
    for (int i = program->step_count - 1; i > at + 1; i--) program->step[i] = program->step[i - 1];
    program->step[at + 1] = added;
    program->step[at].kernel = makes;
    program->step[at].operand[2] = made;
    program->step[at].operand[3] = TWI_NO_REF;
    return TW_OK;
}

/* What a layer makes that goes by rows of its weight; -1: it is no such layer, or nobody reads it. */
static int made_by_rows(const twi_step *step) {
    if (!step->ranged || step->features) return -1;
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->kernel->operand[o].access == TWI_WRITE && row_of(step, o)) return step->operand[o];
    return -1;
}

static tw_status consider(tw_program *program, const twi_step *step) {
    const int made = made_by_rows(step);
    if (made < 0) return TW_OK;
    TWI_TRY(twi_uses_open(program));
    const tw_status status = can_lie_by_features(program, made) ? lay_by_features(program, made) : TW_OK;
    twi_uses_close(program);
    return status;
}

tw_status twi_pass_features(tw_program *program) {
    for (int i = 0; i < program->step_count; i++) TWI_TRY(consider(program, &program->step[i]));
    for (int i = program->step_count - 1; i >= 0; i--) {
        const twi_feature *row = program->step[i].features ? row_of(&program->step[i], 0) : NULL;
        if (row && row->join) TWI_TRY(split(program, i, row));
    }
    return TW_OK;
}

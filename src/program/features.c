/* Which values lie feature by feature, and which steps then go by ranges of their features.
 *
 * A dense layer that goes by rows of its weight (ranges.c) makes each feature on the worker that has its row. Steps by
 * samples behind it would have every worker read what all others made, hand back gradients of all features, and each
 * core would fetch ahead the lines of rows that the other writes. Where a small layer follows, a classifier's last one,
 * all goes by features instead, up to that layer's gradients: a worker's features are one piece of memory that no other
 * touches, and what workers hand each other is the last layer's few numbers. Its sums over features are made block by
 * block and then joined, so their order differs from that by samples, but never depends on the number of workers.
 *
 * Knows no op: the table is in fuse_patterns.c. */
#include "backend/attrs.h"
#include "patterns.h"

enum { SAMPLES_LEAST = 16 }; /* rows of a feature's samples that are shorter are not worth turning for */

/* What the table says of a buffer as operand o of a step; NULL: the step cannot go by its features. */
static const twi_feature *row_of(const twi_step *step, int o) {
    for (const twi_feature *row = twi_features; row->kernel; row++)
        if (row->operand == o && twi_is_kernel(step, row->kernel)) return row;
    return NULL;
}

/* Is what a step makes of the features no more than they are? */
static bool shrinks(const tw_program *program, const twi_step *step) {
    return program->buffer[step->operand[1]].shape.dim[0] <= TWI_FEATURE_BLOCK;
}

static bool may_turn(const tw_program *program, int index) {
    const twi_buffer *buffer = &program->buffer[index];
    return twi_may_vanish(program, index) && buffer->alias < 0 && buffer->batched && buffer->shape.rank == 2 &&
           buffer->shape.dim[0] >= SAMPLES_LEAST && buffer->shape.dim[1] >= 2 * TWI_FEATURE_BLOCK;
}

/* Can all that is done with the buffer go by its features, and so on with those that are made of it? */
static bool can_turn(const tw_program *program, int index) {
    if (!may_turn(program, index)) return false;
    TWI_FOR_USES(program, index, u) {
        const twi_step *step = &program->step[program->uses.use[u].step];
        for (int o = 0; step->kernel && o < step->kernel->operand_count; o++) {
            const twi_feature *row = row_of(step, o);
            if (step->operand[o] < 0) continue;
            if (step->operand[o] == index) {
                if (!row || step->dtype != TW_F32 || (row->join && !shrinks(program, step))) return false;
            } else if (row && step->kernel->operand[o].access != TWI_READ) {
                if (!can_turn(program, step->operand[o])) return false;
            } else if (twi_program_root(program, step->operand[o]) == index) {
                return false; /* a view of it */
            }
        }
    }
    return true;
}

/* x, w, b, y or x, w, y becomes x, w, parts; and a step that joins those follows. */
static tw_status make_parts(tw_program *program, twi_step *step, const twi_feature *row, twi_step *join) {
    const int operands = step->kernel->operand_count, y = step->operand[operands - 1];
    const twi_buffer *x = &program->buffer[step->operand[0]];
    const int64_t blocks = (x->shape.dim[1] + TWI_FEATURE_BLOCK - 1) / TWI_FEATURE_BLOCK;
    twi_buffer parts = {.name = program->buffer[y].name,
                        .shape = {3, {blocks, program->buffer[y].shape.dim[1], x->shape.dim[0]}},
                        .store = TWI_ACC,
                        .source = TWI_SOURCE_ARENA,
                        .parameter = -1};
    twi_shape_row_major(&parts.shape, parts.stride);
    *join = *step;
    TWI_TRY(twi_program_kernel(program, row->join, &join->kernel));
    TWI_TRY(twi_program_kernel(program, row->twin, &step->kernel));
    TWI_TRY(twi_program_add_buffer(program, &parts, &step->operand[2]));
    join->operand[0] = step->operand[2];
    join->operand[1] = operands > 3 ? join->operand[2] : TWI_NO_REF;
    join->operand[2] = y;
    step->operand[3] = join->operand[3] = TWI_NO_REF;
    return TW_OK;
}

/* Everything that is done with the buffer; `join`: what is to follow the step that *joined becomes. */
static tw_status turn(tw_program *program, int index, twi_step *join, int *joined) {
    const int64_t features = program->buffer[index].shape.dim[1];
    program->buffer[index].stride[0] = 1;
    program->buffer[index].stride[1] = program->buffer[index].shape.dim[0];
    program->buffer[index].by_features = true;
    TWI_FOR_USES(program, index, u) {
        const int at = program->uses.use[u].step;
        twi_step *step = &program->step[at];
        for (int o = 0; o < step->kernel->operand_count; o++)
            if (step->operand[o] >= 0 && step->operand[o] != index && row_of(step, o) &&
                step->kernel->operand[o].access != TWI_READ)
                TWI_TRY(turn(program, step->operand[o], join, joined));
        if (step->features) continue; /* with a value that was turned before */
        for (int o = 0; o < step->kernel->operand_count && !step->features; o++) {
            const twi_feature *row = step->operand[o] == index ? row_of(step, o) : NULL;
            if (!row) continue;
            step->features = features;
            if (row->join) {
                TWI_TRY(make_parts(program, step, row, join));
                *joined = at;
            } else if (row->twin) {
                TWI_TRY(twi_program_kernel(program, row->twin, &step->kernel));
            }
        }
    }
    return TW_OK;
}

static tw_status insert(tw_program *program, const twi_step *step, int at) {
    TWI_TRY(twi_program_add_step(program, step->kernel, step->attrs, step->node, step->label, (twi_part)step->part,
                                 step->operand));
    for (int i = program->step_count - 1; i > at; i--) program->step[i] = program->step[i - 1];
    program->step[at] = *step;
    program->step[at].features = 0;
    return TW_OK;
}

/* What a layer makes that goes by rows of its weight; -1: it is no such layer, or nobody reads it. */
static int made_by_rows(const twi_step *step) {
    if (!step->ranged || step->features) return -1;
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->kernel->operand[o].access == TWI_WRITE && row_of(step, o)) return step->operand[o];
    return -1;
}

static tw_status consider(tw_program *program, int at) {
    const int made = made_by_rows(&program->step[at]);
    if (made < 0) return TW_OK;
    twi_step join;
    int joined = -1;
    TWI_TRY(twi_uses_open(program));
    tw_status status = can_turn(program, made) ? turn(program, made, &join, &joined) : TW_OK;
    twi_uses_close(program);
    return status || joined < 0 ? status : insert(program, &join, joined + 1);
}

tw_status twi_pass_features(tw_program *program) {
    for (int i = 0; i < program->step_count; i++) TWI_TRY(consider(program, i));
    return TW_OK;
}

/* Without training, what scales a product's result channel by channel goes into the product's weights: batch norm by
 * its running statistics behind a convolution or a dense layer. y = s (w x + b) + t is (s w) x + (s b + t). What makes
 * the new weights and bias is a step of its own, which constants.c has run only where something has changed. Knows no
 * op: the table is in fuse_patterns.c.
 * Source: Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
 * CVPR 2018, section 3.2. */
#include "program.h"
#include "patterns.h"

#include <string.h>

typedef struct found {
    const twi_fold *fold;
    int product, shift, scale; /* steps; shift -1: none */
} found;

/* The only step that reads a value, if nobody else wants it; -1. */
static int only_reader(const tw_program *program, int buffer) {
    int reader = -1;
    if (!twi_may_vanish(program, buffer)) return -1;
    TWI_FOR_USES(program, buffer, u) {
        const int i = program->uses.use[u].step, reads = twi_count_reads(program, &program->step[i], buffer);
        if (reads > 1 || (reads && reader >= 0 && reader != i)) return -1;
        if (reads) reader = i;
    }
    return reader;
}

/* The step behind one that wrote `buffer`, if it is of that kernel and reads it as its first operand; -1. */
static int follower(const tw_program *program, int buffer, const char *kernel) {
    const int reader = only_reader(program, buffer);
    return reader >= 0 && twi_is_kernel(&program->step[reader], kernel) && program->step[reader].operand[0] == buffer
               ? reader
               : -1;
}

static bool find(const tw_program *program, int product, const twi_fold *fold, found *f) {
    const twi_step *step = program->step;
    *f = (found){fold, product, -1, -1};
    if (!twi_is_kernel(&step[product], fold->product)) return false;
    int result = step[product].operand[fold->result];
    f->shift = follower(program, result, fold->shift);
    if (f->shift >= 0) result = step[f->shift].operand[2];
    f->scale = follower(program, result, fold->scale);
    return f->scale >= 0 && twi_is_constant(program, step[f->scale].operand[1]) &&
           twi_is_constant(program, step[product].operand[fold->weight]) &&
           (f->shift < 0 || twi_is_constant(program, step[f->shift].operand[1]));
}

/* A parameter as the store holds it, whatever type the program reads it in. */
static tw_status stored(tw_program *program, int buffer, int *out) {
    twi_buffer values = program->buffer[buffer];
    *out = buffer;
    if (values.source != TWI_SOURCE_HALF_VALUES) return TW_OK;
    values.source = TWI_SOURCE_VALUES;
    values.store = TWI_ACC;
    values.dtype = TW_F32;
    return twi_program_add_buffer(program, &values, out);
}

/* Planned memory for weights like those, or for a bias. */
static tw_status add_constant(tw_program *program, const twi_buffer *like, const twi_shape *shape, int *out) {
    twi_buffer made = *like;
    made.source = TWI_SOURCE_ARENA;
    made.parameter = -1;
    made.pinned = false;
    if (shape) {
        made.shape = *shape;
        twi_shape_row_major(shape, made.stride);
    }
    return twi_program_add_buffer(program, &made, out);
}

/* Two empty steps behind every one that may be a scaling: what it becomes are three. */
static tw_status make_room(tw_program *program, const twi_fold *fold) {
    twi_memory *memory = twi_program_context(program)->memory;
    twi_step *roomy;
    int scales = 0, to = 0;
    for (int i = 0; i < program->step_count; i++) scales += twi_is_kernel(&program->step[i], fold->scale);
    if (!scales) return TW_OK;
    const int count = program->step_count + 2 * scales;
    TWI_TRY(twi_get(memory, &roomy, (size_t)count, sizeof *roomy, "program steps"));
    for (int i = 0; i < program->step_count; i++) {
        roomy[to] = program->step[i];
        to += twi_is_kernel(&program->step[i], fold->scale) ? 3 : 1;
    }
    twi_put(memory, program->step);
    program->step = roomy;
    program->step_count = program->step_capacity = count;
    return TW_OK;
}

/* In place of the scaling: what makes the weights, the product with them, and the bias behind it. */
static tw_status apply(tw_program *program, const found *f) {
    const twi_fold *fold = f->fold;
    twi_step product = program->step[f->product], scale = program->step[f->scale], makes = scale, bias = scale;
    const twi_buffer weight = program->buffer[product.operand[fold->weight]];
    const twi_shape channels = {1, {weight.shape.dim[0]}};
    int w, b = TWI_NO_REF, new_w, new_b;
    TWI_TRY(stored(program, product.operand[fold->weight], &w));
    if (f->shift >= 0) TWI_TRY(stored(program, program->step[f->shift].operand[1], &b));
    TWI_TRY(add_constant(program, &weight, NULL, &new_w));
    TWI_TRY(add_constant(program, &weight, &channels, &new_b));
    TWI_TRY(twi_program_kernel(program, fold->fold, &makes.kernel));
    TWI_TRY(twi_program_kernel(program, fold->shift, &bias.kernel));
    const int made[] = {w, b, scale.operand[1], new_w, new_b};
    const int biased[] = {product.operand[fold->result], new_b, scale.operand[2]};
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) makes.operand[o] = bias.operand[o] = TWI_NO_REF;
    memcpy(makes.operand, made, sizeof made);
    memcpy(bias.operand, biased, sizeof biased);
    makes.attrs = bias.attrs = NULL;
    product.operand[fold->weight] = new_w;
    program->step[f->product].kernel = NULL;
    if (f->shift >= 0) program->step[f->shift].kernel = NULL;
    TWI_TRY(twi_uses_replace(program, f->scale, &makes));
    TWI_TRY(twi_uses_replace(program, f->scale + 1, &product));
    return twi_uses_replace(program, f->scale + 2, &bias);
}

static tw_status apply_all(tw_program *program, const twi_fold *fold) {
    TWI_TRY(make_room(program, fold));
    TWI_TRY(twi_uses_open(program));
    for (int i = 0; i < program->step_count; i++) {
        found f;
        if (find(program, i, fold, &f)) TWI_TRY(apply(program, &f));
    }
    twi_uses_close(program);
    twi_program_compact(program);
    return TW_OK;
}

tw_status twi_pass_fold(tw_program *program) {
    twi_pass_constants(program);
    for (const twi_fold *fold = twi_folds; fold->product; fold++) TWI_TRY(apply_all(program, fold));
    return TW_OK;
}

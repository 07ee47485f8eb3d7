/* Merging: a step that makes a weight's gradient updates the weight with it, so that the gradient is never in memory.
 * It moves to the update's part, where everybody else has read the weight, and the optimizer's step leaves that weight
 * out. Nobody can then see the gradient: so it is done only where nobody wants to, and what stands against it is kept
 * with the step. Knows no op: the table is in fuse_patterns.c. */
#include "program.h"
#include "patterns.h"

/* A product, the parameter whose gradient it makes, and where the update is. */
typedef struct candidate {
    const twi_merge *row;
    int product, update;
    int value; /* in the graph */
} candidate;

static int step_of(const tw_program *program, const char *kernel) {
    for (int i = 0; i < program->step_count; i++)
        if (twi_is_kernel(&program->step[i], kernel)) return i;
    return -1;
}

static const twi_parameter *parameter_of(const tw_program *program, int value) {
    return &program->model->store.parameter[program->model->graph.value[value]->parameter];
}

int twi_program_learned_by(const tw_program *program, const twi_step *step, int operand) {
    for (int v = 0; v < program->value_count; v++)
        if (program->gradient_buffer[v] == step->operand[operand] &&
            program->model->graph.value[v]->kind == TWI_VALUE_PARAMETER)
            return parameter_of(program, v)->trainable ? v : -1;
    return -1;
}

/* The weight's values, which the forward has read; -1: in some other form alone. */
static int values_of(const tw_program *program, int value) {
    const int buffer = program->value_buffer[value];
    return buffer >= 0 && program->buffer[buffer].source == TWI_SOURCE_VALUES ? buffer : -1;
}

static bool is_kept(const tw_program *program, const tw_program_options *options, int value) {
    for (int i = 0; i < options->gradient_count; i++)
        if (options->gradients[i] == program->model->graph.value[value]) return true;
    return false;
}

/* What stands against it; NULL: nothing. */
static const char *refusal(const tw_program *program, const tw_program_options *options, const candidate *c) {
    const twi_step *step = &program->step[c->product];
    const struct {
        bool holds;
        const char *reason;
    } reasons[] = {
        {options->no_fusion, "no_fusion was asked for"},
        {program->guard.clip > 0, "clip_norm wants the norm of all gradients first"},
        {program->guard.scales, "loss scaling looks at all gradients first"},
        {program->accumulate, "gradients are summed over a window of batches"},
        {!program->unguarded, "the guard looks at all gradients before weights change (on_non_finite)"},
        {is_kept(program, options, c->value), "the gradient is kept to be read"},
        {step->dtype != TW_F32 || program->half_weights || program->half_gradients,
         "weights or gradients are kept in half precision too"},
        {c->update < 0, "the optimizer's update has no such form"},
        {values_of(program, c->value) < 0, "nothing reads the weight as it is"},
        {program->memory_limit || options->recompute == TW_RECOMPUTE_BLOCKS,
         "what it reads could be dropped to keep a limit of memory"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].holds) return reasons[i].reason;
    return NULL;
}

/* The optimizer's numbers for this weight alone. */
static tw_status make_attrs(tw_program *program, const candidate *c, const twi_update_attrs **out) {
    const twi_update_attrs *all = program->step[c->update].attrs;
    const twi_parameter *parameter = parameter_of(program, c->value);
    twi_update_attrs *attrs;
    twi_update_segment *segment;
    TWI_TRY(twi_program_block(program, &attrs, sizeof *attrs, "update of a weight"));
    TWI_TRY(twi_program_block(program, &segment, sizeof *segment, "update of a weight"));
    *attrs = *all;
    *segment = (twi_update_segment){0, twi_shape_count(&parameter->shape), 0, false, 0};
    for (int32_t s = 0; s < all->segment_count; s++)
        if (parameter->offset >= all->segment[s].begin && parameter->offset < all->segment[s].end)
            segment->weight_decay = all->segment[s].weight_decay;
    attrs->segment = segment;
    attrs->segment_count = 1;
    *out = attrs;
    return TW_OK;
}

static tw_status add_moments(tw_program *program, const candidate *c, int *operand) {
    static const char *const names[] = {"moment 1", "moment 2"};
    twi_store *store = &program->model->store;
    twi_buffer buffer = program->buffer[values_of(program, c->value)];
    buffer.source = TWI_SOURCE_MOMENT;
    buffer.store = TWI_ACC;
    buffer.pinned = false;
    for (int i = 0; i < program->moments.count; i++) {
        buffer.name = names[i];
        buffer.flat = &store->moment[program->moments.first + i];
        TWI_TRY(twi_program_add_buffer(program, &buffer, &operand[i]));
    }
    return TW_OK;
}

static tw_status make_merged(tw_program *program, const candidate *c, twi_step *merged) {
    const twi_update_attrs *attrs;
    *merged = program->step[c->product];
    TWI_TRY(twi_program_kernel(program, c->row->merged, &merged->kernel));
    TWI_TRY(make_attrs(program, c, &attrs));
    merged->attrs = attrs;
    merged->part = TWI_PART_UPDATE;
    merged->operand[c->row->gradient] = values_of(program, c->value);
    return add_moments(program, c, &merged->operand[c->row->gradient + 1]);
}

/* Merged steps, in the order in which they are to stand just before the optimizer's. */
typedef struct moved {
    twi_step *step;
    int count;
} moved;

static tw_status merge(tw_program *program, const candidate *c, moved *to) {
    twi_step merged;
    TWI_TRY(make_merged(program, c, &merged));
    if (!twi_program_is_taken(program, &merged)) {
        program->step[c->product].apart = "the back end has no code for it";
        return TW_OK;
    }
    program->step[c->product].kernel = NULL;
    to->step[to->count++] = merged;
    program->gradient_buffer[c->value] = -1;
    program->merged = true;
    return TW_OK;
}

static tw_status consider(tw_program *program, const tw_program_options *options, candidate *c, moved *to) {
    c->value = twi_program_learned_by(program, &program->step[c->product], c->row->gradient);
    if (c->value < 0) return TW_OK;
    program->step[c->product].apart = refusal(program, options, c);
    return program->step[c->product].apart ? TW_OK : merge(program, c, to);
}

/* What lay between moves up. */
static void place(tw_program *program, const moved *from, int update) {
    int to = 0;
    for (int i = 0; i < program->step_count; i++) {
        for (int k = 0; i == update && k < from->count; k++) program->step[to++] = from->step[k];
        if (program->step[i].kernel) program->step[to++] = program->step[i];
    }
}

static tw_status apply(tw_program *program, const tw_program_options *options, const twi_merge *row) {
    twi_memory *memory = twi_program_context(program)->memory;
    candidate c = {.row = row, .update = step_of(program, row->update)};
    moved to = {0};
    tw_status status = twi_get(memory, &to.step, (size_t)program->step_count, sizeof *to.step, "step order");
    for (c.product = program->step_count - 1; c.product >= 0 && status == TW_OK; c.product--)
        if (twi_is_kernel(&program->step[c.product], row->product)) status = consider(program, options, &c, &to);
    place(program, &to, c.update);
    twi_put(memory, to.step);
    return status;
}

tw_status twi_pass_merge(tw_program *program, const tw_program_options *options) {
    if (!program->train || !options->optimizer) return TW_OK;
    for (const twi_merge *row = twi_merges; row->product; row++) TWI_TRY(apply(program, options, row));
    return program->merged ? twi_lower_segments_again(program) : TW_OK;
}

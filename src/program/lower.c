/* The first pass: every needed node becomes steps, forward in graph order, then backward in reverse, then the commit
 * and the update. Gradients that several consumers contribute to are added here, in a fixed order. */
#include "program.h"
#include "backend/attrs.h"

#include <string.h>

struct twi_lower {
    tw_program *program;
    const twi_graph *graph;
    tw_status status;
    const twi_node *node;
    twi_part part;
    twi_infer *shapes; /* per node, at the program's batch size */
    bool *needed;      /* per node */
    bool *wanted;      /* per value: its gradient is wanted */
    int *consumers;    /* per value: contributions to expect */
    int *contribution; /* per value: list heads into link */
    int *shadow;       /* per value: the first buffer for what it becomes; -1: none */
    struct link {
        int ref, next;
    } * link;
    int link_count, link_capacity;
    int (*saved)[TWI_MAX_SAVED]; /* per node */
};

static void note(twi_lower *lower, tw_status status) {
    if (lower->status == TW_OK) lower->status = status;
}

/* ---- the interface of src/ops/op.h ---- */

bool twi_lower_training(const twi_lower *lower) { return lower->program->train; }
const twi_op *twi_lower_op(const twi_lower *lower) { return lower->node->op; }
const void *twi_lower_attrs(const twi_lower *lower) { return lower->node->attrs; }
const twi_shape *twi_lower_input_shape(const twi_lower *lower, int input) {
    return &lower->shapes[lower->node->id].input[input];
}
const twi_shape *twi_lower_output_shape(const twi_lower *lower, int output) {
    return &lower->shapes[lower->node->id].output[output];
}

static int add_buffer(twi_lower *lower, const twi_buffer *buffer) {
    int index = TWI_NO_REF;
    if (lower->status == TW_OK) note(lower, twi_program_add_buffer(lower->program, buffer, &index));
    return index;
}

/* The buffer of a value, made on first use. */
static int value_ref(twi_lower *lower, const tw_value *value) {
    int *ref = &lower->program->value_buffer[value->id];
    if (*ref >= 0 || lower->status) return *ref;
    twi_buffer buffer = {.name = value->name,
                         .store = value->store,
                         .batched = value->batched,
                         .shape = value->shape,
                         .parameter = value->parameter};
    if (value->kind == TWI_VALUE_RESULT)
        buffer.shape = lower->shapes[value->producer->id].output[value->output];
    else if (value->batched)
        buffer.shape.dim[0] = lower->program->batch;
    buffer.source = value->parameter >= 0 ? TWI_SOURCE_VALUES : TWI_SOURCE_ARENA;
    buffer.pinned =
        value->kind == TWI_VALUE_INPUT && !lower->program->slots && !twi_program_gathers(lower->program, value);
    *ref = add_buffer(lower, &buffer);
    if (*ref >= 0) lower->program->buffer[*ref].input = value->kind == TWI_VALUE_INPUT;
    return *ref;
}

twi_ref twi_lower_input(twi_lower *lower, int input) { return value_ref(lower, lower->node->input[input]); }
twi_ref twi_lower_output(twi_lower *lower, int output) { return value_ref(lower, lower->node->output[output]); }

twi_ref twi_lower_buffer(twi_lower *lower, const char *name, const twi_shape *shape, twi_store_kind store,
                         bool batched) {
    twi_buffer buffer = {.name = name, .shape = *shape, .store = (uint8_t)store, .batched = batched, .parameter = -1};
    return add_buffer(lower, &buffer);
}

twi_ref twi_lower_row_major(twi_lower *lower, twi_ref like) {
    if (like < 0 || lower->status) return TWI_NO_REF;
    const twi_buffer *shaped = &lower->program->buffer[like];
    twi_buffer buffer = {.name = shaped->name,
                         .shape = shaped->shape,
                         .store = shaped->store,
                         .batched = shaped->batched,
                         .parameter = -1,
                         .row_major = true};
    return add_buffer(lower, &buffer);
}

void twi_lower_save(twi_lower *lower, int slot, twi_ref ref) { lower->saved[lower->node->id][slot] = ref; }
twi_ref twi_lower_saved(twi_lower *lower, int slot) { return lower->saved[lower->node->id][slot]; }

twi_ref twi_lower_shadow(twi_lower *lower, int input) {
    const tw_value *value = lower->node->input[input];
    if (value->kind != TWI_VALUE_BUFFER) {
        note(lower, TWI_FAIL(TW_ERROR_ARGUMENT, "%s '%s': input %d must be a kept buffer", lower->node->op->name,
                             lower->node->name, input));
        return TWI_NO_REF;
    }
    twi_buffer buffer = {.name = value->name,
                         .shape = value->shape,
                         .store = TWI_ACC,
                         .source = TWI_SOURCE_SHADOW,
                         .parameter = value->parameter};
    const int ref = add_buffer(lower, &buffer);
    if (lower->shadow[value->id] < 0) lower->shadow[value->id] = ref;
    return ref;
}

bool twi_lower_wants_gradient(const twi_lower *lower, int input) {
    return lower->wanted[lower->node->input[input]->id];
}

static void contribute(twi_lower *lower, const tw_value *value, int ref) {
    if (lower->status || ref < 0) return;
    if (lower->link_count == lower->link_capacity) {
        int grown = lower->link_capacity ? 2 * lower->link_capacity : 64;
        note(lower, twi_grow(lower->graph->memory, &lower->link, (size_t)grown, sizeof *lower->link, "gradient list"));
        if (lower->status) return;
        lower->link_capacity = grown;
    }
    lower->link[lower->link_count] = (struct link){ref, -1};
    int *at = &lower->contribution[value->id];
    while (*at >= 0) at = &lower->link[*at].next; /* in order of arrival */
    *at = lower->link_count++;
}

/* A buffer like the value, for its gradient or a part of it. */
static int gradient_like(twi_lower *lower, const tw_value *value, bool whole) {
    const twi_buffer *like = &lower->program->buffer[value_ref(lower, value)];
    twi_buffer buffer = {
        .name = value->name, .shape = like->shape, .store = like->store, .batched = like->batched, .parameter = -1};
    if (whole && value->parameter >= 0) {
        buffer.source = TWI_SOURCE_GRADIENT;
        buffer.parameter = value->parameter;
        buffer.pinned = true;
    }
    return add_buffer(lower, &buffer);
}

twi_ref twi_lower_input_gradient(twi_lower *lower, int input) {
    const tw_value *value = lower->node->input[input];
    if (!lower->wanted[value->id] || lower->status) return TWI_NO_REF;
    if (value_ref(lower, value) < 0) return TWI_NO_REF;
    int ref = gradient_like(lower, value, lower->consumers[value->id] == 1);
    contribute(lower, value, ref);
    return ref;
}

void twi_lower_give_gradient(twi_lower *lower, int input, twi_ref ref) {
    const tw_value *value = lower->node->input[input];
    if (lower->wanted[value->id]) contribute(lower, value, ref);
}

twi_ref twi_lower_output_gradient(twi_lower *lower, int output) {
    return lower->program->gradient_buffer[lower->node->output[output]->id];
}

void twi_lower_step(twi_lower *lower, const twi_kernel *kernel, const twi_ref *operands) {
    if (lower->status) return;
    note(lower, twi_program_add_step(lower->program, kernel, lower->node->attrs, lower->node, lower->node->name,
                                     lower->part, operands));
}

/* ---- the pass ---- */

static void need(twi_lower *lower, const tw_value *value) {
    if (value->producer) lower->needed[value->producer->id] = true;
}

static void mark_needed(twi_lower *lower, const tw_program_options *options) {
    for (int i = 0; i < options->output_count; i++) need(lower, options->outputs[i]);
    for (int i = 0; i < options->loss_count; i++) need(lower, options->losses[i].value);
    for (int i = lower->graph->node_count - 1; i >= 0; i--)
        if (lower->needed[i])
            for (int k = 0; k < lower->graph->node[i]->input_count; k++) need(lower, lower->graph->node[i]->input[k]);
}

static tw_status infer_shapes(twi_lower *lower) {
    for (int i = 0; i < lower->graph->node_count; i++) {
        const twi_node *node = lower->graph->node[i];
        if (!lower->needed[i]) continue;
        const twi_shape *shapes[TWI_MAX_INPUTS];
        for (int k = 0; k < node->input_count; k++) {
            const tw_value *value = node->input[k];
            shapes[k] = value->producer ? &lower->shapes[value->producer->id].output[value->output] : &value->shape;
        }
        TWI_TRY(twi_graph_infer(node, lower->program->batch, shapes, &lower->shapes[i]));
    }
    return TW_OK;
}

/* Gradients are wanted of trainable parameters, of values asked for, and of what lies between them and a loss. */
static void mark_wanted(twi_lower *lower, const tw_program_options *options) {
    const tw_program *program = lower->program;
    for (int i = 0; i < lower->graph->value_count; i++) {
        const tw_value *value = lower->graph->value[i];
        lower->wanted[i] =
            value->kind == TWI_VALUE_PARAMETER && program->model->store.parameter[value->parameter].trainable;
    }
    for (int i = 0; i < options->gradient_count; i++) lower->wanted[options->gradients[i]->id] = true;
    for (int i = 0; i < lower->graph->node_count; i++) {
        const twi_node *node = lower->graph->node[i];
        if (!lower->needed[i] || !node->op->backward) continue;
        for (int k = 0; k < node->input_count; k++)
            for (int o = 0; lower->wanted[node->input[k]->id] && o < node->output_count; o++)
                lower->wanted[node->output[o]->id] = true;
    }
    /* How many nodes on a path to a loss will contribute. */
    for (int i = 0; i < options->loss_count; i++) lower->consumers[options->losses[i].value->id] = 1;
    for (int i = lower->graph->node_count - 1; i >= 0; i--) {
        const twi_node *node = lower->graph->node[i];
        bool flows = false;
        for (int o = 0; o < node->output_count; o++)
            flows |= lower->consumers[node->output[o]->id] > 0 && lower->wanted[node->output[o]->id];
        for (int k = 0; flows && lower->needed[i] && node->op->backward && k < node->input_count; k++)
            if (lower->wanted[node->input[k]->id]) lower->consumers[node->input[k]->id]++;
    }
}

/* Adds up what arrived for a value; the last sum of a parameter lands in its gradient. */
static void settle_gradient(twi_lower *lower, const tw_value *value) {
    int head = lower->contribution[value->id];
    if (head < 0 || lower->status) return;
    int sum = lower->link[head].ref;
    const twi_kernel *kernel;
    note(lower, twi_program_kernel(lower->program, value->batched ? "add.forward" : "gradient_sum.add", &kernel));
    for (int next = lower->link[head].next; next >= 0 && lower->status == TW_OK; next = lower->link[next].next) {
        int total = gradient_like(lower, value, lower->link[next].next < 0);
        const int operands[] = {sum, lower->link[next].ref, total};
        if (lower->status) return;
        note(lower, twi_program_add_step(lower->program, kernel, NULL, NULL, value->name, TWI_PART_BACKWARD, operands));
        sum = total;
    }
    lower->program->gradient_buffer[value->id] = sum;
}

static tw_status seed_losses(twi_lower *lower) {
    tw_program *program = lower->program;
    for (int i = 0; i < program->loss_count; i++) {
        const tw_value *value = program->loss[i].value;
        if (!lower->wanted[value->id]) continue;
        twi_loss_seed_attrs *attrs;
        TWI_TRY(twi_program_block(program, &attrs, sizeof *attrs, "loss weight"));
        attrs->weight = program->loss[i].weight;
        attrs->scaled = program->guard.scales;
        const twi_kernel *kernel;
        TWI_TRY(twi_program_kernel(program, "loss_seed.write", &kernel));
        const twi_shape one = {1, {1}};
        int seed = twi_lower_buffer(lower, "loss seed", &one, TWI_ACC, false);
        TWI_TRY(lower->status);
        TWI_TRY(twi_program_add_step(program, kernel, attrs, NULL, value->name, TWI_PART_FORWARD, &seed));
        contribute(lower, value, seed);
    }
    return lower->status;
}

/* Steps from `first` on become the first ones, the last of them before all. */
static void move_to_front(tw_program *program, int first) {
    if (first == program->step_count) return;
    twi_reverse_steps(program->step, program->step_count);
    twi_reverse_steps(program->step + program->step_count - first, first);
}

/* What a window's batches move (running statistics) every batch reads as the one before left it in the shadow: the
 * buffer that stood for the values becomes one that the program's first steps fill. */
static tw_status resume_shadows(twi_lower *lower) {
    tw_program *program = lower->program;
    const twi_kernel *resume;
    const int before = program->step_count;
    TWI_TRY(twi_program_kernel(program, "accumulate.resume", &resume));
    for (int v = 0; v < lower->graph->value_count; v++) {
        const int current = program->value_buffer[v], shadow = lower->shadow[v];
        if (current < 0 || shadow < 0) continue; /* nothing moves it */
        const twi_buffer values = program->buffer[current];
        program->buffer[current].source = TWI_SOURCE_ARENA;
        const int operands[] = {add_buffer(lower, &values), shadow, current};
        TWI_TRY(lower->status);
        TWI_TRY(twi_program_add_step(program, resume, NULL, NULL, values.name, TWI_PART_FORWARD, operands));
    }
    move_to_front(program, before);
    return TW_OK;
}

/* What is gathered is there before anything reads it. */
static tw_status gather_inputs(twi_lower *lower) {
    const tw_source_options *source = &lower->program->source;
    if (!source->resident) return TW_OK;
    int images = source->images ? value_ref(lower, source->images) : TWI_NO_REF;
    int labels = source->labels ? value_ref(lower, source->labels) : TWI_NO_REF;
    TWI_TRY(lower->status);
    return twi_lower_gather(lower->program, images, labels);
}

/* So is what is streamed. */
static tw_status take_inputs(twi_lower *lower) {
    tw_program *program = lower->program;
    const int before = program->step_count;
    for (int v = 0; program->slots && v < program->value_count; v++) {
        const tw_value *value = lower->graph->value[v];
        if (value->kind != TWI_VALUE_INPUT || program->value_buffer[v] < 0 || twi_program_gathers(program, value))
            continue;
        TWI_TRY(twi_lower_take(program, value));
    }
    move_to_front(program, before);
    return TW_OK;
}

static tw_status lower_nodes(twi_lower *lower) {
    const twi_graph *graph = lower->graph;
    lower->part = TWI_PART_FORWARD;
    /* Seeds first: fused losses compute value and gradient in one pass. */
    if (lower->program->train) TWI_TRY(seed_losses(lower));
    TWI_TRY(gather_inputs(lower));
    for (int i = 0; i < graph->node_count; i++) {
        if (!lower->needed[i]) continue;
        lower->node = graph->node[i];
        lower->node->op->forward(lower);
        TWI_TRY(lower->status);
    }
    if (!lower->program->train) return TW_OK;
    if (lower->program->accumulate) TWI_TRY(resume_shadows(lower));
    lower->part = TWI_PART_BACKWARD;
    for (int i = graph->node_count - 1; i >= 0; i--) {
        lower->node = graph->node[i];
        if (!lower->needed[i] || !lower->node->op->backward) continue;
        bool flows = false;
        for (int o = 0; o < lower->node->output_count; o++) {
            settle_gradient(lower, lower->node->output[o]);
            flows |= lower->program->gradient_buffer[lower->node->output[o]->id] >= 0;
        }
        bool wanted = false;
        for (int k = 0; k < lower->node->input_count; k++) wanted |= lower->wanted[lower->node->input[k]->id];
        if (flows && wanted) lower->node->op->backward(lower);
        TWI_TRY(lower->status);
    }
    for (int i = 0; i < graph->value_count; i++)
        if (!graph->value[i]->producer) settle_gradient(lower, graph->value[i]);
    return lower->status;
}

/* Losses and gradients are checked before anything persistent changes; then shadows replace what they stand for, in a
 * window of batches with its update. */
static tw_status lower_commit(twi_lower *lower) {
    tw_program *program = lower->program;
    const twi_kernel *check, *copy;
    TWI_TRY(twi_program_kernel(program, "commit.check", &check));
    TWI_TRY(twi_program_kernel(program, "commit.copy", &copy));
    for (int i = 0; i < program->loss_count; i++) {
        int loss = program->value_buffer[program->loss[i].value->id];
        TWI_TRY(twi_program_add_step(program, check, program->train ? &program->guard : NULL,
                                     program->loss[i].value->producer, program->loss[i].value->name, TWI_PART_COMMIT,
                                     &loss));
    }
    if (program->train) TWI_TRY(twi_lower_gradients(program));
    for (int i = 0, count = program->buffer_count; i < count; i++) {
        if (program->buffer[i].source != TWI_SOURCE_SHADOW) continue;
        twi_buffer target = program->buffer[i];
        target.source = TWI_SOURCE_VALUES;
        int operands[2] = {i, add_buffer(lower, &target)};
        TWI_TRY(lower->status);
        TWI_TRY(twi_program_add_step(program, copy, NULL, NULL, target.name,
                                     program->accumulate ? TWI_PART_UPDATE : TWI_PART_COMMIT, operands));
    }
    return TW_OK;
}

static void pin(twi_lower *lower, int ref) {
    if (ref >= 0) lower->program->buffer[ref].pinned = true;
}

static tw_status lower_all(twi_lower *lower, const tw_program_options *options) {
    const twi_graph *graph = lower->graph;
    twi_memory *memory = graph->memory;
    size_t nodes = (size_t)graph->node_count, values = (size_t)graph->value_count;
    TWI_TRY(twi_get(memory, &lower->shapes, nodes, sizeof *lower->shapes, "shapes"));
    TWI_TRY(twi_get(memory, &lower->needed, nodes, sizeof *lower->needed, "lowering marks"));
    TWI_TRY(twi_get(memory, &lower->saved, nodes, sizeof *lower->saved, "saved buffers"));
    TWI_TRY(twi_get(memory, &lower->wanted, values, sizeof *lower->wanted, "lowering marks"));
    TWI_TRY(twi_get(memory, &lower->consumers, values, sizeof *lower->consumers, "lowering marks"));
    TWI_TRY(twi_get(memory, &lower->contribution, values, sizeof *lower->contribution, "lowering marks"));
    TWI_TRY(twi_get(memory, &lower->shadow, values, sizeof *lower->shadow, "lowering marks"));
    for (int i = 0; i < graph->value_count; i++) lower->contribution[i] = lower->shadow[i] = -1;
    for (int i = 0; i < graph->node_count; i++)
        for (int k = 0; k < TWI_MAX_SAVED; k++) lower->saved[i][k] = TWI_NO_REF;
    mark_needed(lower, options);
    TWI_TRY(infer_shapes(lower));
    if (lower->program->train) mark_wanted(lower, options);
    TWI_TRY(lower_nodes(lower));
    TWI_TRY(lower_commit(lower));
    if (options->optimizer) TWI_TRY(twi_lower_update(lower->program, options->optimizer));
    for (int i = 0; i < options->output_count; i++) pin(lower, value_ref(lower, options->outputs[i]));
    for (int i = 0; i < options->loss_count; i++) pin(lower, value_ref(lower, options->losses[i].value));
    for (int i = 0; i < options->gradient_count; i++) {
        int ref = lower->program->gradient_buffer[options->gradients[i]->id];
        if (ref < 0)
            return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: no loss depends on '%s', so it has no gradient",
                            options->gradients[i]->name);
        pin(lower, ref);
    }
    TWI_TRY(lower->status);
    return take_inputs(lower);
}

tw_status twi_pass_lower(tw_program *program, const tw_program_options *options) {
    twi_lower lower = {.program = program, .graph = &program->model->graph};
    tw_status status = lower_all(&lower, options);
    twi_memory *memory = lower.graph->memory;
    void *const scratch[] = {lower.shapes,    lower.needed,       lower.saved,  lower.wanted,
                             lower.consumers, lower.contribution, lower.shadow, lower.link};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++) twi_put(memory, scratch[i]);
    return status;
}

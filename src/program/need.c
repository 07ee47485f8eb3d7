/* What programs and their model take of the device's memory, to the byte: what they will, and what they hold. Trials of
 * implementations (autotune) and the search for what is not finite borrow some beside it, as far as there is any. */
#include "program.h"
#include "base/text.h"
#include "snapshot.h"

bool twi_program_is_limited(const tw_program *program) {
    const tw_context *context = twi_program_context(program);
    return program->memory_limit || context->device_memory_limit || twi_memory_get_stats(context->memory).limit;
}

size_t twi_program_scratch_bytes(const tw_program *program) {
    tw_context *context = twi_program_context(program);
    return program->worker_bytes * (size_t)context->backend->workers(context);
}

size_t twi_program_input_bytes(const tw_program *program) {
    return twi_slots_bytes(program) + twi_source_bytes(program);
}

/* Arrays of a store, there or wanted. */
typedef struct arrays {
    bool gradients, sums, moment[TWI_MOMENTS], half_weights[TWI_HALVES], half_gradients[TWI_HALVES];
} arrays;

static arrays held_by(const twi_store *store) {
    arrays a = {.gradients = store->gradients, .sums = store->gradient_sums};
    for (int m = 0; m < TWI_MOMENTS; m++) a.moment[m] = store->moment[m];
    for (int h = 0; h < TWI_HALVES; h++) {
        a.half_weights[h] = store->half_weights[h];
        a.half_gradients[h] = store->half_gradients[h];
    }
    return a;
}

static void want(arrays *a, const tw_program *program) {
    a->gradients = a->gradients || (program->train && !program->accumulate);
    a->sums = a->sums || program->accumulate;
    for (int m = 0; m < program->moments.count; m++) a->moment[program->moments.first + m] = true;
    if (program->half_weights) a->half_weights[program->half] = true;
    if (program->half_gradients) a->half_gradients[program->half] = true;
}

/* Those that are there, and those that a program needs and a trainer wants (NULL: none), beside what is rehearsed. */
static twi_store_need need_of(const tw_model *model, const tw_program *program) {
    const twi_store *store = &model->store;
    const size_t learned = twi_store_array_bytes(store, store->learned_count);
    const size_t halves = store->learned_count ? (size_t)store->learned_count * 2 : 1;
    arrays a = held_by(store);
    if (program) want(&a, program);
    for (const tw_program *other = model->programs; program && other; other = other->next)
        if (other->counted) want(&a, other);
    twi_store_need need = {.parameters = learned + 2 * twi_store_array_bytes(store, store->buffer_count),
                           .gradients = (a.gradients + a.sums) * learned,
                           .state = twi_snapshot_bytes(store, program),
                           .control = sizeof *store->control};
    for (int h = TW_F16; h < TWI_HALVES; h++) {
        need.parameters += a.half_weights[h] * halves;
        need.gradients += a.half_gradients[h] * halves;
    }
    for (int m = 0; m < TWI_MOMENTS; m++) need.state += a.moment[m] * learned;
    return need;
}

twi_store_need twi_program_store_need(const tw_program *program) { return need_of(program->model, program); }

static size_t sum_of(const twi_store_need *need) {
    return need->parameters + need->gradients + need->state + need->control;
}

static void raise_to(size_t *most, size_t bytes) {
    if (bytes > *most) *most = bytes;
}

void twi_model_shared_need(const tw_model *model, const tw_program *also, size_t *arena, size_t *scratch) {
    *arena = also ? also->arena_bytes : 0;
    *scratch = also ? twi_program_scratch_bytes(also) : 0;
    for (const tw_program *program = model->programs; program; program = program->next) {
        if (!twi_program_counts(program)) continue;
        raise_to(arena, program->arena_bytes);
        raise_to(scratch, twi_program_scratch_bytes(program));
    }
}

/* Arena and scratch are as large as the largest need of any program of the model. */
size_t twi_program_bytes(const tw_program *program) {
    const tw_model *model = program->model;
    const twi_store_need need = twi_program_store_need(program);
    size_t arena, scratch, inputs = twi_program_input_bytes(program);
    twi_model_shared_need(model, program, &arena, &scratch);
    for (const tw_program *other = model->programs; other; other = other->next)
        if (other != program && twi_program_counts(other)) inputs += twi_program_input_bytes(other);
    return sum_of(&need) + arena + scratch + inputs;
}

size_t twi_model_bytes(const tw_model *model) {
    const twi_store_need need = need_of(model, NULL);
    size_t bytes = sum_of(&need) + model->arena_bytes + model->scratch_bytes;
    for (const tw_program *program = model->programs; program; program = program->next)
        if (!program->plan_only) bytes += twi_program_input_bytes(program);
    return bytes;
}

tw_status twi_program_tell_need(const tw_program *program, tw_status status) {
    const twi_store_need need = twi_program_store_need(program);
    char parameters[TWI_QUANTITY_TEXT], gradients[TWI_QUANTITY_TEXT], state[TWI_QUANTITY_TEXT],
        arena[TWI_QUANTITY_TEXT], scratch[TWI_QUANTITY_TEXT];
    return twi_fail_within(
        status, "batch %lld takes parameters %s, gradients %s, optimizer and snapshots %s, activations %s, workspaces %s",
        (long long)program->batch, twi_quantity((double)need.parameters, "B", parameters),
        twi_quantity((double)need.gradients, "B", gradients), twi_quantity((double)need.state, "B", state),
        twi_quantity((double)program->arena_bytes, "B", arena),
        twi_quantity((double)twi_program_scratch_bytes(program), "B", scratch));
}

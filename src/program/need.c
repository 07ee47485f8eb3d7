/* What programs and their model take of the device's memory, to the byte: what they will, and what they hold. Trials of
 * implementations (autotune) and the search for what is not finite borrow some beside it, as far as there is any. */
#include "program.h"
#include "base/text.h"
#include "snapshot.h"

size_t twi_program_scratch_bytes(const tw_program *program) {
    tw_context *context = twi_program_context(program);
    return program->worker_bytes * (size_t)context->backend->workers(context);
}

size_t twi_program_input_bytes(const tw_program *program) {
    return twi_slots_bytes(program) + twi_source_bytes(program);
}

/* Arrays that are there, and those that a program needs and a trainer wants (NULL: none). */
static twi_store_need need_of(const twi_store *store, const tw_program *program) {
    const size_t learned = twi_store_array_bytes(store, store->learned_count);
    const size_t halves = store->learned_count ? (size_t)store->learned_count * 2 : 1;
    twi_store_need need = {.parameters = learned + 2 * twi_store_array_bytes(store, store->buffer_count),
                           .state = twi_snapshot_bytes(store, program),
                           .control = sizeof *store->control};
    if (store->gradients || (program && program->train)) need.gradients += learned;
    if (store->gradient_sums || (program && program->accumulate)) need.gradients += learned;
    for (int h = TW_F16; h < TWI_HALVES; h++) {
        const bool own = program && program->half == (tw_dtype)h;
        if (store->half_weights[h] || (own && program->half_weights)) need.parameters += halves;
        if (store->half_gradients[h] || (own && program->half_gradients)) need.gradients += halves;
    }
    for (int m = 0; m < TWI_MOMENTS; m++) {
        const bool own = program && m >= program->moments.first && m < program->moments.first + program->moments.count;
        if (store->moment[m] || own) need.state += learned;
    }
    return need;
}

twi_store_need twi_program_store_need(const tw_program *program) { return need_of(&program->model->store, program); }

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
        if (program->plan_only) continue;
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
        if (other != program && !other->plan_only) inputs += twi_program_input_bytes(other);
    return sum_of(&need) + arena + scratch + inputs;
}

size_t twi_model_bytes(const tw_model *model) {
    const twi_store_need need = need_of(&model->store, NULL);
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
        status, "batch %lld takes parameters %s, gradients %s, optimizer %s, activations %s, workspaces %s",
        (long long)program->batch, twi_quantity((double)need.parameters, "B", parameters),
        twi_quantity((double)need.gradients, "B", gradients), twi_quantity((double)need.state, "B", state),
        twi_quantity((double)program->arena_bytes, "B", arena),
        twi_quantity((double)twi_program_scratch_bytes(program), "B", scratch));
}

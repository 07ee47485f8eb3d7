/* What programs and their model take of the device's memory: what they will, and what they hold. */
#include "program.h"
#include "base/text.h"

size_t twi_program_scratch_bytes(const tw_program *program) {
    tw_context *context = twi_program_context(program);
    return program->worker_bytes * (size_t)context->backend->workers(context);
}

static size_t slot_bytes(const tw_program *program) {
    size_t bytes = 0;
    for (int v = 0; program->slots && v < program->value_count; v++)
        if (program->model->graph.value[v]->kind == TWI_VALUE_INPUT && program->value_buffer[v] >= 0 &&
            !twi_program_gathers(program, program->model->graph.value[v]))
            bytes += TWI_SLOTS * twi_program_fed_bytes(program, program->value_buffer[v]);
    return bytes;
}

/* Arrays that are there, and those that a program needs (NULL: none). */
static twi_store_need need_of(const twi_store *store, const tw_program *program) {
    const size_t learned = (size_t)store->learned_count * store->real_size;
    twi_store_need need = {.parameters = learned + 2 * (size_t)store->buffer_count * store->real_size};
    if (store->gradients || (program && program->train)) need.gradients += learned;
    if (store->gradient_sums || (program && program->accumulate)) need.gradients += learned;
    for (int h = TW_F16; h < TWI_HALVES; h++) {
        const bool own = program && program->half == (tw_dtype)h;
        if (store->half_weights[h] || (own && program->half_weights))
            need.parameters += (size_t)store->learned_count * 2;
        if (store->half_gradients[h] || (own && program->half_gradients))
            need.gradients += (size_t)store->learned_count * 2;
    }
    for (int m = 0; m < TWI_MOMENTS; m++) {
        const bool own = program && m >= program->moments.first && m < program->moments.first + program->moments.count;
        if (store->moment[m] || own) need.state += learned;
    }
    return need;
}

twi_store_need twi_program_store_need(const tw_program *program) { return need_of(&program->model->store, program); }

static size_t sum_of(const twi_store_need *need) { return need->parameters + need->gradients + need->state; }

/* The arena and the scratch are as large as the largest need of any program of the model. */
size_t twi_program_bytes(const tw_program *program) {
    const twi_store_need need = twi_program_store_need(program);
    size_t arena = program->arena_bytes, scratch = twi_program_scratch_bytes(program), slots = slot_bytes(program);
    for (const tw_program *other = program->model->programs; other; other = other->next) {
        if (other == program || other->plan_only) continue;
        if (other->arena_bytes > arena) arena = other->arena_bytes;
        if (twi_program_scratch_bytes(other) > scratch) scratch = twi_program_scratch_bytes(other);
        slots += slot_bytes(other);
    }
    return sum_of(&need) + arena + scratch + slots;
}

size_t twi_model_bytes(const tw_model *model) {
    const twi_store_need need = need_of(&model->store, NULL);
    size_t bytes = sum_of(&need) + model->arena_bytes + model->scratch_bytes;
    for (const tw_program *program = model->programs; program; program = program->next)
        if (!program->plan_only) bytes += slot_bytes(program);
    return bytes;
}

void twi_model_trim(tw_model *model) {
    for (const tw_program *program = model->programs; program; program = program->next)
        if (!program->plan_only) return;
    void **const memory[] = {&model->arena, &model->scratch};
    for (int i = 0; i < 2; i++) {
        model->context->backend->put(model->context, *memory[i]);
        *memory[i] = NULL;
    }
    model->arena_bytes = model->scratch_bytes = 0;
    model->arena_user = NULL;
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

/* Turns offsets into addresses: fills the plan the back end gets and has it bound. Done again when the shared arena
 * moves. */
#include "program.h"
#include "base/philox.h"

#include <string.h>

/* Where a buffer's memory of its own is, when it is not planned. */
static void *fixed_address(const tw_program *program, const twi_buffer *buffer) {
    const twi_store *store = &program->model->store;
    if (buffer->source == TWI_SOURCE_FLAT) return *buffer->flat;
    if (buffer->source == TWI_SOURCE_MOMENT) return twi_store_at(store, *buffer->flat, buffer->parameter);
    if (buffer->source == TWI_SOURCE_HALF_VALUES)
        return twi_store_half_at(store, store->half_weights[buffer->dtype], buffer->parameter);
    if (buffer->source == TWI_SOURCE_HALF_GRADIENT)
        return twi_store_half_at(store, store->half_gradients[buffer->dtype], buffer->parameter);
    void *array = buffer->source == TWI_SOURCE_GRADIENT ? store->gradients
                  : buffer->source == TWI_SOURCE_SUM    ? store->gradient_sums
                  : buffer->source == TWI_SOURCE_SHADOW ? store->shadows
                                                        : twi_store_values(store, buffer->parameter);
    return twi_store_at(store, array, buffer->parameter);
}

static void plan_buffer(const tw_program *program, int index, twi_buffer_plan *out) {
    const int owner = twi_program_root(program, index);
    const twi_buffer *buffer = &program->buffer[index], *root = &program->buffer[owner];
    out->name = buffer->name;
    out->shape = buffer->shape;
    memcpy(out->stride, buffer->stride, sizeof out->stride);
    out->store = buffer->store;
    out->lanes = buffer->lanes;
    out->dtype = buffer->dtype;
    out->batched = buffer->batched;
    out->bytes = buffer->bytes;
    out->sample_bytes = buffer->sample_bytes;
    if (root->source != TWI_SOURCE_ARENA) {
        out->place = TWI_PLACE_FIXED;
        out->address = fixed_address(program, root);
    } else {
        out->place = root->local ? TWI_PLACE_LOCAL : TWI_PLACE_ARENA;
        out->offset = root->offset;
        out->copy_stride = twi_copy_stride(root);
    }
    out->lendable = twi_is_lendable(program, owner) ? 1 + owner : 0;
}

static void plan_step(const twi_step *step, twi_step_plan *out) {
    out->kernel = step->kernel;
    out->attrs = step->attrs;
    out->label = step->label;
    out->stream = twi_hash_text(step->label);
    out->node = step->node ? step->node->id : -1;
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) out->buffer[o] = step->operand[o];
    out->tf32 = step->tf32;
    out->segment = step->segment;
    out->choice = step->choice;
    out->shared_offset = step->shared_offset;
    memcpy(out->partial_offset, step->partial_offset, sizeof out->partial_offset);
}

tw_status twi_pass_prepare(tw_program *program) {
    tw_context *context = twi_program_context(program);
    twi_plan *plan = &program->plan;
    twi_program_unprepare(program);
    plan->buffer_count = program->buffer_count;
    plan->step_count = program->step_count;
    plan->segment_count = program->segment_count;
    plan->segment = program->segment;
    plan->update_segment = program->update_segment;
    plan->constant_segments = program->constant_segments;
    plan->brief_shared = twi_program_saves_workspace(program);
    plan->arena_bytes = program->arena_bytes;
    plan->worker_bytes = program->worker_bytes;
    plan->scratch_offset = program->scratch_offset;
    plan->times = program->times;
    plan->times_row = twi_program_times_row(program);
    if (!plan->buffer)
        TWI_TRY(twi_program_block(program, &plan->buffer, (size_t)plan->buffer_count * sizeof *plan->buffer, "plan"));
    if (!plan->step)
        TWI_TRY(twi_program_block(program, &plan->step, (size_t)plan->step_count * sizeof *plan->step, "plan"));
    for (int i = 0; i < program->buffer_count; i++) plan_buffer(program, i, &plan->buffer[i]);
    for (int i = 0; i < program->step_count; i++) plan_step(&program->step[i], &plan->step[i]);
    TWI_TRY(context->backend->prepare(context, &program->prepared, plan, program->model->store.control,
                                      program->arena ? program->arena : program->model->arena,
                                      program->scratch ? program->scratch : program->model->scratch));
    twi_program_lend_again(program);
    return TW_OK;
}

void twi_program_unprepare(tw_program *program) {
    tw_context *context = twi_program_context(program);
    if (program->prepared) context->backend->discard(context, program->prepared);
    program->prepared = NULL;
    program->constants = 0;
}

void *twi_program_address(const tw_program *program, int buffer) {
    const twi_buffer_plan *plan = &program->plan.buffer[buffer];
    const void *lent = program->buffer[twi_program_root(program, buffer)].lent;
    if (lent) return (void *)lent; /* nobody writes there */
    char *arena = program->arena ? program->arena : program->model->arena;
    return plan->place == TWI_PLACE_FIXED ? plan->address : arena + plan->offset;
}

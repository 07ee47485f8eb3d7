/* Inputs that are streamed to a program: each has two slots of device memory, filled in turn beside the runs, and a
 * step that takes the input from the one whose turn it is. A program asks for slots, and has them where the back end
 * runs beside the host; elsewhere the input's own buffer is fed. What orders fillings and runs is
 * backend->stream_in. */
#include "program.h"

#include <string.h>

tw_status twi_slots_open(tw_program *program) {
    tw_context *context = twi_program_context(program);
    if (!context->backend->stream_in) return TW_OK;
    return twi_get(context->memory, &program->slots, (size_t)program->value_count, sizeof *program->slots, "slots");
}

void twi_slots_close(tw_program *program) {
    tw_context *context = twi_program_context(program);
    for (int v = 0; program->slots && v < program->value_count; v++)
        for (int i = 0; i < TWI_SLOTS; i++) context->backend->put(context, program->slots[v].memory[i]);
    twi_put(context->memory, program->slots);
}

static bool is_taken(const tw_program *program, int value) {
    return program->model->graph.value[value]->kind == TWI_VALUE_INPUT && program->value_buffer[value] >= 0 &&
           !twi_program_gathers(program, program->model->graph.value[value]);
}

size_t twi_slots_bytes(const tw_program *program) {
    size_t bytes = 0;
    for (int v = 0; program->slots && v < program->value_count; v++)
        if (is_taken(program, v)) bytes += TWI_SLOTS * twi_program_fed_bytes(program, program->value_buffer[v]);
    return bytes;
}

tw_status twi_slots_take_memory(tw_program *program) {
    tw_context *context = twi_program_context(program);
    for (int v = 0; program->slots && v < program->value_count; v++)
        for (int i = 0; is_taken(program, v) && i < TWI_SLOTS; i++)
            TWI_TRY(context->backend->get(context, &program->slots[v].memory[i],
                                          twi_program_fed_bytes(program, program->value_buffer[v]), "slots of inputs"));
    return TW_OK;
}

tw_status twi_lower_take(tw_program *program, const tw_value *value) {
    static const char *const kernels[] = {[TWI_REAL] = "feed.values", [TWI_I32] = "feed.labels"};
    static const char *const names[TWI_SLOTS] = {"slot 0", "slot 1"};
    const int input = program->value_buffer[value->id];
    int operands[TWI_SLOTS + 1] = {[TWI_SLOTS] = input};
    const twi_kernel *take;
    for (int i = 0; i < TWI_SLOTS; i++) {
        void **memory = &program->slots[value->id].memory[i];
        const twi_buffer slot = {.name = names[i],
                                 .shape = program->buffer[input].shape,
                                 .store = value->store == TWI_REAL ? TWI_F32 : value->store, /* as loaders make them */
                                 .source = TWI_SOURCE_FLAT,
                                 .flat = memory,
                                 .batched = true,
                                 .parameter = -1};
        TWI_TRY(twi_program_add_buffer(program, &slot, &operands[i]));
    }
    TWI_TRY(twi_program_kernel(program, kernels[value->store], &take));
    return twi_program_add_step(program, take, NULL, NULL, value->name, TWI_PART_FORWARD, operands);
}

void twi_slots_advance(tw_program *program) {
    if (!program->slots) return;
    program->turn = (program->turn + 1) % TWI_SLOTS;
    memset(program->fed, 0, (size_t)program->value_count * sizeof *program->fed);
}

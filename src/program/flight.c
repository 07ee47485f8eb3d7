/* The rows that results of runs are fetched into, and what a program's row holds. */
#include "program.h"

tw_status twi_flights_reserve(twi_flights *flights, tw_context *context, size_t row_bytes) {
    if (flights->rows && row_bytes <= flights->row_bytes) return TW_OK;
    size_t bytes;
    void *rows;
    TWI_TRY(twi_mul_size(&bytes, row_bytes, TWI_IN_FLIGHT_MAX, "results of runs"));
    TWI_TRY(context->backend->get_host(context, &rows, bytes, "results of runs"));
    twi_flights_free(flights, context);
    flights->rows = rows;
    flights->row_bytes = row_bytes;
    for (int i = 0; i < TWI_IN_FLIGHT_MAX; i++) {
        flights->flight[i].row = (unsigned char *)rows + (size_t)i * row_bytes;
        flights->flight[i].mark = i;
    }
    return TW_OK;
}

void twi_flights_free(twi_flights *flights, tw_context *context) {
    context->backend->put_host(context, flights->rows);
    flights->rows = NULL;
}

enum { ROW_ALIGNMENT = 64 };

static void add_result(tw_program *program, const tw_value *value, size_t *bytes) {
    const int buffer = program->value_buffer[value->id];
    for (int i = 0; i < program->row_count; i++)
        if (program->row[i].buffer == buffer) return;
    program->row[program->row_count++] = (twi_row_entry){buffer, *bytes};
    *bytes += (program->buffer[buffer].bytes + ROW_ALIGNMENT - 1) / ROW_ALIGNMENT * ROW_ALIGNMENT;
}

tw_status twi_program_plan_row(tw_program *program, const tw_program_options *options) {
    const int most = program->loss_count + options->output_count;
    size_t bytes = (sizeof(twi_control) + ROW_ALIGNMENT - 1) / ROW_ALIGNMENT * ROW_ALIGNMENT;
    TWI_TRY(
        twi_get(twi_program_context(program)->memory, &program->row, (size_t)most, sizeof *program->row, "results"));
    for (int i = 0; i < program->loss_count; i++) add_result(program, program->loss[i].value, &bytes);
    for (int i = 0; i < options->output_count; i++)
        if (options->outputs[i]->store == TWI_I32)
            add_result(program, options->outputs[i], &bytes); /* ranks, classes */
    return twi_flights_reserve(&program->model->flights, twi_program_context(program), bytes);
}

/* Sums of gradients over a window of batches: every gradient of a parameter is added to the parameter's sum as soon as it is
 * whole, and its memory is then free for others. So an accumulating program has the flat array of sums, and none of gradients. */
#include "program.h"
#include "patterns.h"

#include <stdlib.h>
#include <string.h>

static const char kernel_name[] = "accumulate.gradient";

/* The sum of a parameter: from here on what is read as its gradient. */
static tw_status add_sum(tw_program *program, const tw_value *value, int gradient, int *sum) {
    twi_buffer buffer = {.name = value->name,
                         .shape = value->shape,
                         .store = TWI_ACC,
                         .source = TWI_SOURCE_SUM,
                         .parameter = value->parameter,
                         .pinned = true};
    twi_store_strides(&buffer.shape, buffer.stride);
    TWI_TRY(twi_program_add_buffer(program, &buffer, sum));
    if (gradient >= 0) program->gradient_buffer[value->id] = *sum;
    return TW_OK;
}

/* Gradients that this program does not make another one of the window may: their sums begin here all the same. */
static tw_status sum_up(tw_program *program, const tw_value *value, const twi_kernel *kernel) {
    const int gradient = program->gradient_buffer[value->id];
    int operand[TWI_MAX_OPERANDS] = {0, TWI_NO_REF, TWI_NO_REF};
    TWI_TRY(add_sum(program, value, gradient, &operand[0]));
    if (gradient >= 0) {
        twi_buffer *buffer = &program->buffer[gradient];
        operand[twi_is_half(buffer->dtype) ? 2 : 1] = gradient;
        buffer->source = TWI_SOURCE_ARENA;
        buffer->pinned = false;
    }
    return twi_program_add_step(program, kernel, NULL, NULL, value->name, TWI_PART_COMMIT, operand);
}

/* Before what looks at the sums. */
static void move_before_guard(tw_program *program, int first, int from) {
    twi_step *step = program->step + first;
    const int passed = from - first, added = program->step_count - from;
    twi_reverse_steps(step, passed + added);
    twi_reverse_steps(step, added);
    twi_reverse_steps(step + added, passed);
}

static int first_of_commit(const tw_program *program) {
    int i = 0;
    while (i < program->step_count && program->step[i].part < TWI_PART_COMMIT) i++;
    return i;
}

tw_status twi_pass_sums(tw_program *program) {
    const twi_kernel *kernel;
    const int before = program->step_count;
    if (!program->accumulate) return TW_OK;
    TWI_TRY(twi_program_kernel(program, kernel_name, &kernel));
    for (int v = 0; v < program->value_count; v++)
        if (program->model->graph.value[v]->kind == TWI_VALUE_PARAMETER)
            TWI_TRY(sum_up(program, program->model->graph.value[v], kernel));
    move_before_guard(program, first_of_commit(program), before);
    program->half_gradients = false;
    return twi_lower_segments_again(program);
}

/* ---- where they stand ---- */

/* A step, and after which of the others it stands. */
typedef struct place {
    int after, index;
} place;

static int by_place(const void *a, const void *b) {
    const place *x = a, *y = b;
    return x->after != y->after ? (x->after < y->after ? -1 : 1) : (x->index > y->index) - (x->index < y->index);
}

/* What a sum takes; negative: nothing. */
static int taken_by(const twi_step *step) {
    if (!twi_is_kernel(step, kernel_name)) return TWI_NO_REF;
    return step->operand[step->operand[1] >= 0 ? 1 : 2];
}

/* Every step after itself, and a sum after the segment that makes its gradient. */
static void find_places(const tw_program *program, int *made_in, place *places) {
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++)
            if (program->step[i].operand[o] >= 0 && program->step[i].kernel->operand[o].access != TWI_READ)
                made_in[program->step[i].operand[o]] = program->step[i].segment;
    for (int i = 0; i < program->step_count; i++) {
        const int gradient = taken_by(&program->step[i]);
        places[i] = (place){i, i};
        if (gradient < 0) continue;
        const twi_segment *segment = &program->segment[made_in[gradient]];
        places[i].after = segment->first_step + segment->step_count - 1;
    }
}

static tw_status sort_steps(tw_program *program, int *made_in, place *places) {
    twi_step *sorted;
    const size_t count = (size_t)program->step_count;
    TWI_TRY(twi_get(twi_program_context(program)->memory, &sorted, count, sizeof *sorted, "step order"));
    find_places(program, made_in, places);
    qsort(places, count, sizeof *places, by_place);
    for (size_t i = 0; i < count; i++) sorted[i] = program->step[places[i].index];
    memcpy(program->step, sorted, count * sizeof *sorted);
    twi_put(twi_program_context(program)->memory, sorted);
    return TW_OK;
}

tw_status twi_place_sums(tw_program *program) {
    twi_memory *memory = twi_program_context(program)->memory;
    int *made_in = NULL;
    place *places = NULL;
    if (!program->accumulate) return TW_OK;
    tw_status status = twi_get(memory, &made_in, (size_t)program->buffer_count, sizeof *made_in, "step order");
    if (status == TW_OK) status = twi_get(memory, &places, (size_t)program->step_count, sizeof *places, "step order");
    if (status == TW_OK) status = sort_steps(program, made_in, places);
    twi_put(memory, places);
    twi_put(memory, made_in);
    return status ? status : twi_schedule_segments(program);
}

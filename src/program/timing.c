/* What a program's steps are and how long they take. The back end adds up the times while it runs; here is the table it
 * adds to, and what callers are told. */
#include "program.h"
#include "base/options.h"

#include <string.h>

size_t twi_program_times_row(const tw_program *program) {
    enum { LINE = 64 / sizeof(twi_step_time) }; /* no two workers write to one cache line */
    return ((size_t)program->step_count + LINE - 1) / LINE * LINE;
}

/* The back end learns of the table when the plan is bound. */
static tw_status rebind(tw_program *program, twi_step_time *times) {
    twi_put(twi_program_context(program)->memory, program->times);
    program->times = times;
    return twi_pass_prepare(program);
}

tw_status tw_program_set_timing(tw_program *program, bool on) {
    static const char what[] = "tw_program_set_timing";
    if (!program) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: program is NULL", what);
    tw_context *context = twi_program_context(program);
    TWI_TRY(twi_program_check_runs(program, what));
    tw_status status = twi_program_check_idle(program->model);
    if (status) return twi_fail_within(status, "%s", what);
    if (!on) return program->times ? rebind(program, NULL) : TW_OK;
    if (!context->backend->times_steps)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s: steps are not timed on '%s'; use the device's own profiler", what,
                        context->device_name);
    const size_t row = twi_program_times_row(program), rows = (size_t)context->backend->workers(context);
    twi_step_time *times;
    size_t entries;
    TWI_TRY(twi_mul_size(&entries, row, rows, "times of steps"));
    TWI_TRY(twi_get(context->memory, &times, entries, sizeof *times, "times of steps"));
    return rebind(program, times);
}

static double local_bytes(const tw_program *program, const twi_step *step) {
    double bytes = 0;
    for (int o = 0; o < step->kernel->operand_count; o++) {
        if (step->operand[o] < 0 || !program->buffer[twi_program_root(program, step->operand[o])].local) continue;
        const bool updated = step->kernel->operand[o].access == TWI_UPDATE;
        bytes += (updated ? 2.0 : 1.0) * (double)program->buffer[step->operand[o]].bytes;
    }
    return bytes;
}

tw_status tw_program_get_step(const tw_program *program, int index, tw_step_info *out) {
    static const char what[] = "tw_program_get_step";
    if (!program || !out) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", what, program ? "out" : "program");
    if (index < 0 || index >= program->step_count)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: there is no step %d; the program has %d, counted from 0", what, index,
                        program->step_count);
    const twi_step *step = &program->step[index];
    tw_step_info info = {.kernel = step->kernel->name,
                         .label = step->label,
                         .implementation = step->choice.implementation,
                         .part = (tw_step_part)step->part,
                         .segment = step->segment,
                         .flops = twi_program_step_flops(program, step),
                         .bytes = twi_program_step_bytes(program, step),
                         .local_bytes = local_bytes(program, step),
                         .constant = step->segment < program->constant_segments,
                         .apart = step->apart};
    const tw_context *context = twi_program_context(program);
    const int workers = program->times ? context->backend->workers(context) : 0;
    for (int w = 0; w < workers; w++) {
        const twi_step_time *time = &program->times[(size_t)w * twi_program_times_row(program) + (size_t)index];
        info.calls += time->calls;
        info.seconds += 1e-9 * (double)time->nanoseconds;
    }
    return twi_options_write(out, &info, sizeof info, what);
}

/* Asks the back end for an implementation of every step, with its workspace. */
#include "program.h"

#include <stdint.h>

/* What a user's op wants may be any number; up to here the planner may round and add. */
static tw_status check_workspace(const twi_step *step) {
    const size_t most = SIZE_MAX / 4, wanted[] = {step->choice.worker_bytes, step->choice.shared_bytes};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (wanted[i] > most)
            return TWI_FAIL(TW_ERROR_OVERFLOW, "%s: a workspace of %zu bytes cannot be addressed", step->kernel->name,
                            wanted[i]);
    return TW_OK;
}

tw_status twi_choose_step(tw_program *program, twi_step *step) {
    tw_context *context = twi_program_context(program);
    const twi_segment *segment = &program->segment[step->segment];
    twi_call main, tail;
    twi_program_call(program, step, segment->chunk, &main);
    int64_t rest = segment->samples % segment->chunk;
    if (rest) twi_program_call(program, step, rest, &tail);
    tw_status status = context->backend->choose(context, step->kernel, &main, rest ? &tail : NULL,
                                                program->workspace_limit, &step->choice);
    if (status == TW_OK) status = check_workspace(step);
    return status ? twi_fail_within(status, "'%s'", step->label) : TW_OK;
}

tw_status twi_pass_choose(tw_program *program) {
    for (int i = 0; i < program->step_count; i++) TWI_TRY(twi_choose_step(program, &program->step[i]));
    return TW_OK;
}

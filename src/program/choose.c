/* Asks the back end for an implementation of every step, with its workspace. */
#include "program.h"

tw_status twi_pass_choose(tw_program *program) {
    tw_context *context = twi_program_context(program);
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        const twi_segment *segment = &program->segment[step->segment];
        twi_call main, tail;
        twi_program_call(program, step, segment->chunk, &main);
        int64_t rest = segment->samples % segment->chunk;
        if (rest) twi_program_call(program, step, rest, &tail);
        tw_status status = context->backend->choose(context, step->kernel, &main, rest ? &tail : NULL, &step->choice);
        if (status) return twi_fail_within(status, "'%s'", step->label);
    }
    return TW_OK;
}

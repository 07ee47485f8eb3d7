/* The learning rate of any update, from the very kernel that programs run. */
#include "backend/step.h"
#include "base/options.h"
#include "ops/op.h"
#include "program/update.h"

#include <string.h>

tw_status tw_schedule_rate(const tw_optimizer_options *options, int64_t update, double *out) {
    if (!out || update < 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_schedule_rate: out is NULL or update %lld is negative",
                        (long long)update);
    tw_optimizer_options chosen;
    twi_schedule_attrs attrs;
    TWI_TRY(twi_options_read(&chosen, sizeof chosen, options, "tw_schedule_rate"));
    TWI_TRY(twi_optimizer_check(&chosen));
    twi_schedule_fill(&attrs, &chosen);
    const twi_kernel *kernel = twi_registry_find_kernel(&twi_registry_builtin, "schedule.learning_rate");
    if (!kernel) return TWI_FAIL(TW_ERROR_INTERNAL, "tw_schedule_rate: the schedule kernel is missing");
    twi_control control;
    memset(&control, 0, sizeof control);
    control.update = (uint64_t)update;
    const twi_call call = {.attrs = &attrs, .control = &control};
    kernel->run(&call);
    *out = control.learning_rate;
    return TW_OK;
}

/* The end of a run: persistent state changes only here and in the optimizer, and only if no step raised a fault.
 *
 *   check:    a loss that is not finite is a fault
 *   check_gradients: so is a gradient
 *   copy:     target = source (running statistics from their shadows)
 *   advance:  update = update + 1 (attempts are counted by whoever starts the run: they advance whatever happens) */
#include "backend/attrs.h"
#include "kernels.h"

#include <math.h>

/* ---- specification ---- */

static void check_run(const twi_call *call) {
    const tw_real *loss = TWI_DATA(const tw_real, call, 0);
    if (!isfinite(loss[0]))
        twi_fault_raise(call->control, TW_ERROR_NUMERIC, call->node, TWI_FAULT_RUN, (double)loss[0]);
}

/* Names the element, behind every sample: what was wrong earlier explains more. */
static void check_gradients_run(const twi_call *call) {
    const twi_update_attrs *attrs = call->attrs;
    const tw_real *gradient = TWI_DATA(const tw_real, call, 0);
    for (int32_t s = 0; s < attrs->segment_count; s++) {
        twi_update_segment part = twi_update_part(attrs->segment[s], call->begin, call->end);
        for (int64_t i = part.begin; i < part.end; i++) {
            if (isfinite(gradient[i])) continue;
            twi_fault_raise(call->control, TW_ERROR_NUMERIC, -1, TWI_FAULT_ELEMENT + i, (double)gradient[i]);
            return;
        }
    }
}

static void copy_run(const twi_call *call) {
    if (twi_fault_raised(call->control)) return;
    const tw_real *source = TWI_DATA(const tw_real, call, 0);
    tw_real *target = TWI_DATA(tw_real, call, 1);
    for (int64_t i = 0; i < twi_call_elements(call); i++) target[i] = source[i];
}

static void advance_run(const twi_call *call) {
    if (!twi_fault_raised(call->control)) call->control->update++;
}

/* ---- kernels ---- */

static const twi_kernel check = {
    .name = "commit.check",
    .operand_count = 1,
    .operand = {{"loss", TWI_READ, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = check_run,
};

static const twi_kernel check_gradients = {
    .name = "commit.check_gradients",
    .operand_count = 1,
    .operand = {{"gradients", TWI_READ, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = twi_call_elements,
    .grain = 4096,
    .run = check_gradients_run,
};

static const twi_kernel copy = {
    .name = "commit.copy",
    .operand_count = 2,
    .operand = {{"source", TWI_READ, TWI_ACC, TWI_WHOLE, 0}, {"target", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = copy_run,
};

static const twi_kernel advance = {
    .name = "commit.advance",
    .split = TWI_AT_ONCE,
    .run = advance_run,
};

/* ---- record: appended to a program by the lowering pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&check, &check_gradients, &copy, &advance, NULL};

const twi_op TWI_NAME(twi_op_commit) = {
    .name = "commit",
    .formula = "target = source, update + 1: unless a step raised a fault",
    .kernels = kernels,
};

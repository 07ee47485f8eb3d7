/* The end of a run: persistent state changes only here and in the optimizer, and only if no step raised a fault.
 *
 *   check:    a loss that is not finite is a fault, or, where the guard skips, noted for its decision
 *   copy:     target = source (running statistics from their shadows)
 *   advance:  update = update + 1 (attempts are counted by whoever starts the run: they advance whatever happens); the
 *   loss
 *             scale follows. Of an update that the guard left out only the latter */
#include "backend/attrs.h"
#include "kernels.h"

#include <math.h>

/* ---- specification ---- */

static void check_run(const twi_call *call) {
    const twi_guard_attrs *guard = call->attrs; /* NULL: there is no update */
    const tw_real *loss = TWI_DATA(const tw_real, call, 0);
    if (isfinite(loss[0])) return;
    if (!guard || !guard->skips)
        twi_fault_raise(call->control, TW_ERROR_NUMERIC, call->node, TWI_FAULT_RUN, (double)loss[0]);
    else if (!call->control->bad_loss)
        call->control->bad_loss = 1 + call->node;
}

static void copy_run(const twi_call *call) {
    if (twi_run_refused(call->control)) return;
    const tw_real *source = TWI_DATA(const tw_real, call, 0);
    tw_real *target = TWI_DATA(tw_real, call, 1);
    for (int64_t i = 0; i < twi_call_elements(call); i++) target[i] = source[i];
}

static void advance_run(const twi_call *call) {
    twi_control *control = call->control;
    if (twi_fault_raised(control)) return;
    if (!control->guard.refused) control->update++;
    if (twi_guard_advance(&control->guard, call->attrs))
        twi_fault_raise(control, TW_ERROR_NUMERIC, -1, TWI_FAULT_PATIENCE, control->guard.scale);
}

/* ---- kernels ---- */

static const twi_kernel check = {
    .name = "commit.check",
    .operand_count = 1,
    .operand = {{"loss", TWI_READ, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .control = TWI_CONTROL_READ | TWI_CONTROL_WRITE,
    .run = check_run,
};

static const twi_kernel copy = {
    .name = "commit.copy",
    .operand_count = 2,
    .operand = {{"source", TWI_READ, TWI_ACC, TWI_WHOLE, 0}, {"target", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .control = TWI_CONTROL_READ | TWI_CONTROL_FAULTS,
    .run = copy_run,
};

static const twi_kernel advance = {
    .name = "commit.advance",
    .split = TWI_AT_ONCE,
    .control = TWI_CONTROL_READ | TWI_CONTROL_FAULTS | TWI_CONTROL_WRITE,
    .run = advance_run,
};

/* ---- record: appended to a program by the lowering pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&check, &copy, &advance, NULL};

const twi_op TWI_NAME(twi_op_commit) = {
    .name = "commit",
    .formula = "target = source, update + 1: unless a step raised a fault, or the guard left the update out",
    .attr_size = sizeof(twi_guard_attrs),
    .kernels = kernels,
};

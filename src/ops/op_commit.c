/* The end of a run: persistent state changes only here and in the optimizer, and only if no step raised a fault.
 *
 *   copy:     target = source (running statistics from their shadows)
 *   advance:  attempt = attempt + 1 always: the next run draws other samples and masks; update = update + 1 without fault */
#include "kernels.h"

/* ---- specification ---- */

static void copy_run(const twi_call *call) {
    if (twi_fault_raised(call->control)) return;
    const tw_real *source = TWI_DATA(const tw_real, call, 0);
    tw_real *target = TWI_DATA(tw_real, call, 1);
    for (int64_t i = 0; i < twi_shape_count(&call->operand[0].shape); i++) target[i] = source[i];
}

static void advance_run(const twi_call *call) {
    call->control->attempt++;
    if (!twi_fault_raised(call->control)) call->control->update++;
}

/* ---- kernels ---- */

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

/* ---- record: appended to a program by its update pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&copy, &advance, NULL};

const twi_op TWI_NAME(twi_op_commit) = {
    .name = "commit",
    .formula = "target = source, attempt + 1, update + 1: unless a step raised a fault",
    .kernels = kernels,
};

/* The end of a run: what looks for faults, and what changes lasting state where there is none. Formulas: src/ops/op_commit.c. */
#include "entries.h"
#include "fault.cuh"
#include "pointwise.cuh"

namespace {

/* ---- check ---- */

__global__ void check(const float *loss, twi_control *control, int32_t node, bool skips) {
    if (isfinite(loss[0])) return;
    if (!skips)
        twk_fault_raise(control, TW_ERROR_NUMERIC, node, TWI_FAULT_RUN, (double)loss[0]);
    else if (!control->bad_loss)
        control->bad_loss = 1 + node;
}

cudaError_t run_check(const twi_call *call, const twk_launch *launch) {
    const twi_guard_attrs *guard = (const twi_guard_attrs *)call->attrs;
    return TWC_LAUNCH(check, 1, 1, 0, launch->stream, (const float *)call->operand[0].data, call->control, call->node,
                      guard && guard->skips);
}

/* ---- copy, advance ---- */

struct copy : twk_functor<1, 0> {
    const twi_control *control;
    __device__ bool begin() const { return !twk_run_refused(control); }
    __device__ float operator()(const float *in, twk_aside &) const { return in[0]; }
};

cudaError_t run_copy(const twi_call *call, const twk_launch *launch) {
    copy f = {};
    f.control = call->control;
    const twk_input in[] = {twk_input_of(&call->operand[0])};
    return twk_pointwise<float>(launch, f, in, &call->operand[1]);
}

__global__ void advance(twi_guard_attrs guard, twi_control *control) {
    if (twk_fault_raised(control)) return;
    if (!control->guard.refused) control->update++;
    if (twi_guard_advance(&control->guard, &guard))
        twk_fault_raise(control, TW_ERROR_NUMERIC, -1, TWI_FAULT_PATIENCE, control->guard.scale);
}

cudaError_t run_advance(const twi_call *call, const twk_launch *launch) {
    return TWC_LAUNCH(advance, 1, 1, 0, launch->stream, *(const twi_guard_attrs *)call->attrs, call->control);
}

} // namespace

extern "C" const twk_entry twk_commit_entries[] = {
    {"commit.check", NULL, NULL, run_check},
    {"commit.copy", NULL, NULL, run_copy},
    {"commit.advance", NULL, NULL, run_advance},
    {},
};

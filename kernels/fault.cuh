/* Faults as kernels raise them: the device's twin of twi_fault_raise (src/backend/fault.c), and the search for the first. */
#ifndef TWK_FAULT_CUH
#define TWK_FAULT_CUH

#include "reduce.cuh"

#define TWK_NO_FAULT 0x7fffffffffffffffll /* in place of a sample: there was none */

/* Called by one thread of a launch, so that nobody waits for a lane of his own warp; the lock is for launches at once. */
__device__ inline void twk_fault_raise(twi_control *control, tw_status code, int32_t node, int64_t sample,
                                       double value) {
    twi_fault *fault = &control->fault;
    while (atomicExch(&fault->lock, 1u) != 0) continue;
    __threadfence();
    if (fault->code == 0 || sample < fault->sample || (sample == fault->sample && node < fault->node)) {
        fault->node = node;
        fault->sample = sample;
        fault->value = value;
        fault->code = (int32_t)code;
    }
    __threadfence();
    atomicExch(&fault->lock, 0u);
}

__device__ inline bool twk_fault_raised(const twi_control *control) { return control->fault.code != 0; }
/* Is the run faulty, or its update left out? Then steps that change persistent state do nothing. */
__device__ inline bool twk_run_refused(const twi_control *control) {
    return twk_fault_raised(control) || control->guard.refused;
}

#endif

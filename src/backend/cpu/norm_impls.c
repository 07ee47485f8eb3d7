/* The batch-norm family: every kernel of norm.h by the loops of the processor's instruction set. */
#include "norm.h"
#include "sweep.h"

#define NORM_RUN(name, kernel)                                                                                   \
    static void run_##name(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) { \
        TWI_FOR_ISA_BF16(site->isa, norm)->name(call, workspace);                                                     \
    }
TWI_NORM_KERNELS(NORM_RUN)

#define NORM_IMPL(name, kernel) {kernel, "sweep", twi_sweep_refuse, .prepare = twi_sweep_prepare, .run = run_##name},
const twi_cpu_impl twi_cpu_norm_impls[] = {TWI_NORM_KERNELS(NORM_IMPL){.kernel = NULL}};

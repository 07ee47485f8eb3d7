/* The kernels of batch norm, alone and fused with relu and add, that pass over whole activations. Those that see
 * per-channel numbers only (finalize and the like) are left to the specification. */
#ifndef TWI_CPU_NORM_H
#define TWI_CPU_NORM_H

#include "loops.h"

#define TWI_NORM_KERNELS(KERNEL)                                      \
    KERNEL(statistics, "batch_norm.statistics")                       \
    KERNEL(refine, "batch_norm.refine")                               \
    KERNEL(apply, "batch_norm.apply")                                 \
    KERNEL(apply_relu, "batch_norm.apply_relu")                       \
    KERNEL(apply_add_relu, "batch_norm.apply_add_relu")               \
    KERNEL(backward_sums, "batch_norm.backward_sums")                 \
    KERNEL(backward_sums_masked, "batch_norm.backward_sums_masked")   \
    KERNEL(backward_apply, "batch_norm.backward_apply")               \
    KERNEL(backward_apply_masked, "batch_norm.backward_apply_masked") \
    KERNEL(relu_backward_masked, "relu.backward_masked")              \
    KERNEL(add_masked, "add.masked")

#define TWI_NORM_MEMBER(name, kernel) twi_cpu_loop *name;
typedef struct twi_norm_loops {
    TWI_NORM_KERNELS(TWI_NORM_MEMBER)
} twi_norm_loops;

extern const twi_norm_loops twi_norm_baseline, twi_norm_avx2, twi_norm_avx512, twi_norm_avx512_bf16;

#endif

/* What op files share: kernel records used outside their own file (every other kernel is static) and the pieces of batch
 * norm that its fused forms build on. */
#ifndef TWI_OPS_KERNELS_H
#define TWI_OPS_KERNELS_H

#include "op.h"

extern const twi_kernel TWI_NAME(twi_kernel_reshape_copy); /* op_reshape.c */

/* Rows of batch norm's per-channel buffers [rows, C]. */
enum { TWI_NORM_MEAN, TWI_NORM_INVERSE, TWI_NORM_SCALE, TWI_NORM_OFFSET, TWI_NORM_COEFFICIENTS }; /* y = scale*x + offset */
enum { TWI_NORM_SUM, TWI_NORM_PRODUCT, TWI_NORM_COUNT, TWI_NORM_SUMS };
enum { TWI_NORM_A, TWI_NORM_B, TWI_NORM_K, TWI_NORM_GRADIENTS }; /* dx = A*dy + B*x + K */

/* Where a bit mask keeps element (c, h, w) of its sample. */
static inline int64_t twi_mask_bit(const twi_operand *mask, int64_t c, int64_t h, int64_t w) {
    return twi_at4(mask, 0, c, h, w);
}

/* For cases: a batch norm of its own input x, c->p = {N, C, H, W} (H 0: [N, C]). names: node, x, gamma, beta, mean, var,
 * batches. op_batch_norm.c */
tw_value *TWI_NAME(twi_case_batch_norm)(twi_builder *builder, const twi_case *c, const char *const names[7]);

#endif

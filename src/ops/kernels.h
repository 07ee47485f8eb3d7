/* What op files share: kernel records used outside their own file (every other kernel is static) and the pieces of
 * batch norm that its fused forms build on. */
#ifndef TWI_OPS_KERNELS_H
#define TWI_OPS_KERNELS_H

#include "op.h"

extern const twi_kernel TWI_NAME(twi_kernel_conv2d_forward); /* op_conv2d.c */
extern const twi_kernel TWI_NAME(twi_kernel_dense_forward);  /* op_dense.c */
extern const twi_kernel TWI_NAME(twi_kernel_bias_forward);   /* op_bias.c */
extern const twi_kernel TWI_NAME(twi_kernel_bias_backward);
extern const twi_kernel TWI_NAME(twi_kernel_relu_forward);   /* op_relu.c */
extern const twi_kernel TWI_NAME(twi_kernel_relu_backward);
extern const twi_kernel TWI_NAME(twi_kernel_reshape_copy);   /* op_reshape.c */

/* The bits of sample n of a mask (NULL: no mask is wanted); element (c, h, w) is bit twi_at4(mask, 0, c, h, w). */
static inline uint8_t *twi_mask_sample(const twi_operand *mask, int64_t n) {
    return mask->data ? (uint8_t *)mask->data + n * twi_bits_bytes(twi_sample_count(mask)) : NULL;
}

/* What cross-entropy wants the probability of class c to be. */
static inline tw_real twi_class_target(tw_real smoothing, int64_t classes, int64_t label, int64_t c) {
    return (c == label ? 1 - smoothing : 0) + smoothing / (tw_real)classes;
}

/* For cases: a batch norm of its own input x, c->p = {N, C, H, W} (H 0: [N, C]). names: node, x, gamma, beta, mean,
 * var, batches. op_batch_norm.c */
tw_value *TWI_NAME(twi_case_batch_norm)(twi_builder *builder, const twi_case *c, const char *const names[7]);

#endif

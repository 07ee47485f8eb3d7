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

/* Rows of batch norm's per-channel buffers [rows, C]. */
enum { TWI_NORM_MEAN, TWI_NORM_INVERSE, TWI_NORM_SCALE, TWI_NORM_OFFSET, TWI_NORM_COEFFICIENTS };
enum { TWI_NORM_SUM, TWI_NORM_PRODUCT, TWI_NORM_COUNT, TWI_NORM_SUMS };
enum { TWI_NORM_A, TWI_NORM_B, TWI_NORM_K, TWI_NORM_GRADIENTS }; /* dx = A*dy + B*x + K */

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

/* For cases: the ops whose cases a fused form extends by bias and relu, and that extension. */
extern const twi_op TWI_NAME(twi_op_conv2d);
extern const twi_op TWI_NAME(twi_op_dense);
static inline tw_value *twi_case_bias_relu(twi_builder *builder, tw_value *x, bool relu) {
    tw_value *b = builder->parameter(builder, "b", 1, &x->shape.dim[1]);
    tw_value *y = builder->node(builder, "bias", "bias", 2, (tw_value *[]){x, b}, NULL);
    return relu ? builder->node(builder, "relu", "relu", 1, &y, NULL) : y;
}

#endif

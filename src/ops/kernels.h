/* What op files share: kernel records used outside their own file (every other kernel is static) and the pieces of
 * batch norm that its fused forms build on. */
#ifndef TWI_OPS_KERNELS_H
#define TWI_OPS_KERNELS_H

#include "backend/attrs.h"
#include "base/half.h"
#include "op.h"

extern const twi_kernel TWI_NAME(twi_kernel_conv2d_forward); /* op_conv2d.c */
extern const twi_kernel TWI_NAME(twi_kernel_conv2d_backward_data);
extern const twi_kernel TWI_NAME(twi_kernel_conv2d_backward_weights);
extern const twi_kernel TWI_NAME(twi_kernel_max_pool_forward); /* op_max_pool.c */
extern const twi_kernel TWI_NAME(twi_kernel_max_pool_backward);
extern const twi_kernel TWI_NAME(twi_kernel_dense_forward);  /* op_dense.c */
extern const twi_kernel TWI_NAME(twi_kernel_dense_backward_data);
extern const twi_kernel TWI_NAME(twi_kernel_dense_backward_weights);
extern const twi_kernel TWI_NAME(twi_kernel_dense_backward_weights_bias); /* fused_dense_bias_backward.c */
extern const twi_kernel TWI_NAME(twi_kernel_bias_forward);   /* op_bias.c */
extern const twi_kernel TWI_NAME(twi_kernel_bias_backward);
extern const twi_kernel TWI_NAME(twi_kernel_relu_forward); /* op_relu.c */
extern const twi_kernel TWI_NAME(twi_kernel_relu_backward);
extern const twi_kernel TWI_NAME(twi_kernel_gelu_forward_tanh); /* op_gelu.c */
extern const twi_kernel TWI_NAME(twi_kernel_gelu_backward_tanh);
extern const twi_kernel TWI_NAME(twi_kernel_bias_gelu_backward); /* fused_bias_gelu.c */
extern const twi_kernel TWI_NAME(twi_kernel_bias_relu_backward); /* fused_bias_relu.c */
extern const twi_kernel TWI_NAME(twi_kernel_add_forward);      /* op_add.c */
extern const twi_kernel TWI_NAME(twi_kernel_reshape_copy);     /* op_reshape.c */
extern const twi_kernel TWI_NAME(twi_kernel_batch_norm_apply); /* op_batch_norm.c */
extern const twi_kernel TWI_NAME(twi_kernel_batch_norm_backward_apply);
extern const twi_kernel TWI_NAME(twi_kernel_relu_backward_masked); /* fused_batch_norm_add_relu.c */

/* Element i of a flat array of gradients: of operand `grad`, or, where its segment says so, of operand `half`. */
static inline tw_real twi_gradient_at(const twi_call *call, int grad, int half, const twi_update_segment *segment,
                                      int64_t i) {
    if (!segment->half) return TWI_DATA(const tw_real, call, grad)[i];
    return (tw_real)twi_half_to_f32((tw_dtype)call->operand[half].dtype, TWI_DATA(const uint16_t, call, half)[i]);
}
/* Writes element i of the flat array of weights in half precision, where the program keeps one. */
static inline void twi_half_put(const twi_call *call, int half, int64_t i, tw_real value) {
    if (call->operand[half].data)
        TWI_DATA(uint16_t, call, half)[i] = twi_half_from_f32((tw_dtype)call->operand[half].dtype, (float)value);
}

/* y = relu(y) in place, and the relu's mask: a bit an element, set where the gradient passes. */
static inline void twi_relu_with_mask(const twi_operand *yo, const twi_operand *mask) {
    tw_real *y = yo->data;
    uint8_t *bits = mask->data; /* NULL: no backward follows */
    int64_t elements = twi_sample_count(yo);
    for (int64_t n = 0; n < yo->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++) {
            tw_real *t = &y[twi_offset(yo, n, i)];
            if (bits) twi_bit_set(bits + n * twi_bits_bytes(elements), twi_offset(mask, 0, i), !(*t <= 0));
            *t = *t < 0 ? 0 : *t; /* keeps NaN */
        }
}

/* Element i, in logical order, of sample n of dy where the mask lets it pass, else 0; without a mask everything
 * does. */
static inline tw_real twi_masked(const twi_operand *dy, const twi_operand *mask, int64_t n, int64_t i) {
    const uint8_t *bits = mask ? (const uint8_t *)mask->data + n * twi_bits_bytes(twi_sample_count(mask)) : NULL;
    return !bits || twi_bit_get(bits, twi_offset(mask, 0, i)) ? ((const tw_real *)dy->data)[twi_offset(dy, n, i)] : 0;
}

/* Adds the sums of batch norm's backward; mask NULL: dy as it is. op_batch_norm.c */
void TWI_NAME(twi_norm_backward_sums)(const twi_operand *dy, const twi_operand *mask, const twi_operand *x,
                                      const twi_operand *coef, const twi_operand *sums);

/* What cross-entropy wants the probability of class c to be. */
static inline tw_real twi_class_target(tw_real smoothing, int64_t classes, int64_t label, int64_t c) {
    return (c == label ? 1 - smoothing : 0) + smoothing / (tw_real)classes;
}

/* Lowering of what only gives elements another shape. op_reshape.c */
void TWI_NAME(twi_reshape_forward)(twi_lower *lower);
void TWI_NAME(twi_reshape_backward)(twi_lower *lower);

/* For cases: a cross-entropy of its own input, c->p = {N, classes, label smoothing in percent}. op_cross_entropy.c */
tw_value *TWI_NAME(twi_case_cross_entropy)(twi_builder *builder, const twi_case *c);

/* For cases: a batch norm of its own input x, c->p = {N, C, H, W} (H 0: [N, C]). names: node, x, gamma, beta, mean,
 * var, batches. op_batch_norm.c */
tw_value *TWI_NAME(twi_case_batch_norm)(twi_builder *builder, const twi_case *c, const char *const names[7], bool frozen);

#endif

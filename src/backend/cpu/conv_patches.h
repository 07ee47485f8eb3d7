/* Any convolution as products of matrices: the input is copied patch by patch, a row of numbers for every output
 * position that the kernel is laid on, and gemm.h does the rest. */
#ifndef TWI_CPU_CONV_PATCHES_H
#define TWI_CPU_CONV_PATCHES_H

#include "conv_shape.h"
#include "gemm.h"

/* Floats of scratch that the calls below want for one shape; TW_ERROR_OVERFLOW if that is beyond size_t. */
tw_status twi_patches_scratch(const twi_conv_shape *shape, size_t *floats);

/* bias may be NULL. Tensors are dense, images N,H,W,C, kernels O,H,W,I; shapes are those of the forward convolution. */
void twi_patches_forward(const twi_gemm *gemm, const twi_conv_shape *shape, const float *x, const float *w,
                         const float *bias, bool relu, float *y, float *scratch);
void twi_patches_backward_data(const twi_gemm *gemm, const twi_conv_shape *shape, const float *dy, const float *w,
                               float *dx, float *scratch);
/* add: on top of what dw holds. */
void twi_patches_backward_weights(const twi_gemm *gemm, const twi_conv_shape *shape, const float *x, const float *dy,
                                  bool add, float *dw, float *scratch);

/* The same of some filters at one tap of the kernel, of the whole batch, and in the place of what dw holds; with
 * scratch of its own size. */
tw_status twi_patches_part_scratch(const twi_conv_shape *shape, size_t *floats);
void twi_patches_backward_weights_part(const twi_gemm *gemm, const twi_conv_shape *shape, const twi_conv2d_part *part,
                                       const float *x, const float *dy, float *dw, float *scratch);

#endif

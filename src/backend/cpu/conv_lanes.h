/* Convolutions of few channels, for one thread, in versions by instruction set: a vector holds the same element of
 * VEC_WIDTH images, so that channels and kernels of any size fill it. What is taken is decided in
 * conv_lanes_impls.c. */
#ifndef TWI_CPU_CONV_LANES_H
#define TWI_CPU_CONV_LANES_H

#include "conv_shape.h"
#include "cpu.h"

typedef struct twi_lanes {
    int64_t width; /* images in a vector */
    /* Floats of scratch that the two calls below want. */
    int64_t (*forward_scratch)(const twi_conv_shape *shape);
    int64_t (*backward_weights_scratch)(const twi_conv_shape *shape);
    /* groups is 1. Tensors are dense, images N,H,W,C, kernels O,H,W,I. bias may be NULL. */
    void (*forward)(const twi_conv_shape *shape, const float *x, const float *w, const float *bias, bool relu, float *y,
                    float *scratch);
    /* spread is 1. add: on top of what dw holds. */
    void (*backward_weights)(const twi_conv_shape *shape, const float *x, const float *dy, bool add, float *dw,
                             float *scratch);
} twi_lanes;

extern const twi_lanes twi_lanes_avx2, twi_lanes_avx512;

#endif

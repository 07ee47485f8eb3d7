/* Convolutions of few channels on few images, for one thread, in versions by instruction set: a vector holds output
 * channels of one pixel, so that a single image fills it. What is taken is decided in conv_pixels_impls.c. */
#ifndef TWI_CPU_CONV_PIXELS_H
#define TWI_CPU_CONV_PIXELS_H

#include "conv_shape.h"
#include "cpu.h"

/* A max pooling of the result: rows x columns of windows, and the number of the element that won in each. */
typedef struct twi_pixels_pool {
    const twi_pool_attrs *attrs;
    int64_t rows, columns;
    uint8_t *index;
} twi_pixels_pool;

typedef struct twi_pixels {
    int64_t width; /* output channels in a vector */
    /* Floats of weights and bias in working order, and of scratch. */
    int64_t (*packed)(const twi_conv_shape *shape);
    int64_t (*scratch)(const twi_conv_shape *shape, const twi_pixels_pool *pool);
    /* Kernels O,H,W,I to working order; bias may be NULL. */
    void (*pack)(const twi_conv_shape *shape, const float *w, const float *bias, float *packed);
    /* groups and dilation are 1, stride_w 1 or 2; images H,W,C. pool: y is what it gives; NULL: none. */
    void (*forward)(const twi_conv_shape *shape, const float *x, const float *packed, const twi_pixels_pool *pool, bool relu,
                    float *y, float *scratch);
} twi_pixels;

extern const twi_pixels twi_pixels_baseline, twi_pixels_avx2, twi_pixels_avx512;

#endif

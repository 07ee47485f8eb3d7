/* Convolutions of 3x3 with stride 1 by Winograd's minimal filtering F(m x m, 3 x 3), for one thread, in versions by
 * instruction set; a vector holds neighbouring channels. What is taken is decided in winograd_impls.c.
 *
 * The output is cut into tiles of m x m, each of which looks at (m + 2) x (m + 2) pixels d of the input. With the
 * matrices in winograd_lines_kernel.h,
 *     y = A^T [sum over input channels of (B^T d B) o (G w G^T)] A,
 * where o multiplies element by element: (m + 2)^2 products of matrices, tiles x in_c by in_c x out_c. The gradient of
 * the input is the same with the kernel turned by half a circle; that of the weights is
 *     G^T [sum over tiles of (B^T d B) o (A dy A^T)] G.
 * Tiles of 2 take 16 products for a pair of channels where a direct convolution takes 36, with the same error in f32
 * (root mean square, of normal numbers: 1.6e-7 of a result at 16 channels, 4.4e-7 at 256; direct 1.5e-7 and 5.7e-7).
 * Tiles of 4 take 36 instead of 144 with six times that error, which beside the rounding to a half is nothing. Whatever
 * is stored, everything in between is f32.
 *
 * Source: S. Winograd, "Arithmetic Complexity of Computations", 1980; for networks A. Lavin, S. Gray, "Fast Algorithms
 * for Convolutional Neural Networks", CVPR 2016. */
#ifndef TWI_CPU_WINOGRAD_H
#define TWI_CPU_WINOGRAD_H

#include "conv_shape.h"

static inline size_t twi_winograd_points(int tile) { return (size_t)(tile + 2) * (size_t)(tile + 2); }

typedef struct twi_winograd_shape {
    twi_conv_shape conv; /* the one that is done: of dy, where the gradient of the input is asked for */
    int tile;            /* m: 2 or 4 */
    tw_dtype dtype;      /* of images, weights and bias: f32, bf16, f16 */
} twi_winograd_shape;

typedef struct twi_winograd {
    int64_t width; /* channels in a vector: in_c and out_c are multiples of it */
    /* Bytes of scratch for `convolve` and `backward_weights`. */
    tw_status (*scratch)(const twi_winograd_shape *shape, size_t *bytes);
    /* to[points * in_c * out_c] = weights w for this shape; backward: w is that of the convolution whose input's
     * gradient this is. */
    void (*weights)(const twi_winograd_shape *shape, const void *w, bool backward, float *to);
    /* y = x * weights [+ bias], [relu]; bias may be NULL. */
    void (*convolve)(const twi_winograd_shape *shape, const void *x, const float *weights, const void *bias, bool relu,
                     void *y, float *scratch);
    /* sums[points * in_c * out_c] = [sums +] what the samples give; dw, of the type `stored`, = their sums. */
    void (*backward_weights)(const twi_winograd_shape *shape, const void *x, const void *dy, bool add, float *sums,
                             float *scratch);
    void (*weights_gradient)(const twi_winograd_shape *shape, const float *sums, void *dw, tw_dtype stored);
} twi_winograd;

extern const twi_winograd twi_winograd_baseline, twi_winograd_avx2, twi_winograd_avx512, twi_winograd_avx512_bf16;

#endif

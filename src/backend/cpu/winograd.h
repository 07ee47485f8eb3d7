/* Convolutions of 3 x 3 without strides by fewer products: 4 x 4 results of a channel at a time take 36 products a
 * channel read instead of 144 (S. Winograd 1980; for networks A. Lavin, S. Gray 2016: F(4 x 4, 3 x 3) at the points 0, 1,
 * -1, 2, -2 and infinity). Images, weights and results are halves, everything between f32. The loops are in winograd_kernel.h,
 * compiled per instruction set; which convolutions take them is in winograd_impls.c. */
#ifndef TWI_CPU_WINOGRAD_H
#define TWI_CPU_WINOGRAD_H

#include "loops.h"

enum {
    TWI_WINOGRAD_OUT = 4,                                     /* rows and columns of a tile of results */
    TWI_WINOGRAD_IN = 6,                                      /* those it reads */
    TWI_WINOGRAD_POINTS = TWI_WINOGRAD_IN * TWI_WINOGRAD_IN   /* products of a tile and pair of channels */
};

/* Images x of in channels, results y of out channels, both with channels innermost. */
typedef struct twi_winograd_shape {
    int64_t images, in, out;
    int64_t height, width, out_height, out_width;
    int64_t top, left; /* rows and columns of zeros before an image's first */
    bool bf16;         /* the halves, else f16 */
} twi_winograd_shape;

typedef struct twi_winograd_loops {
    /* u[36][in][out] of w, O,H,W,I; turned: of the convolution that brings gradients of y back to x, u[36][out][in]. */
    void (*weights)(float *u, const uint16_t *w, bool bf16, int64_t out, int64_t in, bool turned);
    /* y = convolution of x, plus a bias unless NULL, relu if asked. */
    void (*convolve)(const twi_winograd_shape *shape, const uint16_t *x, const float *u, const uint16_t *bias, bool relu,
                     uint16_t *y, float *scratch);
    /* dw[O,H,W,I], f32: the gradient of the weights, or that on top of what it holds. */
    void (*gradient)(const twi_winograd_shape *shape, const uint16_t *x, const uint16_t *dy, bool add, float *dw,
                     float *scratch);
} twi_winograd_loops;

extern const twi_winograd_loops twi_winograd_baseline, twi_winograd_avx2, twi_winograd_avx512;

static inline int64_t twi_winograd_tile_rows(const twi_winograd_shape *s) {
    return (s->out_height + TWI_WINOGRAD_OUT - 1) / TWI_WINOGRAD_OUT;
}
static inline int64_t twi_winograd_tile_columns(const twi_winograd_shape *s) {
    return (s->out_width + TWI_WINOGRAD_OUT - 1) / TWI_WINOGRAD_OUT;
}
/* Rows of tiles, over all images, that are worked on at once: what becomes of them should stay in the second-level
 * cache. */
int64_t twi_winograd_block_rows(const twi_winograd_shape *s);
/* Floats from one product's numbers of `tiles` tiles to the next one's: not the same lines of the cache. */
static inline int64_t twi_winograd_plane(int64_t tiles, int64_t channels) { return tiles * channels + 16; }

#endif

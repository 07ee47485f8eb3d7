/* Convolutions of few channels, for one thread, in versions by instruction set: a vector holds the same element of
 * VEC_WIDTH images, so that channels and kernels of any size fill it. What is taken is decided in
 * conv_lanes_impls.c. */
#ifndef TWI_CPU_CONV_LANES_H
#define TWI_CPU_CONV_LANES_H

#include "conv_shape.h"
#include "loops.h"

/* Samples one after the other, or turned: VEC_WIDTH of them side by side, in whole blocks (twi_operand.lanes). */
typedef struct twi_lanes_tensor {
    void *data;
    bool turned;
} twi_lanes_tensor;

/* A max pooling of a convolution's result: rows x columns of windows, and the index of the element that won in each. */
typedef struct twi_lanes_pool {
    const twi_pool_attrs *attrs;
    int64_t rows, columns;
    twi_lanes_tensor index;
} twi_lanes_pool;

/* Into how many tiles output channels are cut, and positions, or taps: of the latter `left` and `right` lie at the ends, `edge` wide, and
 * `middle` between them. */
typedef struct twi_lanes_tiling {
    int64_t outs, middle, left, right, edge;
} twi_lanes_tiling;

/* The gradient of the weights of a convolution whose result was max-pooled: dw = the sum over elements that won of dy *
 * (what the kernel lay on). add: on top of what dw holds. */
typedef struct twi_unpooled_weights {
    int64_t (*scratch)(const twi_conv_shape *shape, const twi_lanes_pool *pool); /* floats of it */
    void (*run)(const twi_conv_shape *shape, twi_lanes_tensor x, twi_lanes_tensor dy, const twi_lanes_pool *pool,
                bool add, float *dw, float *scratch);
} twi_unpooled_weights;

/* Gradients of convolutions whose result was max-pooled, where only elements that won have a gradient other than 0, a
 * quarter of them at most with windows of 2x2: for each of those a whole row of the kernel, all its columns and input
 * channels, is multiplied as vectors. What is taken is decided in conv_winners_impls.c. */
enum {
    TWI_WINNERS_WINDOW_BITS = 4, /* of the number of an element of a window */
    TWI_WINNERS_WINDOW = 1 << TWI_WINNERS_WINDOW_BITS,
    TWI_WINNERS_KERNEL_ROWS = 7, /* of the gradient of the input */
};

/* The shape is the forward's; groups and dilation are 1, windows of TWI_WINNERS_WINDOW elements at most. Where the
 * gradient of the input is asked for, the convolution's strides are 1 and its kernel no higher than
 * TWI_WINNERS_KERNEL_ROWS; windows are two rows high and lie side by side from the first element on. Every index names
 * an element of the convolution's result, or the first of a window. Tensors are dense, images H,W,C, kernels O,H,W,I.
 * An infinite gradient may also make a row of the input above or below those that it reaches not a number. */
typedef struct twi_winners {
    twi_unpooled_weights weights;
    /* Floats of scratch of `data`. */
    int64_t (*data_scratch)(const twi_conv_shape *shape, const twi_lanes_pool *pool);
    /* The kernel in working order, of so many floats. */
    int64_t (*packed)(const twi_conv_shape *shape);
    void (*pack)(const twi_conv_shape *shape, const float *w, float *packed);
    /* dx = the sum over winners of dy * (the kernel, where it lay). */
    void (*data)(const twi_conv_shape *shape, twi_lanes_tensor dy, const twi_lanes_pool *pool, const float *packed,
                 twi_lanes_tensor dx, float *scratch);
} twi_winners;

/* Convolutions whose result is pooled in windows of 2x2, side by side from the first element to the last. What is taken
 * is decided in conv_windows_impls.c.
 *
 * groups, strides and dilation are 1. Tensors are dense, images H,W,C, kernels O,H,W,I. */
typedef struct twi_windows {
    twi_unpooled_weights weights;
    /* Floats of scratch of `forward`. */
    int64_t (*forward_scratch)(const twi_conv_shape *shape, const twi_lanes_pool *pool);
    /* The kernel in working order, of so many floats. */
    int64_t (*packed)(const twi_conv_shape *shape);
    void (*pack)(const twi_conv_shape *shape, const float *w, float *packed);
    /* y and the pool's index = what the pooling gives of x * packed + bias, [relu], by fewer products: 7 for 10 with a
     * kernel of five columns, 4 for 6 with one of three. Where plain sums are infinite, these may be none.
     * Source: S. Winograd, "Arithmetic Complexity of Computations", 1980. */
    void (*forward)(const twi_conv_shape *shape, twi_lanes_tensor x, const float *packed, const float *bias,
                    const twi_lanes_pool *pool, bool relu, twi_lanes_tensor y, float *scratch);
} twi_windows;

typedef struct twi_lanes {
    int64_t width; /* images in a vector */
    /* The tilings that are best for the two calls below, whatever the number of samples. */
    twi_lanes_tiling (*forward_tiling)(const twi_conv_shape *shape);
    twi_lanes_tiling (*weights_tiling)(const twi_conv_shape *shape);
    /* Floats of scratch that the two calls below want. */
    int64_t (*forward_scratch)(const twi_conv_shape *shape, const twi_lanes_pool *unpool, const twi_lanes_pool *pool);
    int64_t (*backward_weights_scratch)(const twi_conv_shape *shape, const twi_lanes_pool *unpool);
    /* groups is 1. Tensors are dense, images H,W,C, kernels O,H,W,I. bias may be NULL. unpool: x is the gradient of
     * what the pooling gave. pool: y is what it gives, and its index is written. NULL: neither. */
    void (*forward)(const twi_conv_shape *shape, twi_lanes_tiling tiling, twi_lanes_tensor x,
                    const twi_lanes_pool *unpool, const float *w, const float *bias, const twi_lanes_pool *pool,
                    bool relu, twi_lanes_tensor y, float *scratch);
    /* spread is 1. unpool: dy is the gradient of what the pooling gave, or NULL. add: on top of what dw holds. */
    void (*backward_weights)(const twi_conv_shape *shape, twi_lanes_tiling tiling, twi_lanes_tensor x,
                             twi_lanes_tensor dy, const twi_lanes_pool *unpool, bool add, float *dw, float *scratch);
    /* g = dy where y > 0, else 0; db[c] = sum of g. All turned, `pixels` x `channels` a sample; y NULL: g and dy are the
     * same, and only summed. */
    int64_t (*bias_relu_scratch)(int64_t channels);
    void (*bias_relu)(int64_t samples, int64_t pixels, int64_t channels, const float *dy, const float *y, float *g,
                      bool add, float *db, float *scratch);
    /* Between samples of channels x pixels, one after the other, and turned images of pixels x channels. */
    void (*rows_to_image)(int64_t samples, int64_t pixels, int64_t channels, const float *rows, float *image);
    void (*image_to_rows)(int64_t samples, int64_t pixels, int64_t channels, const float *image, float *rows);
    twi_winners winners;
    twi_windows windows;
} twi_lanes;

extern const twi_lanes twi_lanes_baseline, twi_lanes_avx2, twi_lanes_avx512;
static inline const twi_lanes *twi_lanes_for(twi_isa isa) { return TWI_FOR_ISA(isa, lanes); }

static inline twi_lanes_tensor twi_lanes_tensor_of(const twi_call *call, int o) {
    return (twi_lanes_tensor){call->operand[o].data, call->operand[o].lanes != 0};
}

/* Of a call with twi_conv2d_pool_attrs, whose operand y is what the pooling gives. */
static inline twi_lanes_pool twi_lanes_pool_of(const twi_call *call, int y, int index) {
    const twi_conv2d_pool_attrs *attrs = call->attrs;
    const int64_t *dim = call->operand[y].shape.dim;
    return (twi_lanes_pool){&attrs->pool, dim[2], dim[3], twi_lanes_tensor_of(call, index)};
}

/* Places of operands of a convolution whose result is pooled: its input, weights and what the pooling gives, or their
 * gradients, and the pooling's index. */
typedef struct twi_pooled_roles {
    int8_t x, w, y, index;
} twi_pooled_roles;

/* Such a call in the terms of this file. */
typedef struct twi_pooled_call {
    twi_conv_shape shape;
    twi_lanes_pool pool;
    twi_lanes_tensor x, y;
    void *w;
} twi_pooled_call;

static inline twi_pooled_call twi_pooled_call_of(const twi_call *call, const twi_pooled_roles *r) {
    return (twi_pooled_call){twi_conv_pooled_shape_of(call, r->x, r->w, r->y), twi_lanes_pool_of(call, r->y, r->index),
                             twi_lanes_tensor_of(call, r->x), twi_lanes_tensor_of(call, r->y),
                             call->operand[r->w].data};
}

/* twi_cpu_impl.prepare and .run of "conv2d.backward_weights_unpooled". */
static const twi_pooled_roles twi_unpooled_weights_roles = {0, 3, 1, 2};
static inline tw_status twi_unpooled_weights_prepare(twi_cpu_site *site, const twi_call *call,
                                                     const twi_unpooled_weights *weights) {
    const twi_pooled_call c = twi_pooled_call_of(call, &twi_unpooled_weights_roles);
    return twi_mul_size(&site->worker_bytes, (size_t)weights->scratch(&c.shape, &c.pool), sizeof(float),
                        "convolution scratch");
}
static inline void twi_unpooled_weights_run(const twi_call *call, const twi_cpu_workspace *workspace,
                                            const twi_unpooled_weights *weights) {
    const twi_pooled_call c = twi_pooled_call_of(call, &twi_unpooled_weights_roles);
    weights->run(&c.shape, c.x, c.y, &c.pool, !call->first, c.w, workspace->scratch);
}

/* twi_cpu_impl.multiple and .lanes: whole vectors, and images that convolutions hand to each other stay in lanes. */
static inline int64_t twi_lanes_multiple(const twi_call *call, twi_isa isa) {
    (void)call;
    return twi_lanes_for(isa)->width;
}
static inline int twi_lanes_wish(const twi_call *call, twi_isa isa, int operand) {
    (void)call, (void)operand;
    return (int)twi_lanes_for(isa)->width;
}

/* NULL, or why operands are not turned for vectors of this width. */
static inline const char *twi_lanes_refuse_width(const twi_call *call, int64_t width) {
    for (int o = 0; o < call->operand_count; o++)
        if (call->operand[o].lanes && call->operand[o].lanes != width)
            return "samples lie side by side in another number";
    return NULL;
}

#endif

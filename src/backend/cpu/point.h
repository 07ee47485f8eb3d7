/* The kernels that do little work per element: element by element, pooling, copies, loss, dropout, updates. One row
 * each: name, kernel, when it is refused, what it prepares. */
#ifndef TWI_CPU_POINT_H
#define TWI_CPU_POINT_H

#include "loops.h"
#include "backend/attrs.h"

#include <math.h>

#define TWI_POINT_KERNELS(KERNEL)                                                                \
    KERNEL(bias_forward, "bias.forward", twi_sweep_refuse, twi_sweep_prepare)                    \
    KERNEL(bias_backward, "bias.backward", twi_sweep_refuse, twi_sweep_prepare)                  \
    KERNEL(bias_relu_backward, "bias_relu.backward", twi_sweep_refuse, twi_sweep_prepare)        \
    KERNEL(relu_forward, "relu.forward", twi_sweep_refuse_flat, NULL)                            \
    KERNEL(relu_backward, "relu.backward", twi_sweep_refuse_flat, NULL)                          \
    KERNEL(gelu_forward, "gelu.forward", twi_sweep_refuse_flat, NULL)                            \
    KERNEL(gelu_backward, "gelu.backward", twi_sweep_refuse_flat, NULL)                          \
    KERNEL(gelu_forward_tanh, "gelu.forward_tanh", twi_sweep_refuse_flat, NULL)                  \
    KERNEL(gelu_backward_tanh, "gelu.backward_tanh", twi_sweep_refuse_flat, NULL)                \
    KERNEL(bias_gelu_backward, "bias_gelu.backward", twi_sweep_refuse, twi_sweep_prepare)        \
    KERNEL(add_forward, "add.forward", twi_sweep_refuse_flat, NULL)                              \
    KERNEL(add_relu, "add.forward_relu", twi_sweep_refuse_flat, NULL)                            \
    KERNEL(max_pool_forward, "max_pool.forward", refuse_pool, NULL)                              \
    KERNEL(max_pool_backward, "max_pool.backward", refuse_pool, NULL)                            \
    KERNEL(avg_pool_forward, "avg_pool.forward", refuse_pool, NULL)                              \
    KERNEL(avg_pool_backward, "avg_pool.backward", refuse_pool, NULL)                            \
    KERNEL(global_avg_pool_forward, "global_avg_pool.forward", refuse_pool, NULL)                \
    KERNEL(global_avg_pool_backward, "global_avg_pool.backward", refuse_pool, NULL)              \
    KERNEL(reshape_copy, "reshape.copy", refuse_copy, NULL)                                      \
    KERNEL(softmax_forward, "softmax.forward", refuse_classes, prepare_classes)                  \
    KERNEL(log_softmax, "cross_entropy.log_softmax", refuse_classes, prepare_classes)            \
    KERNEL(cross_entropy_backward, "cross_entropy.backward", refuse_classes, NULL)               \
    KERNEL(softmax_cross_entropy, "softmax_cross_entropy.both", refuse_classes, prepare_classes) \
    KERNEL(dropout, "dropout.apply", refuse_dropout, prepare_dropout)                            \
    KERNEL(gather_bytes, "gather.bytes", refuse_gather, NULL)                                    \
    KERNEL(gather_floats, "gather.floats", refuse_gather, NULL)                                  \
    KERNEL(guard_measure, "guard.measure", NULL, NULL)                                           \
    KERNEL(sgd_update, "sgd.update", NULL, NULL)                                                 \
    KERNEL(adamw_update, "adamw.update", NULL, NULL)

#define TWI_POINT_MEMBER(name, kernel, refuse, prepare) twi_cpu_loop *name;
typedef struct twi_point_loops {
    TWI_POINT_KERNELS(TWI_POINT_MEMBER)
    /* The sum of a block's squares in f32; and what the guard keeps of a block, `first` the place of its first gradient,
     * where that sum does not hold. */
    float (*guard_sum)(const float *gradients, int64_t count);
    float (*guard_block)(const float *gradients, int64_t count, int64_t first);
    /* sum[o][n] = bias[o] + parts[0][o][n] + parts[1][o][n] and so on, of `out` rows of so many columns; rows of parts are
     * part_row apart, parts out rows. bias may be NULL. */
    void (*sum_parts)(const float *parts, int64_t part_row, int64_t count, int64_t out, int64_t columns,
                      const float *bias, float *sum);
    /* g = dy where y > 0, else 0, of so many rows of so many columns; dy may be g. sum: of each row of g. */
    void (*relu_backward_rows)(const float *dy, const float *y, float *g, float *sum, int64_t rows, int64_t columns);
} twi_point_loops;

extern const twi_point_loops twi_point_baseline, twi_point_avx2, twi_point_avx512, twi_point_avx512_bf16;

/* A block's sum of squares in f32, each element of a vector a few dozen terms, is exact to some 1e-7, if no square that
 * counts leaves the normal numbers; then it gives the block's root mean square. */
static inline bool twi_squares_hold(float sum) { return sum >= 0x1p-90f && sum <= 0x1p+120f; }
static inline float twi_block_of_squares(float sum) { return sqrtf(sum / TWI_UPDATE_BLOCK); }

/* Up to so many classes samples lie in the lanes of vectors, without scratch; beyond, a row fills vectors well enough by
 * itself: a softmax by AVX-512 of 48 classes takes as long either way, one of 33 two thirds in lanes. */
enum { TWI_FEW_CLASSES = 48 };
/* Scratch of a row of classes: whole vectors of the widest kind. */
static inline int64_t twi_classes_padded(int64_t classes) { return (classes + 15) / 16 * 16; }
/* Scratch of dropout, a byte an element: a sample's draws come in groups of 4, the loops make up to 32 at a time. */
enum { TWI_DROPOUT_SLACK = 64 };

#endif

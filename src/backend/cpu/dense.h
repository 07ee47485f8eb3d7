/* How an operand lies in memory: what an implementation asks before it takes a call. Axes of one element may have any
 * stride. */
#ifndef TWI_CPU_DENSE_H
#define TWI_CPU_DENSE_H

#include "backend/step.h"

/* One element after the other in logical order, the last axis fastest. */
static inline bool twi_is_row_major(const twi_operand *o) { return twi_shape_is_row_major(&o->shape, o->stride); }

/* Rows of a matrix side by side: the elements of each column one after the other. */
static inline bool twi_is_turned(const twi_operand *o) {
    return o->shape.rank == 2 && (o->stride[0] == 1 || o->shape.dim[0] == 1) &&
           (o->stride[1] == o->shape.dim[0] || o->shape.dim[1] == 1);
}

/* The same with axis 1, the channels, fastest of all: N,H,W,C. */
static inline bool twi_is_channels_last(const twi_operand *o) {
    twi_operand moved = *o;
    int last = o->shape.rank - 1;
    if (last < 1) return twi_is_row_major(o);
    for (int axis = 1; axis < last; axis++) {
        moved.shape.dim[axis] = o->shape.dim[axis + 1];
        moved.stride[axis] = o->stride[axis + 1];
    }
    moved.shape.dim[last] = o->shape.dim[1];
    moved.stride[last] = o->stride[1];
    return twi_is_row_major(&moved);
}

/* Is a real operand stored as plain f32? Other operands are never narrower. */
static inline bool twi_is_f32(const twi_operand *o) { return o->store != TWI_REAL || o->dtype == TW_F32; }

#endif

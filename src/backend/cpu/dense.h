/* How an operand lies in memory: what an implementation asks before it takes a call. Axes of one element may have any
 * stride. */
#ifndef TWI_CPU_DENSE_H
#define TWI_CPU_DENSE_H

#include "backend/step.h"

/* One element after the other in logical order, the last axis fastest. */
static inline bool twi_is_row_major(const twi_operand *o) { return twi_shape_is_row_major(&o->shape, o->stride); }

/* A matrix whose columns lie one after the other. */
static inline bool twi_is_column_major(const twi_operand *o) {
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

/* sum[j] of each column j of begin .. end-1 of a row-major matrix of f32. */
static inline void twi_sum_columns(const twi_operand *matrix, int64_t begin, int64_t end, float *restrict sum) {
    const int64_t rows = matrix->shape.dim[0], columns = matrix->shape.dim[1];
    const float *row = matrix->data;
    for (int64_t j = begin; j < end; j++) sum[j] = 0;
    for (int64_t i = 0; i < rows; i++, row += columns)
        for (int64_t j = begin; j < end; j++) sum[j] += row[j];
}

/* Is a real operand stored as plain f32? Other operands are never narrower. */
static inline bool twi_is_f32(const twi_operand *o) { return o->store != TWI_REAL || o->dtype == TW_F32; }

#endif

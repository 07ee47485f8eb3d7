/* Logical shapes (N,C,H,W order) with overflow-checked sizes. */
#ifndef TWI_BASE_SHAPE_H
#define TWI_BASE_SHAPE_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct twi_shape {
    int rank;
    int64_t dim[TW_MAX_RANK];
} twi_shape;

/* Checks rank and dims (>= 0) and that the element count times 8 bytes fits int64_t; `what` names the owner in the
 * message. */
tw_status twi_shape_check(const twi_shape *shape, const char *what);
/* Number of elements of a checked shape (1 for rank 0). */
int64_t twi_shape_count(const twi_shape *shape);
/* Elements from axis `axis` on: product of dim[axis..rank-1]. */
int64_t twi_shape_count_from(const twi_shape *shape, int axis);
bool twi_shape_equal(const twi_shape *a, const twi_shape *b);
/* Strides, in elements, of row-major order: the last axis fastest. */
void twi_shape_row_major(const twi_shape *shape, int64_t stride[TW_MAX_RANK]);
/* Do these strides mean row-major order? Axes of one element may have any stride. */
bool twi_shape_is_row_major(const twi_shape *shape, const int64_t stride[TW_MAX_RANK]);
/* "[64, 3, 32, 32]" into a caller's buffer; returns the buffer. */
#define TWI_SHAPE_TEXT 160
const char *twi_shape_text(const twi_shape *shape, char text[TWI_SHAPE_TEXT]);

#ifdef __cplusplus
}
#endif
#endif

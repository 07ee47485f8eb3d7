/* Shapes: checked once, then plain arithmetic that cannot overflow. What the axes mean is left to the owners. */
#include "shape.h"

#include <inttypes.h>
#include <stdio.h>

tw_status twi_shape_check(const twi_shape *shape, const char *what) {
    if (shape->rank < 0 || shape->rank > TW_MAX_RANK)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: rank %d, expected 0 to %d axes", what, shape->rank, TW_MAX_RANK);
    /* An axis of 0 counts as 1 here: it makes the tensor empty, but the strides of the axes before it must fit as
     * well. */
    int64_t limit = INT64_MAX / 8;
    for (int axis = 0; axis < shape->rank; axis++) {
        int64_t dim = shape->dim[axis];
        if (dim < 0)
            return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: axis %d is %" PRId64 ", expected 0 or more", what, axis, dim);
        if (dim > limit) {
            char text[TWI_SHAPE_TEXT];
            return TWI_FAIL(TW_ERROR_OVERFLOW, "%s: %s has more elements than can be addressed; check the dims", what,
                            twi_shape_text(shape, text));
        }
        if (dim > 1) limit /= dim;
    }
    return TW_OK;
}

int64_t twi_shape_count(const twi_shape *shape) { return twi_shape_count_from(shape, 0); }

int64_t twi_shape_count_from(const twi_shape *shape, int axis) {
    int64_t count = 1;
    for (; axis < shape->rank; axis++) count *= shape->dim[axis];
    return count;
}

bool twi_shape_equal(const twi_shape *a, const twi_shape *b) {
    if (a->rank != b->rank) return false;
    for (int axis = 0; axis < a->rank; axis++)
        if (a->dim[axis] != b->dim[axis]) return false;
    return true;
}

void twi_shape_row_major(const twi_shape *shape, int64_t stride[TW_MAX_RANK]) {
    int64_t step = 1;
    for (int axis = shape->rank - 1; axis >= 0; axis--) {
        stride[axis] = step;
        step *= shape->dim[axis];
    }
}

bool twi_shape_is_row_major(const twi_shape *shape, const int64_t stride[TW_MAX_RANK]) {
    int64_t step = 1;
    for (int axis = shape->rank - 1; axis >= 0; axis--) {
        if (shape->dim[axis] != 1 && stride[axis] != step) return false;
        step *= shape->dim[axis];
    }
    return true;
}

const char *twi_shape_text(const twi_shape *shape, char text[TWI_SHAPE_TEXT]) {
    /* Room for the longest: six numbers of 20 characters, separators and brackets. */
    int length = snprintf(text, TWI_SHAPE_TEXT, "[");
    for (int axis = 0; axis < shape->rank && axis < TW_MAX_RANK; axis++)
        length += snprintf(text + length, (size_t)(TWI_SHAPE_TEXT - length), "%s%" PRId64, axis ? ", " : "",
                           shape->dim[axis]);
    snprintf(text + length, (size_t)(TWI_SHAPE_TEXT - length), "]");
    return text;
}

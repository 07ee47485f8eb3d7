/* reshape.copy: the same elements in logical order, from or to images whose channels are innermost. */
#include "dense.h"
#include "loops.h"
#include <string.h>

/* to[j][i] = from[i][j] for rows x columns of `from`, in tiles whose lines stay in the cache. */
static void copy_transposed(float *to, const float *from, int64_t rows, int64_t columns) {
    enum { TILE = 16 };
    for (int64_t row = 0; row < rows; row += TILE) {
        int64_t row_end = row + TILE < rows ? row + TILE : rows;
        for (int64_t column = 0; column < columns; column += TILE) {
            int64_t column_end = column + TILE < columns ? column + TILE : columns;
            for (int64_t j = column; j < column_end; j++) {
                for (int64_t i = row; i < row_end; i++) to[j * rows + i] = from[i * columns + j];
            }
        }
    }
}

static void reshape_copy(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    const float *from = x->data;
    float *to = y->data;
    int64_t samples = x->shape.dim[0], count = twi_sample_count(x);
    bool x_logical = twi_is_row_major(x), y_logical = twi_is_row_major(y);
    if (x_logical == y_logical) { /* taken only if the order is the same */
        memcpy(to, from, (size_t)(samples * count) * sizeof(float));
        return;
    }
    for (int64_t n = 0; n < samples; n++, from += count, to += count) {
        if (y_logical)
            copy_transposed(to, from, count / x->shape.dim[1], x->shape.dim[1]);
        else
            copy_transposed(to, from, y->shape.dim[1], count / y->shape.dim[1]);
    }
}

/* A copy in logical order between two shapes and layouts. Formula: src/ops/op_reshape.c. */
#include "entries.h"
#include "space.cuh"

namespace {

enum { MEMORY, LOGICAL, VIEWS };

template <class T> __global__ void copy(const T *x, twk_space<VIEWS> from, T *y, twk_space<VIEWS> to) {
    int64_t index = twk_thread(), x_at[VIEWS], y_at[VIEWS];
    if (index >= to.count) return;
    from.offsets(index, x_at);
    to.offsets(index, y_at);
    y[y_at[MEMORY]] = x[x_at[MEMORY]];
}

twk_space<VIEWS> in_logical_order(const twi_operand *o) {
    twk_view views[VIEWS] = {twk_view_of(o), {{0}}};
    twi_shape_row_major(&o->shape, views[LOGICAL].stride);
    return twk_space_of<VIEWS>(&o->shape, 0, -1, views, LOGICAL);
}

template <class T> cudaError_t run_copy(const twi_call *call, const twk_launch *launch) {
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    twk_space<VIEWS> from = in_logical_order(x), to = in_logical_order(y);
    if (to.count == 0) return cudaSuccess;
    return TWC_LAUNCH(copy<T>, twk_blocks(to.count), TWK_THREADS, 0, launch->stream, (const T *)x->data, from,
                      (T *)y->data, to);
}

} // namespace

extern "C" const twk_entry twk_reshape_entries[] = {
    {"reshape.copy", NULL, NULL, TWK_TYPED(run_copy)},
    {},
};

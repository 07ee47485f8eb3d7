/* Softmax over the classes of each sample, and its gradient. Formulas: src/ops/op_softmax.c. */
#include "entries.h"
#include "rows.cuh"

namespace {

template <class T> struct forward {
    twk_matrix<const T> x;
    twk_matrix<T> y;
    template <int TEAM> __device__ void row(twk_team<TEAM> team, int64_t rows, int64_t classes) const {
        float largest, sum;
        twk_row_scale(team, x, rows, classes, &largest, &sum);
        if (team.row >= rows) return;
        for (int64_t c = team.lane; c < classes; c += TEAM)
            *y.at(team.row, c) = twk_element<T>(expf(twk_float(*x.at(team.row, c)) - largest) / sum);
    }
};

template <class T> struct backward {
    twk_matrix<const T> dy, y;
    twk_matrix<T> dx;
    template <int TEAM> __device__ void row(twk_team<TEAM> team, int64_t rows, int64_t classes) const {
        bool live = team.row < rows;
        float mean = 0; /* of dy under the probabilities y */
        for (int64_t c = team.lane; live && c < classes; c += TEAM)
            mean += twk_float(*dy.at(team.row, c)) * twk_float(*y.at(team.row, c));
        mean = team.join(mean, twk_add());
        for (int64_t c = team.lane; live && c < classes; c += TEAM)
            *dx.at(team.row, c) =
                twk_element<T>(twk_float(*y.at(team.row, c)) * (twk_float(*dy.at(team.row, c)) - mean));
    }
};

template <class T> cudaError_t run_forward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const forward<T> f = {twk_matrix_of<const T>(&o[0]), twk_matrix_of<T>(&o[1])};
    return twk_over_rows(launch, f, o[0].shape.dim[0], o[0].shape.dim[1]);
}

template <class T> cudaError_t run_backward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const backward<T> f = {twk_matrix_of<const T>(&o[0]), twk_matrix_of<const T>(&o[1]), twk_matrix_of<T>(&o[2])};
    return twk_over_rows(launch, f, o[1].shape.dim[0], o[1].shape.dim[1]);
}

} // namespace

extern "C" const twk_entry twk_softmax_entries[] = {
    {"softmax.forward", NULL, NULL, TWK_TYPED(run_forward)},
    {"softmax.backward", NULL, NULL, TWK_TYPED(run_backward)},
    {},
};

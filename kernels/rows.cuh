/* Kernels over the rows of [N, classes]: a team of threads a row, as wide as the row is worth. */
#ifndef TWK_ROWS_CUH
#define TWK_ROWS_CUH

#include "reduce.cuh"

/* A matrix in memory, of any element type and strides. */
template <class T> struct twk_matrix {
    T *data;
    int64_t row, column; /* strides */
    __device__ T *at(int64_t n, int64_t c) const { return data + n * row + c * column; }
};
template <class T> twk_matrix<T> twk_matrix_of(const twi_operand *o) {
    twk_matrix<T> matrix = {(T *)o->data, o->stride[0], o->shape.rank > 1 ? o->stride[1] : 0};
    return matrix;
}

/* TEAM is a power of two up to a warp, or a whole block. Loops over a row: for (c = team.lane; c < classes; c += TEAM). */
template <int TEAM> struct twk_team {
    static constexpr int ROWS = TWK_THREADS / TEAM;
    int lane;
    int64_t row; /* may lie beyond the last: every thread must come to every join */
    __device__ twk_team() : lane(threadIdx.x % TEAM), row((int64_t)blockIdx.x * ROWS + threadIdx.x / TEAM) {}
    /* All threads of the team get the result. */
    template <class V, class Join> __device__ V join(V value, Join with) const {
        if constexpr (TEAM == TWK_THREADS)
            return twk_block_join(value, with);
        else
            return twk_warp_join<TEAM>(value, with);
    }
};

enum { TWK_TEAM_SMALL = 4, TWK_TEAM_WARP = TWK_WARP, TWK_TEAM_BLOCK = TWK_THREADS };
inline int twk_team_of(int64_t classes) {
    return classes <= 32 ? TWK_TEAM_SMALL : classes <= 2048 ? TWK_TEAM_WARP : TWK_TEAM_BLOCK;
}
inline unsigned twk_row_blocks(int64_t rows, int64_t classes) {
    return (unsigned)twk_ceil(rows, TWK_THREADS / twk_team_of(classes));
}

/* One block a multiprocessor is all that is asked for: with more in mind the compiler spills on some architectures. A row
 * functor F has: template <int TEAM> __device__ void row(twk_team<TEAM>, int64_t rows, int64_t classes). */
template <int TEAM, class F>
__global__ void __launch_bounds__(TWK_THREADS, 1) twk_rows_kernel(F f, int64_t rows, int64_t classes) {
    f.row(twk_team<TEAM>(), rows, classes);
}

template <class F> cudaError_t twk_over_rows(const twk_launch *launch, const F &f, int64_t rows, int64_t classes) {
    void (*kernel)(F, int64_t, int64_t) = twk_rows_kernel<TWK_TEAM_BLOCK, F>;
    if (twk_team_of(classes) == TWK_TEAM_SMALL) kernel = twk_rows_kernel<TWK_TEAM_SMALL, F>;
    if (twk_team_of(classes) == TWK_TEAM_WARP) kernel = twk_rows_kernel<TWK_TEAM_WARP, F>;
    if (rows == 0) return cudaSuccess;
    return TWC_LAUNCH(kernel, twk_row_blocks(rows, classes), TWK_THREADS, 0, launch->stream, f, rows, classes);
}

/* ---- softmax of a row, shared by softmax and the losses ---- */

/* Largest element and sum of exp(x - largest). */
template <int TEAM, class T>
__device__ inline void twk_row_scale(twk_team<TEAM> team, twk_matrix<const T> x, int64_t rows, int64_t classes,
                                     float *largest, float *sum) {
    float most = -INFINITY, total = 0;
    bool live = team.row < rows;
    for (int64_t c = team.lane; live && c < classes; c += TEAM) most = fmaxf(most, twk_float(*x.at(team.row, c)));
    most = team.join(most, twk_larger());
    for (int64_t c = team.lane; live && c < classes; c += TEAM) total += expf(twk_float(*x.at(team.row, c)) - most);
    *largest = most;
    *sum = team.join(total, twk_add());
}

#endif

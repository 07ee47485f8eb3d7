/* Which class the logits put first, and how many they put ahead of the labelled one. Formulas: src/ops/op_argmax.c,
 * op_class_rank.c. */
#include "entries.h"
#include "rows.cuh"

namespace {

/* ---- argmax ---- */

struct larger_key {
    __device__ long long operator()(long long a, long long b) const { return a > b ? a : b; }
};

/* Orders (value, class): larger values first, of equal ones the lower class. */
__device__ inline long long key_of(float value, int64_t c) {
    int bits = __float_as_int(value + 0.0f); /* -0 and 0 are equal */
    if (bits < 0) bits ^= 0x7fffffff;
    return (long long)bits * ((long long)1 << 32) + (0xffffffffll - c);
}
__device__ inline int32_t class_of(long long key) { return (int32_t)(0xffffffffll - (key & 0xffffffffll)); }

template <class T> struct argmax {
    twk_matrix<const T> x;
    twk_matrix<int32_t> y;
    template <int TEAM> __device__ void row(twk_team<TEAM> team, int64_t rows, int64_t classes) const {
        bool live = team.row < rows;
        long long best = (long long)(-0x7fffffffffffffffll);
        int nan = 0;
        for (int64_t c = team.lane; live && c < classes; c += TEAM) {
            float value = twk_float(*x.at(team.row, c));
            long long key = key_of(value, c);
            nan |= value != value;
            if (key > best) best = key;
        }
        best = team.join(best, larger_key());
        nan = team.join(nan, twk_either());
        if (live && team.lane == 0) *y.at(team.row, 0) = nan ? -1 : class_of(best);
    }
};

template <class T> cudaError_t run_argmax(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const argmax<T> f = {twk_matrix_of<const T>(&o[0]), twk_matrix_of<int32_t>(&o[1])};
    return twk_over_rows(launch, f, o[0].shape.dim[0], o[0].shape.dim[1]);
}

/* ---- class_rank ---- */

template <class T> struct class_rank {
    twk_matrix<const T> x;
    twk_matrix<const int32_t> labels;
    twk_matrix<int32_t> rank;
    template <int TEAM> __device__ void row(twk_team<TEAM> team, int64_t rows, int64_t classes) const {
        bool live = team.row < rows;
        int64_t label = live ? *labels.at(team.row, 0) : -1;
        bool valid = label >= 0 && label < classes;
        float own = valid ? twk_float(*x.at(team.row, label)) : 0;
        int ahead = 0, nan = 0;
        for (int64_t c = team.lane; valid && c < classes; c += TEAM) {
            float value = twk_float(*x.at(team.row, c));
            nan |= value != value;
            ahead += value > own || (value == own && c < label);
        }
        ahead = team.join(ahead, twk_add());
        nan = team.join(nan, twk_either());
        if (live && team.lane == 0) *rank.at(team.row, 0) = nan || !valid ? (int32_t)classes : ahead;
    }
};

template <class T> cudaError_t run_class_rank(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const class_rank<T> f = {twk_matrix_of<const T>(&o[0]), twk_matrix_of<const int32_t>(&o[1]),
                             twk_matrix_of<int32_t>(&o[2])};
    return twk_over_rows(launch, f, o[0].shape.dim[0], o[0].shape.dim[1]);
}

} // namespace

extern "C" const twk_entry twk_argmax_entries[] = {
    {"argmax.forward", NULL, NULL, TWK_TYPED(run_argmax)},
    {"class_rank.forward", NULL, NULL, TWK_TYPED(run_class_rank)},
    {},
};

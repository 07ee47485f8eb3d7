/* A streamed input, taken from the slot whose turn it is. Formula: src/ops/op_feed.c. */
#include "entries.h"
#include "space.cuh"

namespace {

enum { SLOT0, SLOT1, X, VIEWS };

/* A thread copies as many elements as fit into 16 bytes: at once if all three lie without gaps and aligned. */
template <class T>
__global__ void take(const twi_control *control, const T *slot0, const T *slot1, T *x, twk_space<VIEWS> space,
                     bool words) {
    typedef twk_word<T> word;
    const int64_t first = twk_thread() * word::COUNT;
    const bool second = control->slot != 0;
    const T *slot = second ? slot1 : slot0;
    if (words && space.count - first >= word::COUNT) {
        *reinterpret_cast<word *>(x + first) = *reinterpret_cast<const word *>(slot + first);
        return;
    }
    for (int64_t i = first; i < first + word::COUNT && i < space.count; i++) {
        int64_t at[VIEWS];
        space.offsets(i, at);
        x[at[X]] = slot[second ? at[SLOT1] : at[SLOT0]];
    }
}

/* Values come in f32. */
template <class T>
__global__ void round_values(const twi_control *control, const float *slot0, const float *slot1, T *x,
                             twk_space<VIEWS> space) {
    const int64_t i = twk_thread();
    if (i >= space.count) return;
    int64_t at[VIEWS];
    space.offsets(i, at);
    x[at[X]] = twk_element<T>(control->slot != 0 ? slot1[at[SLOT1]] : slot0[at[SLOT0]]);
}

template <class T> cudaError_t run_rounded(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    twk_view views[VIEWS];
    for (int v = 0; v < VIEWS; v++) views[v] = twk_view_of(&o[v]);
    const twk_space<VIEWS> space = twk_space_of<VIEWS>(&o[X].shape, 0, -1, views, X);
    if (space.count == 0) return cudaSuccess;
    return TWC_LAUNCH(round_values<T>, twk_blocks(space.count), TWK_THREADS, 0, launch->stream, call->control,
                      (const float *)o[SLOT0].data, (const float *)o[SLOT1].data, (T *)o[X].data, space);
}

template <class T> cudaError_t run(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    twk_view views[VIEWS];
    for (int v = 0; v < VIEWS; v++) views[v] = twk_view_of(&o[v]);
    const twk_space<VIEWS> space = twk_space_of<VIEWS>(&o[X].shape, 0, -1, views, X);
    bool words = space.rank == 1;
    for (int v = 0; v < VIEWS; v++)
        words = words && space.stride[v][0] == 1 && twk_aligned(o[v].data, TWK_PACK_ALIGNMENT);
    if (space.count == 0) return cudaSuccess;
    return TWC_LAUNCH(take<T>, twk_blocks(twk_ceil(space.count, twk_word<T>::COUNT)), TWK_THREADS, 0, launch->stream,
                      call->control, (const T *)o[SLOT0].data, (const T *)o[SLOT1].data, (T *)o[X].data, space, words);
}

} // namespace

extern "C" const twk_entry twk_feed_entries[] = {
    {"feed.values", NULL, NULL, twk_run_typed<run<float>, run_rounded<__half>, run_rounded<__nv_bfloat16>>},
    {"feed.labels", NULL, NULL, run<int32_t>},
    {},
};

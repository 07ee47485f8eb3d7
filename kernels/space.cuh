/* Walking over the elements of several operands that share a shape but not a layout: axes are put in the order of memory
 * and joined where all operands allow it, so that dense operands of one layout become a single axis. */
#ifndef TWK_SPACE_CUH
#define TWK_SPACE_CUH

#include "elements.cuh"

/* ---- division of numbers below 2^63 by one that many threads share, without dividing: Granlund, Montgomery, "Division by
 * invariant integers using multiplication", PLDI 1994 ---- */

__extension__ typedef unsigned __int128 twk_wide;

typedef struct twk_divisor {
    int64_t value;
    uint64_t multiplier;
    int shift;
} twk_divisor;

inline twk_divisor twk_divisor_of(int64_t value) {
    twk_divisor d = {value, 0, 0};
    while (d.shift < 63 && ((uint64_t)1 << d.shift) < (uint64_t)value) d.shift++;
    twk_wide above = ((uint64_t)1 << d.shift) - (uint64_t)value;
    d.multiplier = (uint64_t)((above << 64) / (uint64_t)value + 1);
    return d;
}

/* index / d, and what remains in *rest. */
__device__ inline int64_t twk_divide(twk_divisor d, int64_t index, int64_t *rest) {
    int64_t quotient = (int64_t)((__umul64hi((uint64_t)index, d.multiplier) + (uint64_t)index) >> d.shift);
    *rest = index - quotient * d.value;
    return quotient;
}

/* ---- spaces ---- */

/* Strides of an operand in a space, beside its shape: in elements, or in bits. */
typedef struct twk_view {
    int64_t stride[TW_MAX_RANK];
} twk_view;

inline twk_view twk_view_of(const twi_operand *o) {
    twk_view view = {{0}};
    for (int axis = 0; axis < o->shape.rank; axis++) view.stride[axis] = o->stride[axis];
    return view;
}
/* The bits of a mask: a sample starts on a byte. */
inline twk_view twk_view_of_bits(const twi_operand *mask) {
    twk_view view = twk_view_of(mask);
    view.stride[0] = 8 * twi_bits_bytes(twi_sample_count(mask));
    return view;
}
/* One number a channel, for all else the same. */
inline twk_view twk_view_of_channels(int64_t stride) {
    twk_view view = {{0, stride}};
    return view;
}

template <int VIEWS> struct twk_space {
    int rank;
    int64_t count;                /* elements */
    twk_divisor dim[TW_MAX_RANK]; /* fastest axis first */
    int64_t stride[VIEWS][TW_MAX_RANK];

    __device__ void offsets(int64_t index, int64_t offset[VIEWS]) const {
#pragma unroll
        for (int v = 0; v < VIEWS; v++) offset[v] = 0;
        int64_t rest = index;
        for (int axis = 0; axis < rank; axis++) {
            int64_t at = rest;
            if (axis + 1 < rank) rest = twk_divide(dim[axis], rest, &at);
#pragma unroll
            for (int v = 0; v < VIEWS; v++) offset[v] += at * stride[v][axis];
        }
    }
};

/* Of the axes first..last-1 of a shape, but not `without` (-1: all), in the order of view `lead`. */
template <int VIEWS>
twk_space<VIEWS> twk_space_of(const twi_shape *shape, int first, int without, const twk_view *views, int lead) {
    twk_space<VIEWS> space = {};
    int order[TW_MAX_RANK];
    space.count = 1;
    for (int axis = first; axis < shape->rank; axis++) {
        if (axis == without || shape->dim[axis] == 1) continue;
        int at = space.rank++;
        for (; at > 0 && views[lead].stride[order[at - 1]] > views[lead].stride[axis]; at--) order[at] = order[at - 1];
        order[at] = axis;
        space.count *= shape->dim[axis];
    }
    int rank = 0;
    for (int i = 0; i < space.rank; i++) {
        int64_t size = shape->dim[order[i]];
        bool joins = rank > 0;
        for (int v = 0; v < VIEWS && joins; v++)
            joins = views[v].stride[order[i]] == space.stride[v][rank - 1] * space.dim[rank - 1].value;
        if (joins) {
            space.dim[rank - 1].value *= size;
            continue;
        }
        for (int v = 0; v < VIEWS; v++) space.stride[v][rank] = views[v].stride[order[i]];
        space.dim[rank++].value = size;
    }
    space.rank = rank;
    for (int i = 0; i < rank; i++) space.dim[i] = twk_divisor_of(space.dim[i].value);
    return space;
}

/* Do a view's packs lie side by side, aligned: along the fastest axis, or all the same number? */
template <int VIEWS> bool twk_view_packs(const twk_space<VIEWS> &space, int view, const void *data) {
    if (space.rank == 0 || space.stride[view][0] > 1) return false;
    bool broadcast = space.stride[view][0] == 0;
    for (int axis = 1; axis < space.rank; axis++)
        if (!broadcast && space.stride[view][axis] % TWK_PACK != 0) return false;
    return broadcast || twk_aligned(data, TWK_PACK_ALIGNMENT);
}

#endif

/* Sums and the like in a fixed order, within a warp and within a block. Results of blocks are added in combine.cuh. */
#ifndef TWK_REDUCE_CUH
#define TWK_REDUCE_CUH

#include "elements.cuh"

enum { TWK_WARP = 32 };
#define TWK_ALL_LANES 0xffffffffu

struct twk_add {
    template <class V> __device__ V operator()(V a, V b) const { return a + b; }
};
struct twk_larger { /* not-a-number is passed over */
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct twk_smaller {
    __device__ long long operator()(long long a, long long b) const { return a < b ? a : b; }
};
struct twk_either {
    __device__ int operator()(int a, int b) const { return a | b; }
};

/* Of each LANES lanes that follow each other; all of them get it, and every lane of the warp calls it. */
template <int LANES, class V, class Join> __device__ inline V twk_warp_join(V value, Join join) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) value = join(value, __shfl_xor_sync(TWK_ALL_LANES, value, step));
    return value;
}

/* All threads of a block of TWK_THREADS get the result; every thread calls it. */
template <class V, class Join> __device__ inline V twk_block_join(V value, Join join) {
    TWC_SHARED(V, part, [TWK_THREADS / TWK_WARP]);
    value = twk_warp_join<TWK_WARP>(value, join);
    __syncthreads(); /* the part of an earlier call has been read */
    if (threadIdx.x % TWK_WARP == 0) part[threadIdx.x / TWK_WARP] = value;
    __syncthreads();
    V joined = part[0];
#pragma unroll
    for (int warp = 1; warp < TWK_THREADS / TWK_WARP; warp++) joined = join(joined, part[warp]);
    return joined;
}

#endif

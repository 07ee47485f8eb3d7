/* Plain matrix products in tiles of shared memory: sum over k of left(m,k) * right(k,n). What m, k and n are, and how an
 * element is found, is a problem's own: dense layers and convolutions are such problems. Made to be right on any shape, where
 * no library takes a product; not to be the fastest.
 *
 * A problem P has rows, columns, depth (int64_t), and on the device, for group g:
 *   LEFT_ALONG_DEPTH, RIGHT_ALONG_DEPTH   does k run fastest in memory?
 *   float left(g, m, k), float right(g, k, n), void store(g, m, n, float sum, slice) */
#ifndef TWK_TILE_CUH
#define TWK_TILE_CUH

#include "elements.cuh"

enum { TWK_TILE = 64, TWK_TILE_DEPTH = 16, TWK_TILE_EACH = 4, TWK_TILE_SIDE = TWK_TILE / TWK_TILE_EACH };

/* Which of the elements of a tile, TWK_TILE along one side, a thread brings: neighbours bring what lies side by side. */
__device__ inline void twk_tile_place(int i, bool along_depth, int *side, int *depth) {
    int element = i * TWK_THREADS + threadIdx.x;
    *depth = along_depth ? element % TWK_TILE_DEPTH : element / TWK_TILE;
    *side = along_depth ? element / TWK_TILE_DEPTH : element % TWK_TILE;
}

/* Grid x: tiles of rows, y: tiles of columns, z: groups x slices of the depth. */
template <class P>
__global__ void __launch_bounds__(TWK_THREADS) twk_tile_kernel(P p, int64_t slice_depth, int slices) {
    TWC_SHARED(float, left, [TWK_TILE_DEPTH][TWK_TILE + 1]);
    TWC_SHARED(float, right, [TWK_TILE_DEPTH][TWK_TILE + 1]);
    int64_t first_row = (int64_t)blockIdx.x * TWK_TILE, first_column = (int64_t)blockIdx.y * TWK_TILE;
    int group = blockIdx.z / slices, slice = blockIdx.z % slices;
    int x = threadIdx.x % TWK_TILE_SIDE, y = threadIdx.x / TWK_TILE_SIDE;
    int64_t begin = slice * slice_depth, end = begin + slice_depth < p.depth ? begin + slice_depth : p.depth;
    float sum[TWK_TILE_EACH][TWK_TILE_EACH] = {};
    for (int64_t k = begin; k < end; k += TWK_TILE_DEPTH) {
#pragma unroll
        for (int i = 0; i < TWK_TILE * TWK_TILE_DEPTH / TWK_THREADS; i++) {
            int side, depth;
            twk_tile_place(i, P::LEFT_ALONG_DEPTH, &side, &depth);
            bool there = first_row + side < p.rows && k + depth < end;
            left[depth][side] = there ? p.left(group, first_row + side, k + depth) : 0;
            twk_tile_place(i, P::RIGHT_ALONG_DEPTH, &side, &depth);
            there = first_column + side < p.columns && k + depth < end;
            right[depth][side] = there ? p.right(group, k + depth, first_column + side) : 0;
        }
        __syncthreads();
#pragma unroll
        for (int depth = 0; depth < TWK_TILE_DEPTH; depth++)
#pragma unroll
            for (int i = 0; i < TWK_TILE_EACH; i++)
#pragma unroll
                for (int j = 0; j < TWK_TILE_EACH; j++)
                    sum[i][j] += left[depth][y + i * TWK_TILE_SIDE] * right[depth][x + j * TWK_TILE_SIDE];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TWK_TILE_EACH; i++)
#pragma unroll
        for (int j = 0; j < TWK_TILE_EACH; j++) {
            int64_t m = first_row + y + i * TWK_TILE_SIDE, n = first_column + x + j * TWK_TILE_SIDE;
            if (m < p.rows && n < p.columns) p.store(group, m, n, sum[i][j], slice);
        }
}

template <class P> cudaError_t twk_tile_product(const twk_launch *launch, const P &p, int groups, int slices) {
    const dim3 grid((unsigned)twk_ceil(p.rows, TWK_TILE), (unsigned)twk_ceil(p.columns, TWK_TILE),
                    (unsigned)(groups * slices));
    if (p.rows * p.columns * groups == 0) return cudaSuccess;
    int64_t depth = twk_ceil(twk_ceil(p.depth, slices), TWK_TILE_DEPTH) * TWK_TILE_DEPTH;
    return TWC_LAUNCH(twk_tile_kernel<P>, grid, TWK_THREADS, 0, launch->stream, p, depth, slices);
}

/* What a launch's grid can hold. */
inline const char *twk_tile_refusal(int64_t columns, int64_t groups_and_slices) {
    if (twk_ceil(columns, TWK_TILE) > 65535) return "the product is wider than a grid";
    return groups_and_slices > 65535 ? "there are more groups than a grid holds" : NULL;
}

#endif

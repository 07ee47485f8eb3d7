/* Partial sums that slices of a reduction left in the workspace are added in the order of the slices, whose number shapes
 * alone decide: so no sum depends on the device or on timing. */
#ifndef TWK_COMBINE_CUH
#define TWK_COMBINE_CUH

#include "elements.cuh"

enum { TWK_COMBINE_COLUMNS = 32, TWK_COMBINE_ROWS = TWK_THREADS / TWK_COMBINE_COLUMNS };

template <class T>
static __global__ void __launch_bounds__(TWK_THREADS)
    twk_combine_kernel(const float *parts, int slices, int64_t columns, T *sums) {
    TWC_SHARED(float, part, [TWK_COMBINE_ROWS][TWK_COMBINE_COLUMNS]);
    int x = threadIdx.x % TWK_COMBINE_COLUMNS, y = threadIdx.x / TWK_COMBINE_COLUMNS;
    int64_t column = (int64_t)blockIdx.x * TWK_COMBINE_COLUMNS + x;
    float sum = 0;
    if (column < columns)
        for (int slice = y; slice < slices; slice += TWK_COMBINE_ROWS) sum += parts[slice * columns + column];
    part[y][x] = sum;
    __syncthreads();
    if (y > 0 || column >= columns) return;
    for (int row = 1; row < TWK_COMBINE_ROWS; row++) sum += part[row][x];
    sums[column] = twk_element<T>(sum);
}

/* sums[column] of parts [slices, columns], rounded at the end if T is a half. */
template <class T>
cudaError_t twk_combine(const twk_launch *launch, const float *parts, int slices, int64_t columns, T *sums) {
    return TWC_LAUNCH(twk_combine_kernel<T>, (unsigned)twk_ceil(columns, TWK_COMBINE_COLUMNS), TWK_THREADS, 0,
                      launch->stream, parts, slices, columns, sums);
}

#endif

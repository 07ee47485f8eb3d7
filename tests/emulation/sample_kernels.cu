/* See sample_kernels.h. A planted defect is chosen when the kernel is launched, so that one build serves for all. */
#include "portable.h"

#include "sample_kernels.h"

__global__ void bias_relu(float *__restrict__ y, const float *__restrict__ x, const float *__restrict__ bias, int rows,
                          int columns, sample_defect defect) {
    int quads = rows * columns / 4 + (defect == SAMPLE_PAST_GLOBAL), row_quads = columns / 4;
    const float4 *x4 = reinterpret_cast<const float4 *>(x + (defect == SAMPLE_MISALIGNED));
    const float4 *bias4 = reinterpret_cast<const float4 *>(bias);
    float4 *y4 = reinterpret_cast<float4 *>(y);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < quads) {
        float4 v = __ldg(x4 + i), b = bias4[i % row_quads];
        v.x = fmaxf(v.x + b.x, 0.f);
        v.y = fmaxf(v.y + b.y, 0.f);
        v.z = fmaxf(v.z + b.z, 0.f);
        v.w = fmaxf(v.w + b.w, 0.f);
        y4[i] = v;
    }
}

__global__ void bias_relu_f16(__half *__restrict__ y, const __half *__restrict__ x, const __half *__restrict__ bias,
                              int rows, int columns) {
    int pairs = rows * columns / 2, row_pairs = columns / 2;
    const __half2 *x2 = reinterpret_cast<const __half2 *>(x), *bias2 = reinterpret_cast<const __half2 *>(bias);
    __half2 *y2 = reinterpret_cast<__half2 *>(y);
    const __half2 zero = __floats2half2_rn(0.f, 0.f);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += gridDim.x * blockDim.x)
        y2[i] = __hmax2(__hadd2(x2[i], bias2[i % row_pairs]), zero);
}

struct Largest {
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
    static __device__ __forceinline__ float none() { return -INFINITY; }
};
struct Sum {
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
    static __device__ __forceinline__ float none() { return 0.f; }
};

template <class Combine> __device__ __forceinline__ float over_warp(float v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v = Combine::of(v, __shfl_xor_sync(0xffffffffu, v, distance));
    return v;
}

/* Over the block, whose size is a multiple of 32; every thread gets the result. */
template <class Combine> __device__ float over_block(float v, float *part, sample_defect defect) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    __syncthreads(); /* part may still be in use */
    v = over_warp<Combine>(v);
    if (lane == 0) part[warp + (defect == SAMPLE_PAST_STATIC_SHARED ? 32 : 0)] = v;
    if (defect != SAMPLE_NO_BARRIER) __syncthreads();
    v = lane < warps || defect == SAMPLE_UNWRITTEN_SHARED ? part[lane] : Combine::none();
    return over_warp<Combine>(v);
}

__global__ void cross_entropy(float *__restrict__ loss, float *__restrict__ dx, const float *__restrict__ x,
                              const int *__restrict__ label, int columns, float scale, sample_defect defect) {
    TWC_DYNAMIC_SHARED(float, row);
    TWC_SHARED(float, part, [32]);
    x += static_cast<size_t>(blockIdx.x) * columns;
    dx += static_cast<size_t>(blockIdx.x) * columns;
    if (defect == SAMPLE_EARLY_EXIT && threadIdx.x == 7) return;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        row[i] = x[i];
        largest = fmaxf(largest, row[i]);
    }
    if (defect == SAMPLE_PAST_DYNAMIC_SHARED && threadIdx.x == 0) row[columns] = 0.f;
    if (defect == SAMPLE_DIVERGENT_SHUFFLE && threadIdx.x < 13) largest = over_warp<Largest>(largest);
    largest = over_block<Largest>(largest, part, SAMPLE_CORRECT);
    float sum = 0.f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        row[i] = __expf(row[i] - largest);
        sum += row[i];
    }
    sum = over_block<Sum>(sum, part, defect);
    int wanted = label[blockIdx.x];
    if (threadIdx.x == 0) {
        loss[blockIdx.x] = __logf(sum) + largest - x[wanted];
        if (defect == SAMPLE_DIVERGENT_BARRIER) __syncthreads();
    }
    for (int i = threadIdx.x; i < columns; i += blockDim.x) dx[i] = scale * (row[i] / sum - (i == wanted ? 1.f : 0.f));
}

/* Grid (channels, parts). */
__global__ void moments(float *__restrict__ sum, float *__restrict__ square, const float *__restrict__ x, int samples,
                        int channels, int pixels, sample_defect defect) {
    TWC_SHARED(float, part, [2][32]);
    int c = blockIdx.x;
    float s = 0.f, q = 0.f;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < samples * pixels; i += gridDim.y * blockDim.x) {
        float v = x[(static_cast<size_t>(i / pixels) * channels + c) * pixels + i % pixels];
        s += v;
        q += v * v;
    }
    s = over_block<Sum>(s, part[0], SAMPLE_CORRECT);
    q = over_block<Sum>(q, part[1], SAMPLE_CORRECT);
    if (threadIdx.x == 0) {
        if (defect == SAMPLE_NO_ATOMIC)
            sum[c] += s;
        else
            atomicAdd(&sum[c], s);
        atomicAdd(&square[c], q);
    }
}

__global__ void reverse(float *__restrict__ y, const float *__restrict__ x, sample_defect defect) {
    TWC_SHARED(float, tile, [8][32]);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[warp][lane] = x[i];
    if (defect != SAMPLE_NO_WARP_SYNC) __syncwarp();
    y[i] = tile[warp][31 - lane];
}

__global__ void meetings(int *out) {
    int i = threadIdx.x, lane = i & 31;
    const unsigned all = 0xffffffffu;
    int results[] = {
        __shfl_sync(all, i, 5),
        __shfl_up_sync(all, i, 3),
        __shfl_down_sync(all, i, 3, 8),
        static_cast<int>(__ballot_sync(all, lane % 3 == 0)),
        __any_sync(all, lane == 31) * 2 + __all_sync(all, lane < 31),
        static_cast<int>(__reduce_add_sync(all, static_cast<unsigned>(i))),
        __syncthreads_count(i % 5 == 0),
        __syncthreads_or(i == 63) * 2 + __syncthreads_and(i != 63),
        static_cast<int>(__reduce_max_sync(all, static_cast<unsigned>(i)) * 256 + __reduce_min_sync(all, i + 1u)),
    };
    if (i == 37)
        for (int k = 0; k < 9; k++) out[k] = results[k];
}

cudaError_t sample_bias_relu(float *y, const float *x, const float *bias, int rows, int columns, sample_defect defect,
                             cudaStream_t stream) {
    return TWC_LAUNCH(bias_relu, rows * columns / 4 / 256 + 1, 256, 0, stream, y, x, bias, rows, columns, defect);
}

cudaError_t sample_bias_relu_f16(void *y, const void *x, const void *bias, int rows, int columns, cudaStream_t stream) {
    return TWC_LAUNCH(bias_relu_f16, 2, 64, 0, stream, static_cast<__half *>(y), static_cast<const __half *>(x),
                      static_cast<const __half *>(bias), rows, columns);
}

cudaError_t sample_cross_entropy(float *loss, float *dx, const float *x, const int *label, int rows, int columns,
                                 float scale, int threads, sample_defect defect, cudaStream_t stream) {
    return TWC_LAUNCH(cross_entropy, rows, threads, columns * sizeof(float), stream, loss, dx, x, label, columns, scale,
                      defect);
}

cudaError_t sample_cross_entropy_shared(int bytes) {
    return cudaFuncSetAttribute(cross_entropy, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

cudaError_t sample_moments(float *sum, float *square, const float *x, int samples, int channels, int pixels,
                           sample_defect defect, cudaStream_t stream) {
    return TWC_LAUNCH(moments, dim3(channels, 3), 64, 0, stream, sum, square, x, samples, channels, pixels, defect);
}

cudaError_t sample_reverse(float *y, const float *x, int count, sample_defect defect, cudaStream_t stream) {
    return TWC_LAUNCH(reverse, count / 256, 256, 0, stream, y, x, defect);
}

cudaError_t sample_meetings(int *out, cudaStream_t stream) { return TWC_LAUNCH(meetings, 1, 64, 0, stream, out); }

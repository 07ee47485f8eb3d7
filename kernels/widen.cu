/* Halves to floats and floats to halves, element by element: for results that a vendor's library writes in half precision
 * and that are kept in f32; and for the copy of the weights, where they were written by the host. No kernel record's: the
 * back end calls them. */
#include "elements.cuh"

namespace {

constexpr int64_t THREADS = 256, BLOCKS_MOST = 1 << 16;

template <class T> __global__ void widen(float *out, const T *in, int64_t count) {
    const int64_t step = gridDim.x * THREADS;
    for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += step) out[i] = static_cast<float>(in[i]);
}

template <class T> __global__ void narrow(T *out, const float *in, int64_t count) {
    const int64_t step = gridDim.x * THREADS;
    for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += step) out[i] = twk_element<T>(in[i]);
}

unsigned grid_of(int64_t count) {
    const int64_t blocks = (count + THREADS - 1) / THREADS;
    return static_cast<unsigned>(blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST);
}

} // namespace

extern "C" cudaError_t twk_narrow(void *out, int bf16, const float *in, int64_t count, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    if (bf16)
        return TWC_LAUNCH(narrow<__nv_bfloat16>, grid_of(count), THREADS, 0, stream, static_cast<__nv_bfloat16 *>(out),
                          in, count);
    return TWC_LAUNCH(narrow<__half>, grid_of(count), THREADS, 0, stream, static_cast<__half *>(out), in, count);
}

extern "C" cudaError_t twk_widen(float *out, const void *in, int bf16, int64_t count, cudaStream_t stream) {
    const unsigned grid = grid_of(count);
    if (bf16)
        return TWC_LAUNCH(widen<__nv_bfloat16>, grid, THREADS, 0, stream, out, static_cast<const __nv_bfloat16 *>(in),
                          count);
    return TWC_LAUNCH(widen<__half>, grid, THREADS, 0, stream, out, static_cast<const __half *>(in), count);
}

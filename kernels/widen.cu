/* Halves to floats, element by element: for results that a vendor's library writes in half precision and that are kept
 * in f32. No kernel record's: the family that needs it calls it. */
#include "portable.h"

namespace {

constexpr int64_t THREADS = 256, BLOCKS_MOST = 1 << 16;

template <class T> __global__ void widen(float *out, const T *in, int64_t count) {
    const int64_t step = gridDim.x * THREADS;
    for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += step) out[i] = static_cast<float>(in[i]);
}

} // namespace

extern "C" cudaError_t twk_widen(float *out, const void *in, int bf16, int64_t count, cudaStream_t stream) {
    const int64_t blocks = (count + THREADS - 1) / THREADS;
    const unsigned grid = static_cast<unsigned>(blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST);
    if (bf16)
        return TWC_LAUNCH(widen<__nv_bfloat16>, grid, THREADS, 0, stream, out, static_cast<const __nv_bfloat16 *>(in),
                          count);
    return TWC_LAUNCH(widen<__half>, grid, THREADS, 0, stream, out, static_cast<const __half *>(in), count);
}

/* What every kernels/<op>.cu includes, and the few things that cannot be written alike for nvcc and for the host
 * compiler: shared memory and launches. Under nvcc this is plain CUDA; under g++ or clang++ it is the emulation in
 * tests/emulation/, where the same text runs on the CPU under sanitizers. __shared__ and <<< >>> are not used directly.
 *
 *   TWC_SHARED(float, part, [2][32]);           a shared array, 16-byte aligned; its content is undefined at first
 *   TWC_DYNAMIC_SHARED(float, row);             float *row: the bytes that the launch asked for, 16-byte aligned
 *   TWC_LAUNCH(relu<float>, grid, block, shared_bytes, stream, x, y, n)
 *                                               cudaError_t; arguments are converted to the kernel's parameter types.
 *                                               Kernels whose name holds a comma go in parentheses: (relu<float, 4>). */
#ifndef TWC_PORTABLE_H
#define TWC_PORTABLE_H

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define TWC_SHARED(type, name, dims) __shared__ __align__(16) type name dims
#define TWC_DYNAMIC_SHARED(type, name)                                  \
    extern __shared__ __align__(16) unsigned char twc_dynamic_shared[]; \
    type *name = reinterpret_cast<type *>(twc_dynamic_shared)

template <class... Parameters, class... Arguments>
inline cudaError_t twc_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                              cudaStream_t stream, Arguments... arguments) {
    kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
    return cudaGetLastError();
}
#define TWC_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    twc_launch(kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

#else
#include "cuda_language.h"
#endif

#include <stdint.h>

#endif

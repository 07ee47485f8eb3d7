/* Stands for the CUDA language when the host compiler builds a .cu: keywords, thread indices, shared memory, launches.
 * What threads do together is in cuda_threads.h, atomics in cuda_atomics.h, device functions in cuda_device.h; types
 * and their arithmetic (float4, __half, __nv_bfloat16) are NVIDIA's own headers, which host compilers understand.
 * Kernels include this through kernels/portable.h. */
#ifndef EMU_CUDA_LANGUAGE_H
#define EMU_CUDA_LANGUAGE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>

#undef __constant__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __shared__
#define __constant__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
/* A static variable could not be given to each block anew and fenced in: the macros must be used. */
#define __shared__ static_assert(false, "use TWC_SHARED or TWC_DYNAMIC_SHARED");

namespace emu {

/* What a CUDA thread sees of itself. */
struct ThreadView {
    uint3 thread, block;
    int index; /* within the block, x fastest; lanes are counted by it */
};
extern ThreadView *running;
extern dim3 block_size, grid_size;

/* One grid, ready to run. body(closure) is one thread of it. */
struct Grid {
    const char *kernel;
    const void *function;
    void (*body)(const void *closure);
    const void *closure;
    size_t closure_bytes;
    dim3 grid, block;
    size_t shared_bytes;
};
cudaError_t launch(const Grid &grid, cudaStream_t stream);

/* A shared variable of the running block; `slot` tells the variables of a kernel apart. */
struct SharedSlot {
    void *memory;
    uint64_t block;
};
void *shared_memory(SharedSlot &slot, size_t bytes);
void *dynamic_shared_memory();

template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, Arguments... arguments) {
    struct Closure {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> arguments;
    } closure = {kernel, std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)};
    static_assert(std::is_trivially_destructible<Closure>::value, "kernel parameters are copied as bytes");
    auto body = [](const void *memory) {
        const Closure *c = static_cast<const Closure *>(memory);
        std::apply(c->kernel, c->arguments);
    };
    return launch(
        {name, reinterpret_cast<const void *>(kernel), body, &closure, sizeof closure, grid, block, shared_bytes},
        stream);
}

} // namespace emu

#define threadIdx (::emu::running->thread)
#define blockIdx (::emu::running->block)
#define blockDim (::emu::block_size)
#define gridDim (::emu::grid_size)
#define warpSize 32

#define TWC_SHARED(type, name, dims)                                                              \
    using name##_shared_type = type dims;                                                         \
    static_assert(sizeof(name##_shared_type) <= 48 << 10, "static shared memory ends at 48 KiB"); \
    static ::emu::SharedSlot name##_shared_slot;                                                  \
    name##_shared_type &name =                                                                    \
        *static_cast<name##_shared_type *>(::emu::shared_memory(name##_shared_slot, sizeof(name##_shared_type)))
#define TWC_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(::emu::dynamic_shared_memory())
#define TWC_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    ::emu::launch_kernel(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

/* nvcc's header has these for kernels of any type. */
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*kernel)(Parameters...), int block_size,
                                                          size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void *>(kernel), block_size,
                                                         shared_bytes);
}

#include "cuda_threads.h"
#include "cuda_atomics.h"
#include "cuda_device.h"

#endif

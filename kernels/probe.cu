/* Whether kernels were built for the device in use: asks for one that does nothing. */
#include "portable.h"

namespace {
__global__ void nothing() {}
} // namespace

extern "C" cudaError_t twk_probe(void) {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(nothing));
}

/* In place of kernels/widen.cu where plans are made and none is run. */
#include "backend/cuda/kernel_table.h"

cudaError_t twk_widen(float *out, const void *in, int bf16, int64_t count, cudaStream_t stream) {
    (void)out, (void)in, (void)bf16, (void)count, (void)stream;
    return cudaErrorNoDevice;
}

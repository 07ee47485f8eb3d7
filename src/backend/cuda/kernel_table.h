/* The tables of kernels/: which row runs a kernel record. */
#ifndef TWI_CUDA_KERNEL_TABLE_H
#define TWI_CUDA_KERNEL_TABLE_H

#include "launch.h"

/* The row of a kernel record, or NULL. */
const twk_entry *twi_cuda_find_entry(const char *kernel);
/* cudaErrorNoKernelImageForDevice if no kernel was built for the current device. kernels/probe.cu */
cudaError_t twk_probe(void);
/* out[i] = in[i] for count elements of f16 or, else, bf16. kernels/widen.cu */
cudaError_t twk_widen(float *out, const void *in, int bf16, int64_t count, cudaStream_t stream);
/* The other way. */
cudaError_t twk_narrow(void *out, int bf16, const float *in, int64_t count, cudaStream_t stream);

#endif

/* cuBLASLt of a device: opened with it. */
#ifndef TWI_CUDA_CUBLASLT_H
#define TWI_CUDA_CUBLASLT_H

#include "cuda.h"

/* Fills device->blas. */
tw_status twi_cuda_blas_open(twi_cuda_device *device);
void twi_cuda_blas_close(twi_cuda_device *device);

#endif

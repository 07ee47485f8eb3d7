/* A user's op in CUDA, as launchers that a test of the back end gives to tw_op_register by its callbacks. */
#ifndef TALWEG_TESTS_USER_OP_KERNELS_H
#define TALWEG_TESTS_USER_OP_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y = a[0] x^2. */
void square_forward(const float *x, const float *a, float *y, int count, cudaStream_t stream);
/* dx = 2 a[0] x dy, where dx is not NULL; da[0] += sum of x^2 dy, in order, by one thread. */
void square_backward(const float *x, const float *a, const float *dy, float *dx, float *da, int count,
                     cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

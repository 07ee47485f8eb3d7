/* Kernels of the usual kinds, to test the emulation with, and the defects that can be planted in them. */
#ifndef EMU_SAMPLE_KERNELS_H
#define EMU_SAMPLE_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sample_defect {
    SAMPLE_CORRECT,
    SAMPLE_PAST_GLOBAL,
    SAMPLE_PAST_STATIC_SHARED,
    SAMPLE_PAST_DYNAMIC_SHARED,
    SAMPLE_NO_BARRIER,
    SAMPLE_NO_WARP_SYNC,
    SAMPLE_NO_ATOMIC,
    SAMPLE_UNWRITTEN_SHARED,
    SAMPLE_MISALIGNED,
    SAMPLE_DIVERGENT_BARRIER,
    SAMPLE_DIVERGENT_SHUFFLE,
    SAMPLE_EARLY_EXIT
} sample_defect;

/* y[r][c] = max(x[r][c] + bias[c], 0), four at a time; columns a multiple of 4. */
cudaError_t sample_bias_relu(float *y, const float *x, const float *bias, int rows, int columns, sample_defect defect,
                             cudaStream_t stream);
/* The same in f16, two at a time; columns even. */
cudaError_t sample_bias_relu_f16(void *y, const void *x, const void *bias, int rows, int columns, cudaStream_t stream);
/* loss[r] = -log softmax(x[r])[label[r]], dx = its gradient times scale; a block of `threads` a row. */
cudaError_t sample_cross_entropy(float *loss, float *dx, const float *x, const int *label, int rows, int columns,
                                 float scale, int threads, sample_defect defect, cudaStream_t stream);
/* Lets that kernel use so many bytes of dynamic shared memory. */
cudaError_t sample_cross_entropy_shared(int bytes);
/* sum[c] += sum of x[n][c][i] over n, i; square[c] += sum of squares. */
cudaError_t sample_moments(float *sum, float *square, const float *x, int samples, int channels, int pixels,
                           sample_defect defect, cudaStream_t stream);
/* Every group of 32 elements back to front; count a multiple of 256. */
cudaError_t sample_reverse(float *y, const float *x, int count, sample_defect defect, cudaStream_t stream);
/* out[0..8]: what the operations of a warp and the votes of a block give on one block of 64 threads. */
cudaError_t sample_meetings(int *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuDNN as the rest of the CUDA back end sees it: opened for a device, closed. The family of implementations that works
 * through it is twi_cuda_cudnn (cuda.h); how it makes plans is in cudnn_plan.h. */
#ifndef TWI_CUDA_CUDNN_H
#define TWI_CUDA_CUDNN_H

#include "cuda.h"

typedef struct twi_cuda_dnn_options {
    size_t workspace_limit; /* bytes that a plan may want; 0: 256 MiB, or a sixteenth of the device if that is less */
    bool trial;             /* the first candidates are timed on the device; otherwise the heuristics' first is taken */
    const char *cache_folder; /* where choices are kept; NULL: the environment variable TALWEG_CACHE_DIR, or nowhere */
} twi_cuda_dnn_options;

/* A handle on the device's stream. *out is NULL, and the family refuses everything, where this was built without cuDNN.
 * Errors: DEVICE for another major version than this was compiled for, or what cuDNN itself answers. */
tw_status twi_cuda_dnn_open(twi_cuda_dnn **out, twi_cuda_device *device, const twi_cuda_dnn_options *options);

/* The same for a device that is not here, from cuDNN's description of it: plans are made and never run. The
 * description is a JSON object with all of deviceVer (900 for compute capability 9.0), deviceName,
 * multiProcessorCount, totalGlobalMem, the limits of threads, registers and shared memory, and clocks. Errors:
 * UNSUPPORTED for one that cuDNN does not take. */
tw_status twi_cuda_dnn_open_described(twi_cuda_dnn **out, twi_cuda_device *device, const char *json,
                                      const twi_cuda_dnn_options *options);

/* Keeps new choices in the cache's folder. NULL is fine. */
void twi_cuda_dnn_close(twi_cuda_dnn *dnn);

#endif

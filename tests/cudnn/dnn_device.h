/* An emulated device with cuDNN's stand-in, and convolutions run on it through the family as the back end would. */
#ifndef TALWEG_TESTS_DNN_DEVICE_H
#define TALWEG_TESTS_DNN_DEVICE_H

#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cudnn.h"
#include "conv_check.h"

typedef struct dnn_device {
    tw_context *context;
    twi_backend backend; /* memory alone */
    twi_cuda_device device;
    cudaStream_t launches; /* what is launched; copies go by the device's */
    uint64_t own_blocks;   /* of the context's memory, before anything was opened */
} dnn_device;

/* context_options NULL: none. TW_OK, or what failed; either way dnn_device_close takes it back. */
tw_status dnn_device_open(dnn_device *d, const tw_context_options *context_options,
                          const twi_cuda_dnn_options *options);
/* Checks that nothing is left: host memory, device memory, streams, handles, descriptors. */
void dnn_device_close(dnn_device *d);

typedef struct dnn_run {
    const conv_check_case *c;
    const char *kernel;
    tw_dtype dtype;
    bool rows;              /* N,C,H,W in memory too */
    bool captured;          /* launched from a graph, twice */
    bool with_nan;          /* in the first element of x */
    bool broken;            /* the device is lost just before the launch */
    uint64_t fail;          /* the so manieth call from the launch on fails; 0: none */
    size_t workspace_bytes; /* out */
    char plan[32];          /* out: the implementation's name */
} dnn_run;

/* A call without data, for preparing. */
void dnn_call(twi_call *call, const dnn_run *run);
/* Prepares it and notes the plan; what was prepared is released again. */
tw_status dnn_prepare(dnn_device *d, dnn_run *run);
/* Prepares, runs and compares with the specification; a wrong number fails the test. */
tw_status dnn_run_and_compare(dnn_device *d, dnn_run *run);

#endif

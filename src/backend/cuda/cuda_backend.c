/* CUDA as a back end: its table of functions and its device. Memory is in cuda_memory.c, copies in cuda_copy.c, choices
 * in cuda_choose.c, binding and running programs in cuda_program.c, the implementations in families of their own. */
#include "cublaslt.h"
#include "cuda_choose.h"
#include "cuda_copy.h"
#include "cudnn.h"
#include "cuda_memory.h"
#include "cuda_program.h"
#include "kernel_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- device ---- */

static tw_status open_device(twi_cuda_device *device) {
    struct cudaDeviceProp properties;
    TWI_TRY(twi_cuda_enter(device));
    TWI_CUDA(device, cudaGetDeviceProperties(&properties, device->ordinal));
    snprintf(device->name, sizeof device->name, "%.*s", (int)sizeof device->name - 1, properties.name);
    device->capability = 10 * properties.major + properties.minor;
    device->processors = properties.multiProcessorCount;
    device->total_bytes = properties.totalGlobalMem;
    cudaError_t probed = twk_probe();
    if (probed == cudaErrorNoKernelImageForDevice || probed == cudaErrorInvalidDeviceFunction)
        return TWI_FAIL(TW_ERROR_DEVICE,
                        "cuda: this build has no code for compute capability %d.%d (%s); build with "
                        "TALWEG_CUDA_ARCHITECTURES holding %d",
                        properties.major, properties.minor, device->name, device->capability);
    TWI_TRY(twi_cuda_check(device, probed, "looking for kernels"));
    TWI_CUDA(device, cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking));
    TWI_TRY(twi_cuda_memory_open(device));
    TWI_TRY(twi_cuda_copies_open(device));
    const twi_cuda_dnn_options options = {.trial = device->context->autotune,
                                          .cache_folder = device->context->cache_folder};
    TWI_TRY(twi_cuda_dnn_open(&device->dnn, device, &options));
    return twi_cuda_blas_open(device);
}

static void cuda_close(tw_context *context, void *opened) {
    twi_cuda_device *device = opened;
    if (!device) return;
    (void)cudaSetDevice(device->ordinal); /* the libraries give back what is the current device's */
    twi_cuda_copies_close(device);        /* first: it waits for all that is under way */
    twi_cuda_blas_close(device);
    twi_cuda_dnn_close(device->dnn);
    if (device->stream) (void)cudaStreamDestroy(device->stream);
    (void)cudaGetLastError();
    twi_put(context->memory, device->block);
    twi_put(context->memory, device);
}

static tw_status cuda_open(tw_context *context, void **out) {
    *out = NULL;
    twi_cuda_device *device;
    TWI_TRY(twi_get(context->memory, &device, 1, sizeof *device, "cuda device"));
    device->context = context;
    device->ordinal = context->ordinal;
    device->memory.limit = context->device_memory_limit;
    const char *each_step = getenv("TALWEG_SYNC");
    device->each_step = each_step && strcmp(each_step, "1") == 0;
    *out = device; /* what is opened with it finds it in the context */
    tw_status status = open_device(device);
    if (status) {
        *out = NULL;
        cuda_close(context, device);
        return status;
    }
    twi_cuda_name_machine(device);
    twi_log_line(&context->log, TW_LOG_INFO, "cuda: device %d, %s, compute capability %d.%d, %d multiprocessors%s",
                 device->ordinal, device->name, device->capability / 10, device->capability % 10, device->processors,
                 device->each_step ? ", waiting for every step" : "");
    return TW_OK;
}

static tw_status cuda_narrow(tw_context *context, void *out, tw_dtype to, const float *in, int64_t count) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    return twi_cuda_check(device, twk_narrow(out, to == TW_BF16, in, count, device->stream), "rounding the weights");
}

const twi_backend twi_backend_cuda = {
    .name = "cuda",
    .host_memory = false,
    .in_flight = TWI_IN_FLIGHT_MAX,
    .chunked = false,
    .open = cuda_open,
    .close = cuda_close,
    .describe = twi_cuda_describe,
    .computes_in = twi_cuda_computes_in,
    .workers = twi_cuda_workers,
    .get = twi_cuda_get,
    .put = twi_cuda_put,
    .get_memory = twi_cuda_get_memory,
    .copy_in = twi_cuda_copy_in,
    .stream_in = twi_cuda_stream_in,
    .copy = twi_cuda_copy,
    .narrow = cuda_narrow,
    .copy_out = twi_cuda_copy_out,
    .get_host = twi_cuda_get_host,
    .put_host = twi_cuda_put_host,
    .fetch = twi_cuda_fetch,
    .mark = twi_cuda_mark,
    .wait = twi_cuda_wait,
    .choose = twi_cuda_choose,
    .release = twi_cuda_release,
    .prepare = twi_cuda_prepare,
    .discard = twi_cuda_discard,
    .run = twi_cuda_run,
};

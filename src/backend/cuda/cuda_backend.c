/* CUDA as a back end: its table of functions, its device, copies, and the choice of an implementation for a step. Memory is
 * in cuda_memory.c, binding and running programs in cuda_program.c, the implementations in families of their own. */
#include "cublaslt.h"
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
    TWI_CUDA(device, cudaSetDevice(device->ordinal));
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
    TWI_TRY(twi_cuda_copies_open(device));
    const twi_cuda_dnn_options options = {.trial = device->context->autotune,
                                          .cache_folder = device->context->cache_folder};
    TWI_TRY(twi_cuda_dnn_open(&device->dnn, device, &options));
    return twi_cuda_blas_open(device);
}

static void cuda_close(tw_context *context, void *opened) {
    twi_cuda_device *device = opened;
    if (!device) return;
    twi_cuda_blas_close(device);
    twi_cuda_dnn_close(device->dnn);
    twi_cuda_copies_close(device);
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

static int cuda_workers(const tw_context *context) {
    (void)context;
    return 1; /* steps follow each other on one stream and share one workspace */
}

/* ---- implementations ---- */

static const twi_cuda_family *const families[] = {&twi_cuda_user, &twi_cuda_cudnn, &twi_cuda_cublaslt,
                                                  &twi_cuda_kernels};

static tw_status choose_family(twi_cuda_site *site, const twi_call *call) {
    const twi_log *log = &site->device->context->log;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        site->family = families[i];
        site->name = families[i]->name;
        tw_status status = families[i]->prepare(site, call);
        if (status != TW_ERROR_UNSUPPORTED) return status;
        twi_log_line(log, TW_LOG_DEBUG, "cuda: %s not by %s: %s", site->kernel->name, families[i]->name,
                     tw_last_error());
    }
    return TWI_FAIL(TW_ERROR_UNSUPPORTED, "op kernel '%s' has no implementation on the back end 'cuda' (%s)",
                    site->kernel->name, tw_last_error());
}

static tw_status cuda_choose(tw_context *context, const twi_kernel *kernel, const twi_call *main, const twi_call *tail,
                             twi_choice *out) {
    (void)tail; /* the batch is not cut */
    *out = (twi_choice){0};
    twi_cuda_site *site;
    TWI_TRY(twi_cuda_enter(twi_cuda_of(context)));
    TWI_TRY(twi_get(context->memory, &site, 1, sizeof *site, "implementation of a step"));
    site->kernel = kernel;
    site->device = twi_cuda_of(context);
    tw_status status = choose_family(site, main);
    if (status) {
        twi_put(context->memory, site);
        return status;
    }
    out->implementation = site->name;
    out->state = site;
    out->worker_bytes = site->workspace_bytes;
    return TW_OK;
}

static void cuda_release(tw_context *context, twi_choice *choice) {
    twi_cuda_site *site = choice->state;
    if (site && site->family->release) site->family->release(site);
    twi_put(context->memory, site);
    *choice = (twi_choice){0};
}

static int64_t cuda_chunk_multiple(tw_context *context, const twi_kernel *kernel, const twi_call *call) {
    (void)context, (void)kernel, (void)call;
    return 1;
}

const twi_backend twi_backend_cuda = {
    .name = "cuda",
    .host_memory = false,
    .in_flight = TWI_IN_FLIGHT_MAX,
    .chunked = false,
    .open = cuda_open,
    .close = cuda_close,
    .describe = twi_cuda_describe,
    .workers = cuda_workers,
    .get = twi_cuda_get,
    .put = twi_cuda_put,
    .get_memory = twi_cuda_get_memory,
    .copy_in = twi_cuda_copy_in,
    .copy_out = twi_cuda_copy_out,
    .get_host = twi_cuda_get_host,
    .put_host = twi_cuda_put_host,
    .fetch = twi_cuda_fetch,
    .mark = twi_cuda_mark,
    .wait = twi_cuda_wait,
    .choose = cuda_choose,
    .release = cuda_release,
    .chunk_multiple = cuda_chunk_multiple,
    .prepare = twi_cuda_prepare,
    .discard = twi_cuda_discard,
    .run = twi_cuda_run,
};

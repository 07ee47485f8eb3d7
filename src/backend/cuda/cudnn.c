/* cuDNN opened for a device, here or described, and what its statuses become. */
#include "cudnn.h"

#ifdef TWI_HAVE_CUDNN

#include "backend/cards.h"
#include "cuda_memory.h"
#include "cudnn_plan.h"

#include <stdio.h>
#include <string.h>

/* ---- failures ---- */

#define CATEGORY(status) ((int)(status) / 1000 * 1000)

typedef struct meaning {
    int status; /* one status, or a category */
    tw_status becomes;
    const char *remedy;
} meaning;

static const meaning meanings[] = {
    {CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, TW_ERROR_OUT_OF_MEMORY, "free memory of the host"},
    {CATEGORY(CUDNN_STATUS_NOT_INITIALIZED), TW_ERROR_DEVICE,
     "install one complete version of cuDNN, and a driver that is new enough for it"},
    {CUDNN_STATUS_BAD_PARAM, TW_ERROR_UNSUPPORTED, "it does not take this description"},
    {CUDNN_STATUS_NOT_SUPPORTED, TW_ERROR_UNSUPPORTED, "it has nothing for this case"},
    {CUDNN_STATUS_INTERNAL_ERROR, TW_ERROR_DEVICE, "try another version of cuDNN"},
    {CUDNN_STATUS_EXECUTION_FAILED, TW_ERROR_DEVICE, "run again with TALWEG_SYNC=1 to see which step it was"},
};
enum { MEANINGS = sizeof meanings / sizeof *meanings };

static const meaning *find_meaning(cudnnStatus_t status) {
    for (int i = 0; i < MEANINGS; i++)
        if (meanings[i].status == (int)status) return &meanings[i];
    for (int i = 0; i < MEANINGS; i++)
        if (meanings[i].status == CATEGORY(status)) return &meanings[i];
    return &meanings[MEANINGS - 1];
}

/* What cuDNN also says where its own calls of CUDA find no memory. */
static bool may_be_memory(cudnnStatus_t status) {
    return status == CUDNN_STATUS_NOT_INITIALIZED || status == CUDNN_STATUS_INTERNAL_ERROR ||
           CATEGORY(status) == CUDNN_STATUS_EXECUTION_FAILED;
}

tw_status twi_cudnn_check(twi_cuda_device *device, cudnnStatus_t status, const char *call) {
    if (status == CUDNN_STATUS_SUCCESS) return TW_OK;
    char said[256] = "";
    cudnnGetLastErrorString(said, sizeof said);
    if (status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return twi_cuda_check(device, cudaErrorMemoryAllocation, call);
    if (CATEGORY(status) == CUDNN_STATUS_EXECUTION_FAILED) {
        /* A query that is allowed while capturing, and repeats the error of a device that is lost. */
        enum cudaStreamCaptureStatus capturing;
        TWI_TRY(twi_cuda_check(device, cudaStreamIsCapturing(device->stream, &capturing), call));
    }
    if (may_be_memory(status) && device->ordinal >= 0 && twi_cuda_is_full()) {
        char text[512];
        snprintf(text, sizeof text, "cuDNN: %.*s: %s%s%s", (int)strcspn(call, "("), call, cudnnGetErrorString(status),
                 *said ? ", " : "", said);
        return twi_cuda_out_of_memory(device, 0, text);
    }
    const meaning *m = find_meaning(status);
    return TWI_FAIL(m->becomes, "cuDNN: %.*s: %s%s%s; %s", (int)strcspn(call, "("), call, cudnnGetErrorString(status),
                    *said ? ", " : "", said, m->remedy);
}

/* ---- opening ---- */

static tw_status check_version(void) {
    const size_t there = cudnnGetVersion();
    if (there / 10000 == CUDNN_MAJOR) return TW_OK;
    return TWI_FAIL(TW_ERROR_DEVICE,
                    "cuDNN: version %zu is installed, this was compiled for %d.%d.%d; install a version %d of cuDNN",
                    there, CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL, CUDNN_MAJOR);
}

static tw_status open_handle(twi_cuda_dnn *dnn) {
    TWI_CUDNN(dnn->device, cudnnCreate(&dnn->handle));
    TWI_CUDNN(dnn->device, cudnnSetStream(dnn->handle, dnn->device->stream));
    return TW_OK;
}

static tw_status describe(twi_cuda_dnn *dnn, const char *json) {
    TWI_CUDNN(dnn->device, cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &dnn->properties));
    TWI_CUDNN(dnn->device, cudnnBackendSetAttribute(dnn->properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                    CUDNN_TYPE_CHAR, (int64_t)strlen(json), json));
    TWI_CUDNN(dnn->device, cudnnBackendFinalize(dnn->properties));
    return TW_OK;
}

static tw_status open_with(twi_cuda_dnn **out, twi_cuda_device *device, const char *json,
                           const twi_cuda_dnn_options *options) {
    static const twi_cuda_dnn_options presets = {0};
    if (!options) options = &presets;
    *out = NULL;
    TWI_TRY(check_version());
    twi_memory *memory = device->context->memory;
    twi_cuda_dnn *dnn;
    TWI_TRY(twi_get(memory, &dnn, 1, sizeof *dnn, "cuDNN"));
    dnn->device = device;
    dnn->memory = memory;
    dnn->trial = options->trial && !json;
    dnn->workspace_limit =
        options->workspace_limit ? options->workspace_limit : twi_card_convolution_workspace(device->total_bytes);
    tw_status status = json ? describe(dnn, json) : open_handle(dnn);
    if (!status) status = twi_dnn_cache_open(dnn, options->cache_folder);
    if (status) {
        twi_cuda_dnn_close(dnn);
        return status;
    }
    *out = dnn;
    return TW_OK;
}

tw_status twi_cuda_dnn_open(twi_cuda_dnn **out, twi_cuda_device *device, const twi_cuda_dnn_options *options) {
    return open_with(out, device, NULL, options);
}

tw_status twi_cuda_dnn_open_described(twi_cuda_dnn **out, twi_cuda_device *device, const char *json,
                                      const twi_cuda_dnn_options *options) {
    return open_with(out, device, json, options);
}

void twi_cuda_dnn_close(twi_cuda_dnn *dnn) {
    if (!dnn) return;
    twi_choices_close(&dnn->cache);
    if (dnn->properties) (void)cudnnBackendDestroyDescriptor(dnn->properties);
    if (dnn->handle) (void)cudnnDestroy(dnn->handle);
    twi_put(dnn->memory, dnn);
}

#else

tw_status twi_cuda_dnn_open(twi_cuda_dnn **out, twi_cuda_device *device, const twi_cuda_dnn_options *options) {
    (void)device, (void)options;
    *out = NULL;
    return TW_OK;
}

tw_status twi_cuda_dnn_open_described(twi_cuda_dnn **out, twi_cuda_device *device, const char *json,
                                      const twi_cuda_dnn_options *options) {
    (void)json;
    return twi_cuda_dnn_open(out, device, options);
}

void twi_cuda_dnn_close(twi_cuda_dnn *dnn) { (void)dnn; }

#endif

/* What a device and the libraries in use tell of themselves, for reports. TWI_CUDA_CODE, from the build, says what the
 * kernels were compiled for. */
#include "cuda.h"
#include "backend/cards.h"

#include <cublasLt.h>
#include <stdio.h>

#ifdef TWI_HAVE_CUDNN
#include <cudnn.h>
static int cudnn_version(void) { return (int)cudnnGetVersion(); }
#else
static int cudnn_version(void) { return 0; }
#endif

static void describe_hardware(const twi_cuda_device *device, tw_device_info *out) {
    out->capability_major = device->capability / 10;
    out->capability_minor = device->capability % 10;
    out->processors = device->processors;
    snprintf(out->name, sizeof out->name, "%s", device->name);
    snprintf(out->code, sizeof out->code, "%s", TWI_CUDA_CODE);
}

tw_status twi_cuda_describe_planned(const tw_context *context, tw_device_info *out) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_CUDA(device, cudaRuntimeGetVersion(&out->runtime_version));
    describe_hardware(device, out);
    out->memory_bytes = out->free_bytes = device->total_bytes;
    out->cublaslt_version = (int)cublasLtGetVersion();
    out->cudnn_version = cudnn_version();
    return TW_OK;
}

tw_status twi_cuda_describe(const tw_context *context, tw_device_info *out) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    TWI_CUDA(device, cudaMemGetInfo(&out->free_bytes, &out->memory_bytes));
    TWI_CUDA(device, cudaDriverGetVersion(&out->driver_version));
    TWI_CUDA(device, cudaRuntimeGetVersion(&out->runtime_version));
    out->cublaslt_version = (int)cublasLtGetVersion();
    out->cudnn_version = cudnn_version();
    describe_hardware(device, out);
    return TW_OK;
}

void twi_cuda_name_machine(const twi_cuda_device *device) {
    tw_context *context = device->context;
    snprintf(context->machine, sizeof context->machine, "%.40s, cuBLASLt %d, cuDNN %d", device->name,
             (int)cublasLtGetVersion(), cudnn_version());
}

bool twi_cuda_computes_in(const tw_context *context, tw_precision precision) {
    return twi_card_computes_in(twi_cuda_of(context)->capability, precision);
}

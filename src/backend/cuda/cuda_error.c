/* What the runtime's statuses become. */
#include "cuda.h"
#include "cuda_memory.h"

#include <stdio.h>

/* After these nothing of this process works on the device any more. */
static const cudaError_t sticky[] = {
    cudaErrorIllegalAddress,      cudaErrorLaunchFailure,       cudaErrorLaunchTimeout,
    cudaErrorHardwareStackError,  cudaErrorIllegalInstruction,  cudaErrorMisalignedAddress,
    cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,           cudaErrorAssert,
    cudaErrorECCUncorrectable,    cudaErrorNvlinkUncorrectable, cudaErrorContained,
    cudaErrorDevicesUnavailable,  cudaErrorCudartUnloading,     cudaErrorContextIsDestroyed,
};

tw_status twi_cuda_lost(twi_cuda_device *device, const char *cause) {
    if (!device->lost) snprintf(device->loss, sizeof device->loss, "%s", cause);
    device->lost = true;
    return twi_cuda_usable(device);
}

tw_status twi_cuda_usable(const twi_cuda_device *device) {
    if (!device->lost) return TW_OK;
    return TWI_FAIL(TW_ERROR_DEVICE,
                    "cuda: the device was lost (%s); destroy this context and make another, in a new process if that "
                    "fails too. TALWEG_SYNC=1 names the step that did it",
                    device->loss);
}

tw_status twi_cuda_check(twi_cuda_device *device, cudaError_t error, const char *call) {
    if (error == cudaSuccess) return twi_cuda_usable(device);
    const char *name = cudaGetErrorName(error), *text = cudaGetErrorString(error);
    (void)cudaGetLastError(); /* so that the next call's answer is its own */
    for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++) {
        if (error != sticky[i]) continue;
        char cause[sizeof device->loss];
        snprintf(cause, sizeof cause, "%s: %s, %s", call, name, text);
        return twi_cuda_lost(device, cause);
    }
    if (error == cudaErrorMemoryAllocation) return twi_cuda_out_of_memory(device, 0, call);
    return TWI_FAIL(TW_ERROR_DEVICE, "cuda: %s: %s, %s", call, name, text);
}

tw_status twi_cuda_enter(twi_cuda_device *device) {
    TWI_TRY(twi_cuda_usable(device));
    TWI_CUDA(device, cudaSetDevice(device->ordinal));
    return TW_OK;
}

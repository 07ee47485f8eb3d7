/* Calls about devices and errors. The device that is described is an H200 of the capability asked for (emu.h), with the
 * emulation's own amount of memory. */
#include "runtime.h"

#include <stdio.h>
#include <string.h>

using namespace emu;

static const int multiprocessors = 132;

/* Not counted: they cannot fail on a real device either. */
cudaError_t cudaGetLastError(void) {
    std::lock_guard<std::recursive_mutex> lock(emu::mutex);
    cudaError_t error = device.broken ? device.broken : last_error;
    last_error = cudaSuccess;
    return error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
#define EMU_ERROR(error, text) \
    { error, #error, text }
    EMU_ERROR(cudaSuccess, "no error"),
    EMU_ERROR(cudaErrorInvalidValue, "invalid argument"),
    EMU_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    EMU_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    EMU_ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    EMU_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    EMU_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    EMU_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    EMU_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    EMU_ERROR(cudaErrorNotReady, "device not ready"),
    EMU_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    EMU_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    EMU_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    EMU_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    EMU_ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    EMU_ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    EMU_ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    EMU_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    EMU_ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    EMU_ERROR(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing stream"),
    EMU_ERROR(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    EMU_ERROR(cudaErrorUnknown, "unknown error"),
#undef EMU_ERROR
};

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &row : errors)
        if (row.error == error) return row.text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &row : errors)
        if (row.error == error) return row.name;
    return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int *count) {
    Call call("cudaGetDeviceCount");
    *count = device.count;
    if (!call.error && !device.count) call.error = cudaErrorNoDevice;
    return call.end(call.error);
}

cudaError_t cudaSetDevice(int number) {
    Call call("cudaSetDevice");
    if (!call.error && (number < 0 || number >= device.count)) call.error = cudaErrorInvalidDevice;
    if (!call.error) current_device = number;
    return call.end(call.error);
}

cudaError_t cudaDriverGetVersion(int *version) {
    Call call("cudaDriverGetVersion");
    *version = CUDART_VERSION;
    return call.end(call.error);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    Call call("cudaRuntimeGetVersion");
    *version = CUDART_VERSION;
    return call.end(call.error);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int number) {
    Call call("cudaGetDeviceProperties");
    if (!call.error && (number < 0 || number >= device.count)) call.error = cudaErrorInvalidDevice;
    if (call.error) return call.end(call.error);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "Emulated device %d.%d", device.major, device.minor);
    properties->totalGlobalMem = emu::memory_capacity();
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = emu::shared_most();
    properties->regsPerBlock = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->major = device.major;
    properties->minor = device.minor;
    properties->multiProcessorCount = multiprocessors;
    properties->l2CacheSize = 50 << 20;
    properties->unifiedAddressing = 1;
    properties->asyncEngineCount = 3;
    return call.end(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int number) {
    Call call("cudaDeviceGetAttribute");
    if (!call.error && (number < 0 || number >= device.count)) call.error = cudaErrorInvalidDevice;
    if (call.error) return call.end(call.error);
    const struct {
        cudaDeviceAttr attribute;
        int value;
    } known[] = {
        {cudaDevAttrComputeCapabilityMajor, device.major},
        {cudaDevAttrComputeCapabilityMinor, device.minor},
        {cudaDevAttrL2CacheSize, 50 << 20},
        {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(emu::shared_most())},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMultiProcessorCount, multiprocessors},
        {cudaDevAttrWarpSize, 32},
    };
    for (const auto &row : known) {
        if (row.attribute != attribute) continue;
        *value = row.value;
        return call.end(cudaSuccess);
    }
    emu_misuse("cudaDeviceGetAttribute: attribute %d is not among those that the emulation knows", attribute);
}

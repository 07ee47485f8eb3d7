/* Stands for libcuda.so.1 where a program opens it to ask whether there is a driver: a shared object of its own, told
 * by the environment what to answer. TALWEG_EMU_DEVICES: number of devices (1); TALWEG_EMU_DRIVER: version (the
 * header's, as 13000). */
#include <cuda.h>
#include <stdlib.h>

static int number(const char *variable, int otherwise) {
    const char *value = getenv(variable);
    return value && *value ? atoi(value) : otherwise;
}
static int devices() { return number("TALWEG_EMU_DEVICES", 1); }

CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    return devices() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version) {
    *version = number("TALWEG_EMU_DRIVER", CUDA_VERSION);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    *count = devices();
    return *count ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

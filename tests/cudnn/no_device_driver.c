/* A libcuda.so.1 for tests alone, on machines without a driver. It says that there is no device, and answers "no
 * device" to everything but this: code that cuDNN has compiled at run time may be handed over, and is not looked at.
 * cuDNN then finalizes plans with such code for a described device; without it, it proposes none. */
enum { SUCCESS = 0, NO_DEVICE = 100 };

static char handle[2];

int cuInit(unsigned flags);
int cuInit(unsigned flags) {
    (void)flags;
    return NO_DEVICE;
}
int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}
int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count) {
    *count = 0;
    return NO_DEVICE;
}

#define TEXT_OF_ERROR(name)                  \
    int name(int error, const char **text);  \
    int name(int error, const char **text) { \
        (void)error;                         \
        *text = "this driver has no device"; \
        return SUCCESS;                      \
    }
TEXT_OF_ERROR(cuGetErrorName)
TEXT_OF_ERROR(cuGetErrorString)

int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned n, void *c, void *d, unsigned m);
int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned n, void *c, void *d, unsigned m) {
    (void)code, (void)a, (void)b, (void)n, (void)c, (void)d, (void)m;
    *library = &handle[0];
    return SUCCESS;
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library, (void)name;
    *kernel = &handle[1];
    return SUCCESS;
}
int cuLibraryUnload(void *library);
int cuLibraryUnload(void *library) {
    (void)library;
    return SUCCESS;
}

/* What cuDNN looks for when it opens a driver, and does not call where there is no device. */
#define NO_DEVICE_FOR(name) \
    int name(void);         \
    int name(void) { return NO_DEVICE; }
NO_DEVICE_FOR(cuCtxGetCurrent)
NO_DEVICE_FOR(cuCtxGetLimit)
NO_DEVICE_FOR(cuCtxPopCurrent)
NO_DEVICE_FOR(cuCtxPopCurrent_v2)
NO_DEVICE_FOR(cuCtxPushCurrent)
NO_DEVICE_FOR(cuCtxPushCurrent_v2)
NO_DEVICE_FOR(cuCtxSynchronize)
NO_DEVICE_FOR(cuDeviceGet)
NO_DEVICE_FOR(cuDeviceGetAttribute)
NO_DEVICE_FOR(cuFuncGetAttribute)
NO_DEVICE_FOR(cuFuncSetAttribute)
NO_DEVICE_FOR(cuKernelGetAttribute)
NO_DEVICE_FOR(cuKernelGetFunction)
NO_DEVICE_FOR(cuKernelSetAttribute)
NO_DEVICE_FOR(cuLaunchCooperativeKernel)
NO_DEVICE_FOR(cuLaunchKernel)
NO_DEVICE_FOR(cuLaunchKernelEx)
NO_DEVICE_FOR(cuLibraryGetGlobal)
NO_DEVICE_FOR(cuLibraryGetModule)
NO_DEVICE_FOR(cuLibraryLoadFromFile)
NO_DEVICE_FOR(cuLinkAddData)
NO_DEVICE_FOR(cuLinkComplete)
NO_DEVICE_FOR(cuLinkCreate)
NO_DEVICE_FOR(cuLinkDestroy)
NO_DEVICE_FOR(cuMemcpyHtoD)
NO_DEVICE_FOR(cuMemcpyHtoDAsync)
NO_DEVICE_FOR(cuModuleGetFunction)
NO_DEVICE_FOR(cuModuleGetGlobal)
NO_DEVICE_FOR(cuModuleLoad)
NO_DEVICE_FOR(cuModuleLoadData)
NO_DEVICE_FOR(cuModuleLoadDataEx)
NO_DEVICE_FOR(cuModuleUnload)
NO_DEVICE_FOR(cuOccupancyAvailableDynamicSMemPerBlock)
NO_DEVICE_FOR(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NO_DEVICE_FOR(cuOccupancyMaxActiveClusters)
NO_DEVICE_FOR(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE_FOR(cuStreamGetCtx)
NO_DEVICE_FOR(cuTensorMapEncodeIm2col)
NO_DEVICE_FOR(cuTensorMapEncodeTiled)
NO_DEVICE_FOR(cuTensorMapReplaceAddress)

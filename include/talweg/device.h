/* Talweg: what a context runs on, for programs that report it. */
#ifndef TALWEG_DEVICE_H
#define TALWEG_DEVICE_H

#include <talweg/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_device_info {
    size_t size;                             /**< set by the caller, e.g. tw_device_info info = TW_DEVICE_INFO_INIT */
    const char *backend;                     /**< "cpu" or "cuda"; lives as long as the library */
    char name[128];                          /**< what the maker calls it; "" where the system does not tell */
    int ordinal;                             /**< its number among the devices of the back end, from 0 */
    int capability_major, capability_minor;  /**< CUDA's compute capability; 0 on the CPU */
    int processors;                          /**< multiprocessors of a GPU; the context's threads on the CPU */
    size_t memory_bytes, free_bytes;         /**< of the device, all programs together; 0 where the system does not tell */
    int driver_version, runtime_version;     /**< the newest CUDA the driver serves, and the one in use: 13000 is 13.0; 0 on the CPU */
    int cublaslt_version, cudnn_version;     /**< 91002 is 9.10.2; 0: not there */
    char code[128];                          /**< what runs: a GPU's kernels by architecture ("sm_80 sm_90 compute_90"), or
                                                  the CPU's instruction set and oneDNN's version */
} tw_device_info;
#define TW_DEVICE_INFO_INIT {sizeof(tw_device_info), NULL, "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ""}

/** Describes the device of a context as it is now. Fields beyond out->size are left out.
 *  Errors: TW_ERROR_ARGUMENT; TW_ERROR_DEVICE where a GPU does not answer. */
TW_API TW_WARN_UNUSED tw_status tw_context_get_device_info(const tw_context *context, tw_device_info *out);

#ifdef __cplusplus
}
#endif
#endif

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
    size_t memory_bytes, free_bytes;         /**< of the device, all programs together; 0 where the system does not
                                                  tell */
    int driver_version, runtime_version;     /**< the newest CUDA the driver serves, and the one in use: 13000 is 13.0;
                                                  0 on the CPU */
    int cublaslt_version, cudnn_version;     /**< 91002 is 9.10.2; 0: not there */
    char code[128];                          /**< what runs: a GPU's kernels by architecture ("sm_80 sm_90 compute_90"),
                                                  or the CPU's instruction set and oneDNN's version */
} tw_device_info;
#define TW_DEVICE_INFO_INIT {sizeof(tw_device_info), NULL, "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ""}

/** Describes the device of a context as it is now. Fields beyond out->size are left out.
 *  Errors: TW_ERROR_ARGUMENT; TW_ERROR_DEVICE where a GPU does not answer. */
TW_API TW_WARN_UNUSED tw_status tw_context_get_device_info(const tw_context *context, tw_device_info *out);

/** What a machine can do at most, as measured: what the speed of programs can be held against. */
typedef struct tw_ceilings {
    size_t size;             /**< set by the caller, e.g. tw_ceilings ceilings = TW_CEILINGS_INIT */
    int threads;             /**< that worked at the same time; the figures are of all together */
    double flops;            /**< f32 multiply-adds in registers, two FLOPs each, a second, in the instruction set that
                                  the library uses here */
    double bf16_flops;       /**< the same of the processor's products of bf16 added up in f32; 0: it has none that is
                                  used here */
    double cache_bandwidth;  /**< bytes a second read and written back in a core's own cache */
    double memory_bandwidth; /**< bytes a second read and written back beyond the last cache */
    size_t last_cache_bytes; /**< of the last cache, as the system tells; 0: it does not */
} tw_ceilings;
#define TW_CEILINGS_INIT {sizeof(tw_ceilings), 0, 0, 0, 0, 0, 0}

/** Measures the machine with so many threads of the context (0: all), which takes about a second and up to 512 MiB of
 *  memory. The best of a few tries counts; on a busy machine it is still too low. Errors: ARGUMENT; OUT_OF_MEMORY;
 *  UNSUPPORTED by devices other than the CPU. */
TW_API TW_WARN_UNUSED tw_status tw_context_measure(tw_context *context, int threads, tw_ceilings *out);

#ifdef __cplusplus
}
#endif
#endif

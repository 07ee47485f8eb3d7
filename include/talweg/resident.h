/* Talweg: resident data sets. A data set in the memory of the device, from which programs gather their batches
 * themselves: nothing is copied from run to run. Samples that do not fit there are fed batch by batch, by a tw_loader
 * and tw_program_write. */
#ifndef TALWEG_RESIDENT_H
#define TALWEG_RESIDENT_H

#include <talweg/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_resident tw_resident;

/** Makes count samples of channels x height x width (N,C,H,W, TW_U8 or TW_F32), one label each, resident on a context's
 *  device. Where the device reads the host's memory, the arrays are borrowed and nothing is copied: they must outlive
 *  the set on every device.
 *  Errors: ARGUMENT, OVERFLOW, OUT_OF_MEMORY; UNSUPPORTED for 2^31-1 samples or more. */
TW_API TW_WARN_UNUSED tw_status tw_resident_create(tw_resident **out, tw_context *context, tw_dtype dtype, const void *images, int64_t count,
                                                   int channels, int height, int width, const int32_t *labels);
/** Frees a resident set, before its context; programs that gather from it must be gone, or gather from another one.
 *  NULL is fine. */
TW_API void tw_resident_destroy(tw_resident *resident);
/** Number of samples. */
TW_API int64_t tw_resident_count(const tw_resident *resident);

/** Begins an epoch (from 0) that takes the samples indices[0 .. count-1], at most as many as there are, in this order;
 *  one may come several times. Flips and crops are drawn by (seed, epoch, sample), as by a tw_loader. What was left of
 *  the epoch before is dropped.
 *  Errors: ARGUMENT, naming the index that is outside; then the epoch before goes on. */
TW_API TW_WARN_UNUSED tw_status tw_resident_set_order(tw_resident *resident, int64_t epoch, const int32_t *indices, int64_t count);
/** How many samples of the order have been taken by runs: each takes its program's batch. */
TW_API int64_t tw_resident_get_position(const tw_resident *resident);

#ifdef __cplusplus
}
#endif
#endif

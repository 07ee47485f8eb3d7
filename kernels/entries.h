/* The tables of all kernel files; each ends with a row whose kernel is NULL. A kernel record has one row in all of them. */
#ifndef TWK_ENTRIES_H
#define TWK_ENTRIES_H

#include "backend/cuda/launch.h"

/* TWK_TABLE(file) for every kernels/<file>.cu. */
#define TWK_TABLES(TWK_TABLE) \
    TWK_TABLE(accumulate)     \
    TWK_TABLE(add)            \
    TWK_TABLE(argmax)         \
    TWK_TABLE(batch_norm)     \
    TWK_TABLE(bias)           \
    TWK_TABLE(cast)           \
    TWK_TABLE(commit)         \
    TWK_TABLE(conv2d)         \
    TWK_TABLE(cross_entropy)  \
    TWK_TABLE(dense)          \
    TWK_TABLE(dot)            \
    TWK_TABLE(dropout)        \
    TWK_TABLE(feed)           \
    TWK_TABLE(gather)         \
    TWK_TABLE(gelu)           \
    TWK_TABLE(guard)          \
    TWK_TABLE(optimizer)      \
    TWK_TABLE(pool)           \
    TWK_TABLE(relu)           \
    TWK_TABLE(reshape)        \
    TWK_TABLE(schedule)       \
    TWK_TABLE(softmax)

#ifdef __cplusplus
extern "C" {
#endif

#define TWK_DECLARE(file) extern const twk_entry twk_##file##_entries[];
TWK_TABLES(TWK_DECLARE)
#undef TWK_DECLARE

#ifdef __cplusplus
}
#endif
#endif

/* Talweg: tensors in host memory: what goes into programs and comes out of them. Row-major, logical N,C,H,W. */
#ifndef TALWEG_TENSOR_H
#define TALWEG_TENSOR_H

#include <talweg/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_tensor tw_tensor;

typedef enum tw_random { TW_RANDOM_UNIFORM = 0, TW_RANDOM_NORMAL = 1 } tw_random;

/** A tensor of zeros. rank 0 .. TW_MAX_RANK, dims >= 0. Errors: ARGUMENT, OVERFLOW, OUT_OF_MEMORY. The caller owns
 *  *out. */
TW_API TW_WARN_UNUSED tw_status tw_tensor_create(tw_tensor **out, tw_context *context, tw_dtype dtype, int rank, const int64_t *dims);

/** A tensor holding a copy of `data`, count(dims) elements of `dtype`, row-major. */
TW_API TW_WARN_UNUSED tw_status tw_tensor_create_from(tw_tensor **out, tw_context *context, tw_dtype dtype, int rank, const int64_t *dims, const void *data);

/** A random f32 tensor: uniform on [a, b) with a < b, or normal with mean a and standard deviation b >= 0. Philox
 *  4x32-10 keyed by seed, element i drawn from counter i: the same on every machine and for any number of threads. */
TW_API TW_WARN_UNUSED tw_status tw_tensor_create_random(tw_tensor **out, tw_context *context, int rank, const int64_t *dims, tw_random kind, float a, float b, uint64_t seed);

/** Frees a tensor or view, before its context. Memory shared with views lives until the last of them is gone. NULL is
 *  fine. */
TW_API void tw_tensor_destroy(tw_tensor *tensor);

/** Element type. */
TW_API tw_dtype tw_tensor_get_dtype(const tw_tensor *tensor);
/** Number of axes. */
TW_API int tw_tensor_get_rank(const tw_tensor *tensor);
/** Size of one axis; 0 for an axis outside 0 .. rank-1. */
TW_API int64_t tw_tensor_get_dim(const tw_tensor *tensor, int axis);
/** Number of elements. */
TW_API int64_t tw_tensor_count(const tw_tensor *tensor);

/** The elements, row-major; borrowed, valid while the tensor lives. NULL for a view that is not contiguous. */
TW_API void *tw_tensor_data(tw_tensor *tensor);

/** Copies count elements of the tensor's own type out of the tensor, row-major. count must be tw_tensor_count. */
TW_API TW_WARN_UNUSED tw_status tw_tensor_read(const tw_tensor *tensor, void *destination, int64_t count);

/** Copies count elements of the tensor's own type into the tensor, row-major. count must be tw_tensor_count. */
TW_API TW_WARN_UNUSED tw_status tw_tensor_write(tw_tensor *tensor, const void *source, int64_t count);

/** A view with other dims over the same elements; one dim may be -1 (worked out). Errors: SHAPE; STATE if not
 *  contiguous. */
TW_API TW_WARN_UNUSED tw_status tw_tensor_reshape(tw_tensor **out, tw_tensor *tensor, int rank, const int64_t *dims);

/** A view of elements start .. start+length-1 along one axis. Errors: ARGUMENT if outside. */
TW_API TW_WARN_UNUSED tw_status tw_tensor_slice(tw_tensor **out, tw_tensor *tensor, int axis, int64_t start, int64_t length);

/** A new tensor with every element converted (round to nearest even; integers saturate, NaN to integer is 0). */
TW_API TW_WARN_UNUSED tw_status tw_tensor_cast(tw_tensor **out, const tw_tensor *tensor, tw_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif

/* Talweg: status codes, version, option structs. Every other header includes this one. */
#ifndef TALWEG_BASE_H
#define TALWEG_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TW_VERSION_MAJOR 0
#define TW_VERSION_MINOR 1
#define TW_VERSION_PATCH 0

#if defined(__GNUC__)
#define TW_API __attribute__((visibility("default")))
#define TW_WARN_UNUSED __attribute__((warn_unused_result))
#define TW_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define TW_API
#define TW_WARN_UNUSED
#define TW_PRINTF(format_index, first_argument)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** What a fallible function returns. Values never change between versions; 0 is success. */
typedef enum tw_status {
    TW_OK = 0,
    TW_ERROR_ARGUMENT = 1,      /**< an argument is outside what the function accepts */
    TW_ERROR_SHAPE = 2,         /**< shapes do not fit each other */
    TW_ERROR_OUT_OF_MEMORY = 3, /**< the cap or the machine's memory is used up */
    TW_ERROR_OVERFLOW = 4,      /**< a size does not fit its type */
    TW_ERROR_FILE = 5,          /**< a file cannot be opened, read or written */
    TW_ERROR_FORMAT = 6,        /**< a file is not what it should be */
    TW_ERROR_LABEL = 7,         /**< a class label is outside 0 .. classes-1 */
    TW_ERROR_NUMERIC = 8,       /**< a loss or gradient is not finite, or an op refuses a value (tw_op_fault) */
    TW_ERROR_UNSUPPORTED = 9,   /**< known, but not available here */
    TW_ERROR_DEVICE = 10,       /**< no such device, or the device failed */
    TW_ERROR_STATE = 11,        /**< the call does not fit the object's state */
    TW_ERROR_MISMATCH = 12,     /**< a file and a model do not fit each other */
    TW_STOPPED = 13,            /**< a stop was requested; what was done is kept */
    TW_ERROR_INTERNAL = 14      /**< a defect in Talweg: please report it */
} tw_status;

/** The symbolic name of a status, e.g. "TW_ERROR_SHAPE"; never NULL. */
TW_API const char *tw_status_name(tw_status status);

/** The calling thread's last failure as text (cause, layer or file, shapes, remedy); "" if there was none.
 *  Borrowed; valid until the thread's next failing call. */
TW_API const char *tw_last_error(void);

/** Forgets the calling thread's last failure. */
TW_API void tw_clear_error(void);

/** The library's version as "major.minor.patch". */
TW_API const char *tw_version(void);

/** Option structs: NULL means all defaults; a field left zero means that field's default. The first field
 *  holds the struct's size, so that a program built against an older header goes on working.
 *  C: pass TW_OPTIONS(conv2d, .padding = 1).  C++: tw_conv2d_options o = TW_CONV2D_OPTIONS_INIT; o.padding = 1; */
#define TW_OPTIONS(kind, ...) (&(tw_##kind##_options){.size = sizeof(tw_##kind##_options), __VA_ARGS__})

/** Element types of tensors and files. */
typedef enum tw_dtype {
    TW_F32 = 0,
    TW_F16 = 1,
    TW_BF16 = 2,
    TW_I32 = 3,
    TW_I64 = 4,
    TW_U8 = 5
} tw_dtype;

/** Bytes of one element: 4, 2, 2, 4, 8, 1; 0 for an unknown type. */
TW_API size_t tw_dtype_size(tw_dtype dtype);

/** "f32", "f16", "bf16", "i32", "i64", "u8"; "?" for an unknown type. */
TW_API const char *tw_dtype_name(tw_dtype dtype);

/** Largest number of axes of a tensor or value. */
#define TW_MAX_RANK 6

#ifdef __cplusplus
}
#endif
#endif

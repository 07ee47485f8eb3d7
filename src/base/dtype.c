/* Sizes and names of the element types and of precisions. Converting between types is in half.c. */
#include "dtype_text.h"
#include <talweg/precision.h>

#include <stdio.h>

static const struct {
    size_t size;
    const char *name;
} dtypes[] = {
    [TW_F32] = {4, "f32"}, [TW_F16] = {2, "f16"}, [TW_BF16] = {2, "bf16"},
    [TW_I32] = {4, "i32"}, [TW_I64] = {8, "i64"}, [TW_U8] = {1, "u8"},
};

static bool known(tw_dtype dtype) { return (unsigned)dtype < sizeof dtypes / sizeof dtypes[0]; }

size_t tw_dtype_size(tw_dtype dtype) { return known(dtype) ? dtypes[dtype].size : 0; }

const char *tw_dtype_name(tw_dtype dtype) { return known(dtype) ? dtypes[dtype].name : "?"; }

const char *twi_dtype_text(tw_dtype dtype, char out[TWI_DTYPE_TEXT]) {
    if (known(dtype)) return dtypes[dtype].name;
    snprintf(out, TWI_DTYPE_TEXT, "type %d, which is none of tw_dtype", (int)dtype);
    return out;
}

const char *tw_precision_name(tw_precision precision) {
    static const char *const names[] = {
        [TW_PRECISION_F32] = "f32", [TW_PRECISION_TF32] = "tf32", [TW_PRECISION_BF16] = "bf16",
        [TW_PRECISION_F16] = "f16", [TW_PRECISION_AUTO] = "auto",
    };
    return (unsigned)precision < sizeof names / sizeof *names ? names[precision] : "?";
}

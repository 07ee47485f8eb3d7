/* Reading and filling structs by their size field. What the fields mean is left to their owners. */
#include "options.h"

#include <string.h>

/* No options struct comes near this; a size above it is a field that was never set. */
#define SIZE_MAX_PLAUSIBLE 65536u

static tw_status refuse_size(size_t size, size_t expected, const char *what) {
    return TWI_FAIL(TW_ERROR_ARGUMENT,
                    "%s: the struct's size field is %zu, expected %zu as this library was built; fill the struct "
                    "with TW_OPTIONS(...) or its _INIT value, which set the field",
                    what, size, expected);
}

static tw_status read_size(size_t *out, const void *sized, size_t expected, const char *what) {
    memcpy(out, sized, sizeof *out);
    if (*out < sizeof *out || *out > SIZE_MAX_PLAUSIBLE) return refuse_size(*out, expected, what);
    return TW_OK;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

tw_status twi_options_read(void *out, size_t out_size, const void *in, const char *what) {
    memset(out, 0, out_size);
    if (in) {
        size_t size;
        TWI_TRY(read_size(&size, in, out_size, what));
        memcpy(out, in, smaller(size, out_size));
    }
    memcpy(out, &out_size, sizeof out_size);
    return TW_OK;
}

tw_status twi_options_write(void *out, const void *in, size_t in_size, const char *what) {
    size_t size;
    TWI_TRY(read_size(&size, out, in_size, what));
    memcpy(out, in, smaller(size, in_size));
    memcpy(out, &size, sizeof size);
    return TW_OK;
}

tw_status twi_options_check_within(size_t size, size_t expected, const char *what) {
    return size && size != expected ? refuse_size(size, expected, what) : TW_OK;
}

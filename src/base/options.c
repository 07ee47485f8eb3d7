/* Reading option structs by their size field. What the fields mean is left to their owners. */
#include "options.h"

#include <string.h>

/* No options struct comes near this; a size above it is a field that was never set. */
#define SIZE_MAX_PLAUSIBLE 65536u

tw_status twi_options_read(void *out, size_t out_size, const void *in, const char *what) {
    memset(out, 0, out_size);
    if (in) {
        size_t size;
        memcpy(&size, in, sizeof size);
        if (size < sizeof size || size > SIZE_MAX_PLAUSIBLE)
            return TWI_FAIL(
                TW_ERROR_ARGUMENT,
                "%s: the options' size field is %zu, expected %zu as this library was built; fill the struct "
                "with TW_OPTIONS(...) or its _INIT value, which set the field",
                what, size, out_size);
        memcpy(out, in, size < out_size ? size : out_size);
    }
    memcpy(out, &out_size, sizeof out_size);
    return TW_OK;
}

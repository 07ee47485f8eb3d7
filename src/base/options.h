/* How an options struct from the caller is read: the one place that knows what a size field means. */
#ifndef TWI_BASE_OPTIONS_H
#define TWI_BASE_OPTIONS_H

#include "status.h"

/* Fills *out (out_size bytes) from the caller's struct `in`, whose first field is its size_t size: a shorter struct, from a
 * program built against an older header, leaves the later fields zero; of a longer one the known fields are taken. in NULL
 * leaves everything zero. The first field of *out becomes out_size. `what` names the owner, e.g. "tw_loader_create".
 * Errors: TW_ERROR_ARGUMENT for a size that no header ever had (0: a struct that was not made by TW_OPTIONS or _INIT).
 * A field may therefore be added only beyond the old struct's last byte: padding at the end of the old one is unspecified. */
tw_status twi_options_read(void *out, size_t out_size, const void *in, const char *what);

#endif

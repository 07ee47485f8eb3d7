/* How structs that begin with their size pass between caller and library: the one place that knows what the field
 * means. */
#ifndef TWI_BASE_OPTIONS_H
#define TWI_BASE_OPTIONS_H

#include "status.h"

/* Fills *out (out_size bytes) from the caller's struct `in`, whose first field is its size_t size: a shorter struct,
 * from a program built against an older header, leaves the later fields zero; of a longer one the known fields are
 * taken. in NULL leaves everything zero. The first field of *out becomes out_size. `what` names the owner, e.g.
 * "tw_loader_create".
 * Errors: TW_ERROR_ARGUMENT for a size that no header ever had (0: a struct that was not made by TW_OPTIONS or _INIT).
 * A field may therefore be added only beyond the old struct's last byte: padding at the end of the old one is
 * unspecified. */
tw_status twi_options_read(void *out, size_t out_size, const void *in, const char *what);

/* Fills the caller's struct `out`, whose first field is its size_t size, from in_size bytes of *in: as much as both
 * have. The size stays, and what only the caller knows of stays as it was. Errors: TW_ERROR_ARGUMENT as above. */
tw_status twi_options_write(void *out, const void *in, size_t in_size, const char *what);

/* A struct that lies within another, whose size field says `size`: 0 where it was left out. Whoever made the outer struct
 * has placed what follows by the inner one's size, so no other than the library's own will do. Errors: TW_ERROR_ARGUMENT. */
tw_status twi_options_check_within(size_t size, size_t expected, const char *what);

#endif

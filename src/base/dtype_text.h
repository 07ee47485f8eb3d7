/* Element types in messages, also those that are none. */
#ifndef TWI_BASE_DTYPE_TEXT_H
#define TWI_BASE_DTYPE_TEXT_H

#include <talweg/base.h>

/* Its name, or the number that is none's. */
#define TWI_DTYPE_TEXT 48
const char *twi_dtype_text(tw_dtype dtype, char out[TWI_DTYPE_TEXT]);

#endif

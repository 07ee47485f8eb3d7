/* The one clock of the library: for measuring and for waiting, never for results. */
#ifndef TWI_BASE_CLOCK_H
#define TWI_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since some moment before the program began; never goes back. */
int64_t twi_clock(void);

#endif

/* A growing string, for dumps and long messages. Sticky: after a failed allocation appends do nothing and
 * twi_text_take reports it. */
#ifndef TWI_BASE_TEXT_H
#define TWI_BASE_TEXT_H

#include "memory.h"

typedef struct twi_text {
    twi_memory *memory;
    char *data;
    size_t length, capacity;
    tw_status status;
} twi_text;

void twi_text_init(twi_text *text, twi_memory *memory);
void twi_text_add(twi_text *text, const char *format, ...) TW_PRINTF(2, 3);
/* Hands the string over (owned by the caller, freed with twi_put) or returns the recorded failure. */
tw_status twi_text_take(twi_text *text, char **out);
void twi_text_free(twi_text *text);

/* "12.3 MB", "1.21 GFLOP" style: value with a unit prefix in powers of 1000, three digits. */
#define TWI_QUANTITY_TEXT 32
const char *twi_quantity(double value, const char *unit, char out[TWI_QUANTITY_TEXT]);

/* What follows the noun that was counted: "1 sample", "2 samples". */
static inline const char *twi_plural(int64_t count) { return count == 1 ? "" : "s"; }

/* Numbers as the C locale writes and reads them, for this thread, whatever the program's locale is: until leave gets
 * what enter returned. */
void *twi_plain_numbers_enter(void);
void twi_plain_numbers_leave(void *before);

#endif

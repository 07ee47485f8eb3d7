/* The one thing about writing JSON that wants care: strings. */
#ifndef TWI_IO_JSON_WRITER_H
#define TWI_IO_JSON_WRITER_H

#include "base/text.h"

/* Adds head and tail as one string, quoted and escaped. */
void twi_json_add_string(twi_text *text, const char *head, const char *tail);

#endif

/* A JSON reader for headers: walks a text in memory, one value after the other, and believes nothing. */
#ifndef TWI_IO_JSON_READER_H
#define TWI_IO_JSON_READER_H

#include "base/memory.h"

typedef struct twi_json {
    const char *at, *end;
    const char *where; /* file, for messages */
    const char *item;  /* what is being read, e.g. a tensor's name; NULL: the text as a whole */
} twi_json;

tw_status twi_json_fail(const twi_json *json, const char *expected);
/* Skips white space and takes the character, or fails naming it. */
tw_status twi_json_expect(twi_json *json, char c);
/* Takes the character if it is next. */
bool twi_json_accept(twi_json *json, char c);
/* A string, escapes decoded, UTF-8, at most `capacity` - 1 bytes; fails on embedded NUL and broken escapes. Decoding never
 * lengthens: a capacity of the text's length + 1 holds any string of it. */
tw_status twi_json_string(twi_json *json, char *out, size_t capacity);
/* A whole number 0 .. 2^63-1; fractions, exponents and signs are refused. */
tw_status twi_json_whole(twi_json *json, uint64_t *out);
bool twi_json_at_end(twi_json *json);

#endif

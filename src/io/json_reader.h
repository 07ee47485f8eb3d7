/* A JSON reader for headers: walks a text in memory, one value after the other, and believes nothing. */
#ifndef TWI_IO_JSON_READER_H
#define TWI_IO_JSON_READER_H

#include "base/memory.h"

typedef struct twi_json {
    const char *at, *end;
    const char *where; /* file, for messages */
    const char *part;  /* of the file, for messages: "header" */
    const char *item;  /* what is being read, e.g. a tensor's name; NULL: the text as a whole */
} twi_json;

/* Reads what comes next into the reader's own struct. */
typedef tw_status (*twi_json_read)(twi_json *json, void *self);

typedef tw_status (*twi_json_read_key)(twi_json *json, const char *key, void *self);

/* A key of an object and what reads its value. */
typedef struct twi_json_member {
    const char *key;
    twi_json_read read;
    bool optional;
} twi_json_member;

tw_status twi_json_fail(const twi_json *json, const char *expected);
/* Skips white space and takes the character, or fails naming it. */
tw_status twi_json_expect(twi_json *json, char c);
/* Takes the character if it is next. */
bool twi_json_accept(twi_json *json, char c);
/* A string, escapes decoded, UTF-8, at most `capacity` - 1 bytes; fails on embedded NUL and broken escapes. Decoding
 * never lengthens: a capacity of the text's length + 1 holds any string of it. */
tw_status twi_json_string(twi_json *json, char *out, size_t capacity);
/* A whole number 0 .. 2^63-1; fractions, exponents and signs are refused. */
tw_status twi_json_whole(twi_json *json, uint64_t *out);
/* The same with a sign: -2^63+1 .. 2^63-1. */
tw_status twi_json_integer(twi_json *json, int64_t *out);
/* A number that a float can hold. Reads as the thread's locale does: see twi_plain_numbers_enter. */
tw_status twi_json_float(twi_json *json, float *out);
tw_status twi_json_bool(twi_json *json, bool *out);
/* An array, its elements read by `read`, in order. */
tw_status twi_json_array(twi_json *json, twi_json_read read, void *self);
/* An object of any keys, each of less than 64 bytes: `read` gets every key and reads its value. */
tw_status twi_json_map(twi_json *json, twi_json_read_key read, void *self);
/* Fails for a key that is unknown, say. */
tw_status twi_json_refuse_key(const twi_json *json, const char *key, const char *problem);
/* An object: every key at most once, none but those of the table (at most 32), none missing that is not optional. */
tw_status twi_json_object(twi_json *json, const twi_json_member *members, int count, void *self);
bool twi_json_at_end(twi_json *json);

#endif

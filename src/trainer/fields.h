/* Numbers of a struct as texts under keys, and back: what a checkpoint says beside its tensors. */
#ifndef TWI_TRAINER_FIELDS_H
#define TWI_TRAINER_FIELDS_H

#include "base/text.h"

enum { TWI_FIELD_TEXT = 1024 };

/* A kind of number. Texts are exact; they are those of the C locale: see twi_plain_numbers_enter. */
typedef struct twi_field_kind {
    void (*print)(const void *value, char text[TWI_FIELD_TEXT]);
    const char *(*parse)(const char *text,
                         void *value); /* the end of what was read; NULL: no such number. None is below 0 */
} twi_field_kind;

extern const twi_field_kind twi_field_int, twi_field_int64, twi_field_uint64, twi_field_bool, twi_field_float,
    twi_field_double, twi_field_precision, twi_field_rules /* of tw_trainer_options */, twi_field_optimizer, twi_field_schedule,
    twi_field_non_finite, twi_field_normalization;

typedef struct twi_field {
    const char *key; /* NULL ends a table */
    const twi_field_kind *kind;
    size_t offset; /* in the struct */
    const char *preset; /* what files say that do not have the key yet; NULL: all have it */
} twi_field;

/* Where texts are: of a file's key, or NULL. */
typedef const char *(*twi_field_find)(const void *source, const char *key);

void twi_fields_print(const twi_field *fields, const void *values, twi_text *text,
                      void (*add)(twi_text *text, const char *key, const char *value));
/* All fields of `values`, or none known to be right. Errors: FORMAT naming `where` and the key. */
tw_status twi_fields_parse(const twi_field *fields, void *values, twi_field_find find, const void *source,
                           const char *where);
/* Adds "key (value here, text there)" for every field that says otherwise. Errors: FORMAT as above. */
tw_status twi_fields_compare(const twi_field *fields, const void *values, twi_field_find find, const void *source,
                             const char *where, twi_text *differences);
/* The same for two structs. */
void twi_fields_differ(const twi_field *fields, const void *here, const void *there, twi_text *differences);

#endif

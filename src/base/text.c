/* A growing string and numbers with unit prefixes. Writing text to files is left to others. */
#define _POSIX_C_SOURCE 200809L /* uselocale */
#include "text.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void twi_text_init(twi_text *text, twi_memory *memory) { *text = (twi_text){.memory = memory}; }

/* Makes room for `more` characters and the final zero. */
static tw_status make_room(twi_text *text, size_t more) {
    size_t needed;
    TWI_TRY(twi_add_size(&needed, text->length + 1, more, "text"));
    if (needed <= text->capacity) return TW_OK;
    size_t capacity = text->capacity < 128 ? 256 : text->capacity * 2;
    if (capacity < needed) capacity = needed;
    TWI_TRY(twi_grow(text->memory, &text->data, capacity, 1, "text"));
    text->capacity = capacity;
    return TW_OK;
}

void twi_text_add(twi_text *text, const char *format, ...) {
    if (text->status) return;
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0)
        text->status = TWI_FAIL(TW_ERROR_INTERNAL, "text: the format \"%s\" cannot be written", format);
    else
        text->status = make_room(text, (size_t)length);
    if (!text->status) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

tw_status twi_text_take(twi_text *text, char **out) {
    *out = NULL;
    if (!text->status) text->status = make_room(text, 0); /* nothing added yet: an empty string is a string */
    tw_status status = text->status;
    if (!status) {
        *out = text->data;
        text->data = NULL;
    }
    twi_text_free(text);
    return status;
}

void twi_text_free(twi_text *text) {
    twi_put(text->memory, text->data);
    twi_text_init(text, text->memory);
}

const char *twi_quantity(double value, const char *unit, char out[TWI_QUANTITY_TEXT]) {
    static const char *const prefixes[] = {"n", "u", "m", "", "k", "M", "G", "T", "P", "E"};
    const int none = 3, last = 9;
    int prefix = none;
    /* 999.5 and more would be written as 1000. */
    for (; fabs(value) >= 999.5 && prefix < last; prefix++) value /= 1000;
    for (; fabs(value) < 0.9995 && value != 0 && prefix > 0; prefix--) value *= 1000;
    double size = fabs(value);
    int decimals = prefix == none && value == floor(value) ? 0 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
    snprintf(out, TWI_QUANTITY_TEXT, "%.*f %s%s", decimals, value, prefixes[prefix], unit);
    return out;
}

void *twi_plain_numbers_enter(void) {
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* takes no memory: every C library has it made */
    return plain ? uselocale(plain) : NULL;
}

void twi_plain_numbers_leave(void *before) {
    if (before) freelocale(uselocale((locale_t)before));
}

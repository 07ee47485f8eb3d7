/* JSON strings (RFC 8259). Reading is in json_reader.c. */
#include "json_writer.h"

void twi_json_add_string(twi_text *text, const char *head, const char *tail) {
    const char *const parts[] = {head, tail};
    twi_text_add(text, "\"");
    for (int i = 0; i < 2; i++)
        for (const unsigned char *c = (const unsigned char *)parts[i]; *c; c++)
            twi_text_add(text, *c == '"' || *c == '\\' ? "\\%c" : *c < ' ' ? "\\u%04x" : "%c", *c);
    twi_text_add(text, "\"");
}

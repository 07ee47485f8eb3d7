/* Texts in and out, alike in all commands: values of options, and strings of JSON. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool twi_cli_read_whole(const char *text, int64_t least, int64_t most, int64_t *out) {
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    *out = value;
    return *text >= '0' && *text <= '9' && !*end && !errno && value >= least && value <= most;
}

bool twi_cli_read_precision(const char *text, tw_precision *out) {
    for (int p = TW_PRECISION_F32; p <= TW_PRECISION_AUTO; p++)
        if (strcmp(text, tw_precision_name((tw_precision)p)) == 0) return *out = (tw_precision)p, true;
    return false;
}

const char *twi_cli_plural(int64_t count) { return count == 1 ? "" : "s"; }

/* Bytes of the UTF-8 character at `c`; 0: it is none, or longer, or a surrogate, or beyond U+10FFFF. */
static int character(const unsigned char *c) {
    static const struct {
        unsigned char mask, lead;
        unsigned least;
    } forms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (int more = 0; more < 4; more++) {
        if ((*c & forms[more].mask) != forms[more].lead) continue;
        unsigned code = *c & (unsigned char)~forms[more].mask;
        for (int i = 1; i <= more; i++) {
            if ((c[i] & 0xc0) != 0x80) return 0; /* the end of the text, too */
            code = code << 6 | (c[i] & 0x3fu);
        }
        return code >= forms[more].least && code <= 0x10ffff && code >> 11 != 0x1b ? more + 1 : 0;
    }
    return 0;
}

/* Names of files and cards can hold any bytes; JSON is UTF-8, so that others become U+FFFD. */
void twi_cli_print_json(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        const int length = character(c);
        if (!length)
            fputs("\\ufffd", stdout);
        else if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < ' ')
            printf("\\u%04x", *c);
        else
            fwrite(c, 1, (size_t)length, stdout);
        c += length ? length : 1;
    }
    putchar('"');
}

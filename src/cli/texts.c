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

void twi_cli_print_json(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < ' ')
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    putchar('"');
}

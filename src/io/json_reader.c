/* Values and punctuation of JSON (RFC 8259). What is read knows what it expects, so nothing nests deeper than that. */
#include "json_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void skip_space(twi_json *json) {
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
        json->at++;
}

tw_status twi_json_fail(const twi_json *json, const char *expected) {
    char found[16];
    size_t length = 0;
    for (const char *c = json->at; c < json->end && length + 1 < sizeof found && *c >= ' ' && *c < 127; c++)
        found[length++] = *c;
    found[length] = 0;
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: %s%s%.200s%s: expected %s, found %s%s%s", json->where, json->part,
                    json->item ? ", '" : "", json->item ? json->item : "", json->item ? "'" : "", expected,
                    length ? "'" : "the end or no printable character", found, length ? "'" : "");
}

bool twi_json_accept(twi_json *json, char c) {
    skip_space(json);
    if (json->at >= json->end || *json->at != c) return false;
    json->at++;
    return true;
}

tw_status twi_json_expect(twi_json *json, char c) {
    const char text[] = {'\'', c, '\'', 0};
    return twi_json_accept(json, c) ? TW_OK : twi_json_fail(json, text);
}

bool twi_json_at_end(twi_json *json) {
    skip_space(json);
    return json->at == json->end;
}

static tw_status hex4(twi_json *json, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = json->at < json->end ? *json->at : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return twi_json_fail(json, "four hexadecimal digits after \\u");
        *out = *out * 16 + (uint32_t)digit;
        json->at++;
    }
    return TW_OK;
}

static tw_status unicode(twi_json *json, uint32_t *out) {
    TWI_TRY(hex4(json, out));
    if (*out >= 0xD800 && *out < 0xDC00) { /* the first half of a pair */
        uint32_t low;
        if (json->end - json->at < 2 || json->at[0] != '\\' || json->at[1] != 'u')
            return twi_json_fail(json, "the second half of a surrogate pair");
        json->at += 2;
        TWI_TRY(hex4(json, &low));
        if (low < 0xDC00 || low > 0xDFFF) return twi_json_fail(json, "the second half of a surrogate pair");
        *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
    } else if (*out >= 0xDC00 && *out <= 0xDFFF) {
        return twi_json_fail(json, "the first half of a surrogate pair");
    }
    return *out ? TW_OK : twi_json_fail(json, "a character other than NUL");
}

static int encode(uint32_t code, char out[4]) {
    if (code < 0x80) return out[0] = (char)code, 1;
    if (code < 0x800) return out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
    if (code < 0x10000)
        return out[0] = (char)(0xE0 | code >> 12), out[1] = (char)(0x80 | (code >> 6 & 63)),
               out[2] = (char)(0x80 | (code & 63)), 3;
    out[0] = (char)(0xF0 | code >> 18), out[1] = (char)(0x80 | (code >> 12 & 63));
    return out[2] = (char)(0x80 | (code >> 6 & 63)), out[3] = (char)(0x80 | (code & 63)), 4;
}

tw_status twi_json_string(twi_json *json, char *out, size_t capacity) {
    static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    size_t length = 0;
    TWI_TRY(twi_json_expect(json, '"'));
    while (json->at < json->end && *json->at != '"') {
        char bytes[4] = {*json->at++};
        int count = 1;
        if ((unsigned char)bytes[0] < ' ')
            return json->at--, twi_json_fail(json, "no control character inside a string");
        if (bytes[0] == '\\') {
            const char *known = json->at < json->end && *json->at ? strchr(escapes, *json->at) : NULL;
            if (known) {
                bytes[0] = meanings[known - escapes];
                json->at++;
            } else if (json->at < json->end && *json->at == 'u') {
                uint32_t code;
                json->at++;
                TWI_TRY(unicode(json, &code));
                count = encode(code, bytes);
            } else {
                return twi_json_fail(json, "a known escape after '\\'");
            }
        }
        if (length + (size_t)count >= capacity) return json->at -= count, twi_json_fail(json, "a shorter string");
        memcpy(out + length, bytes, (size_t)count);
        length += (size_t)count;
    }
    out[length] = 0;
    return twi_json_expect(json, '"');
}

tw_status twi_json_whole(twi_json *json, uint64_t *out) {
    skip_space(json);
    const char *start = json->at;
    *out = 0;
    while (json->at < json->end && *json->at >= '0' && *json->at <= '9') {
        uint64_t digit = (uint64_t)(*json->at - '0');
        if (*out > (INT64_MAX - digit) / 10) return json->at = start, twi_json_fail(json, "a whole number below 2^63");
        *out = *out * 10 + digit;
        json->at++;
    }
    bool more = json->at < json->end && (*json->at == '.' || *json->at == 'e' || *json->at == 'E');
    if (json->at == start || more || (*start == '0' && json->at > start + 1))
        return json->at = start, twi_json_fail(json, "a whole number");
    return TW_OK;
}

/* The digits at `at`, at least one. NULL: there is none. */
static const char *skip_digits(const char *at, const char *end) {
    const char *start = at;
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at > start ? at : NULL;
}

tw_status twi_json_integer(twi_json *json, int64_t *out) {
    uint64_t size;
    const bool negative = twi_json_accept(json, '-');
    if (negative && !skip_digits(json->at, json->end)) return twi_json_fail(json, "digits after '-'");
    TWI_TRY(twi_json_whole(json, &size));
    *out = negative ? -(int64_t)size : (int64_t)size;
    return TW_OK;
}

/* The end of the number that begins at `at`; NULL: there is no number. */
static const char *number_end(const char *at, const char *end) {
    if (at < end && *at == '-') at++;
    const char *whole = at;
    at = skip_digits(at, end);
    if (!at || (*whole == '0' && at > whole + 1)) return NULL;
    if (at < end && *at == '.') at = skip_digits(at + 1, end);
    if (at && at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        at = skip_digits(at, end);
    }
    return at;
}

tw_status twi_json_float(twi_json *json, float *out) {
    char text[64]; /* strtod wants a 0 at the end */
    skip_space(json);
    const char *end = number_end(json->at, json->end);
    if (!end || end - json->at >= (ptrdiff_t)sizeof text)
        return twi_json_fail(json, "a number of less than 64 characters");
    const size_t length = (size_t)(end - json->at);
    memcpy(text, json->at, length);
    text[length] = 0;
    *out = (float)strtod(text, NULL);
    if (!isfinite(*out)) return twi_json_fail(json, "a number that a float can hold");
    json->at = end;
    return TW_OK;
}

static bool accept_word(twi_json *json, const char *word) {
    const size_t length = strlen(word);
    skip_space(json);
    if ((size_t)(json->end - json->at) < length || memcmp(json->at, word, length) != 0) return false;
    json->at += length;
    return true;
}

tw_status twi_json_bool(twi_json *json, bool *out) {
    *out = accept_word(json, "true");
    return *out || accept_word(json, "false") ? TW_OK : twi_json_fail(json, "true or false");
}

tw_status twi_json_array(twi_json *json, twi_json_read read, void *self) {
    TWI_TRY(twi_json_expect(json, '['));
    if (twi_json_accept(json, ']')) return TW_OK;
    do {
        TWI_TRY(read(json, self));
    } while (twi_json_accept(json, ','));
    return twi_json_expect(json, ']');
}

tw_status twi_json_refuse_key(const twi_json *json, const char *key, const char *problem) {
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: %s%s%.200s%s: key '%.60s' is %s", json->where, json->part,
                    json->item ? ", '" : "", json->item ? json->item : "", json->item ? "'" : "", key, problem);
}

tw_status twi_json_map(twi_json *json, twi_json_read_key read, void *self) {
    char key[64];
    TWI_TRY(twi_json_expect(json, '{'));
    if (twi_json_accept(json, '}')) return TW_OK;
    do {
        TWI_TRY(twi_json_string(json, key, sizeof key));
        TWI_TRY(twi_json_expect(json, ':'));
        TWI_TRY(read(json, key, self));
    } while (twi_json_accept(json, ','));
    return twi_json_expect(json, '}');
}

typedef struct object {
    const twi_json_member *members;
    int count;
    uint32_t seen; /* a bit a member */
    void *self;
} object;

static tw_status read_member(twi_json *json, const char *key, void *self) {
    object *o = self;
    int found = 0;
    while (found < o->count && strcmp(o->members[found].key, key) != 0) found++;
    if (found == o->count || o->seen >> found & 1) return twi_json_refuse_key(json, key, "unknown or repeated");
    o->seen |= (uint32_t)1 << found;
    return o->members[found].read(json, o->self);
}

tw_status twi_json_object(twi_json *json, const twi_json_member *members, int count, void *self) {
    object o = {members, count, 0, self};
    TWI_TRY(twi_json_map(json, read_member, &o));
    for (int i = 0; i < count; i++)
        if (!members[i].optional && !(o.seen >> i & 1)) return twi_json_refuse_key(json, members[i].key, "missing");
    return TW_OK;
}

/* Strings, whole numbers and punctuation of JSON (RFC 8259), no more than headers need. */
#include "json_reader.h"

#include <string.h>

static void skip_space(twi_json *json) {
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r')) json->at++;
}

tw_status twi_json_fail(const twi_json *json, const char *expected) {
    char found[16];
    size_t length = 0;
    for (const char *c = json->at; c < json->end && length + 1 < sizeof found && *c >= ' ' && *c < 127; c++) found[length++] = *c;
    found[length] = 0;
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: header%s%.200s%s: expected %s, found %s%s%s", json->where, json->item ? ", '" : "",
                    json->item ? json->item : "", json->item ? "'" : "", expected,
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
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
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
        if (json->end - json->at < 2 || json->at[0] != '\\' || json->at[1] != 'u') return twi_json_fail(json, "the second half of a surrogate pair");
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
    if (code < 0x10000) return out[0] = (char)(0xE0 | code >> 12), out[1] = (char)(0x80 | (code >> 6 & 63)), out[2] = (char)(0x80 | (code & 63)), 3;
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
        if ((unsigned char)bytes[0] < ' ') return json->at--, twi_json_fail(json, "no control character inside a string");
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
    if (json->at == start || more || (*start == '0' && json->at > start + 1)) return json->at = start, twi_json_fail(json, "a whole number");
    return TW_OK;
}

/* Cards from JSON files: the figures of a card that is not known, or a known one with other figures. */
#include "backend/cards.h"
#include "base/options.h"
#include "base/text.h"
#include "io/json_reader.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { FILE_TEXT = 16384 };

static tw_status read_text(twi_json *json, char *out, size_t capacity, const char *item) {
    json->item = item;
    tw_status status = twi_json_string(json, out, capacity);
    json->item = NULL;
    return status;
}

static tw_status read_key(twi_json *json, void *self) {
    tw_card *card = self;
    return read_text(json, card->key, sizeof card->key, "key");
}

static tw_status read_name(twi_json *json, void *self) {
    tw_card *card = self;
    return read_text(json, card->name, sizeof card->name, "name");
}

static tw_status read_source(twi_json *json, void *self) {
    tw_card *card = self;
    return read_text(json, card->source, sizeof card->source, "source");
}

/* A whole number up to `most`. */
static tw_status read_whole(twi_json *json, uint64_t most, const char *item, const char *range, uint64_t *out) {
    json->item = item;
    tw_status status = twi_json_whole(json, out);
    if (status == TW_OK && *out > most) status = twi_json_fail(json, range);
    json->item = NULL;
    return status;
}

static tw_status read_int(twi_json *json, const char *item, int *out) {
    uint64_t value = 0;
    TWI_TRY(read_whole(json, 1000000, item, "at most 1000000 before this", &value));
    *out = (int)value;
    return TW_OK;
}

static tw_status read_capability(twi_json *json, void *self) {
    return read_int(json, "capability", &((tw_card *)self)->capability);
}

static tw_status read_processors(twi_json *json, void *self) {
    return read_int(json, "processors", &((tw_card *)self)->processors);
}

static tw_status read_clock(twi_json *json, void *self) {
    return read_int(json, "clock_mhz", &((tw_card *)self)->clock_mhz);
}

/* Times a unit; what is below a byte is dropped. */
static tw_status read_amount(twi_json *json, const char *item, double unit, double *out) {
    float value;
    json->item = item;
    tw_status status = twi_json_float(json, &value);
    if (status == TW_OK && !(value >= 0 && value < 1e9f))
        status = twi_json_fail(json, "a number from 0 to 10^9 before this");
    json->item = NULL;
    *out = status == TW_OK ? (double)value * unit : 0;
    return status;
}

static tw_status read_bytes(twi_json *json, const char *item, double unit, size_t *out) {
    double value;
    TWI_TRY(read_amount(json, item, unit, &value));
    *out = (size_t)value;
    return TW_OK;
}

static tw_status read_memory(twi_json *json, void *self) {
    return read_bytes(json, "memory_gib", 1073741824, &((tw_card *)self)->memory_bytes);
}

static tw_status read_l2(twi_json *json, void *self) {
    return read_bytes(json, "l2_mib", 1048576, &((tw_card *)self)->l2_bytes);
}

static tw_status read_bandwidth(twi_json *json, void *self) {
    return read_amount(json, "bandwidth_gbs", 1e9, &((tw_card *)self)->bandwidth);
}

static tw_status read_f32(twi_json *json, void *self) {
    return read_amount(json, "f32_tflops", 1e12, &((tw_card *)self)->f32);
}

static tw_status read_tf32(twi_json *json, void *self) {
    return read_amount(json, "tf32_tflops", 1e12, &((tw_card *)self)->tf32);
}

static tw_status read_bf16(twi_json *json, void *self) {
    return read_amount(json, "bf16_tflops", 1e12, &((tw_card *)self)->bf16);
}

static tw_status read_f16(twi_json *json, void *self) {
    return read_amount(json, "f16_tflops", 1e12, &((tw_card *)self)->f16);
}

static const twi_json_member members[] = {
    {"name", read_name, false},
    {"capability", read_capability, false},
    {"processors", read_processors, false},
    {"memory_gib", read_memory, false},
    {"key", read_key, true},
    {"clock_mhz", read_clock, true},
    {"l2_mib", read_l2, true},
    {"bandwidth_gbs", read_bandwidth, true},
    {"f32_tflops", read_f32, true},
    {"tf32_tflops", read_tf32, true},
    {"bf16_tflops", read_bf16, true},
    {"f16_tflops", read_f16, true},
    {"source", read_source, true},
};

static tw_status read_card(const char *path, const char *text, size_t length, tw_card *card) {
    twi_json json = {.at = text, .end = text + length, .where = path, .part = "card"};
    TWI_TRY(twi_json_object(&json, members, sizeof members / sizeof *members, card));
    if (!twi_json_at_end(&json)) return twi_json_fail(&json, "the end");
    if (!*card->key) snprintf(card->key, sizeof card->key, "card");
    return TW_OK;
}

static tw_status read_file(const char *path, char text[FILE_TEXT], size_t *length) {
    errno = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return TWI_FAIL(TW_ERROR_FILE, "%s: cannot be opened: %s", path, strerror(errno));
    *length = fread(text, 1, FILE_TEXT, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    if (failed) return TWI_FAIL(TW_ERROR_FILE, "%s: cannot be read: %s", path, strerror(errno));
    if (*length == FILE_TEXT)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: longer than the %d bytes that a card takes", path, FILE_TEXT - 1);
    return TW_OK;
}

tw_status tw_card_load(tw_card *out, const char *path) {
    static const char what[] = "tw_card_load";
    if (!out || !path) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", what, out ? "path" : "out");
    char text[FILE_TEXT];
    size_t length;
    tw_card card = TW_CARD_INIT;
    TWI_TRY(read_file(path, text, &length));
    void *numbers = twi_plain_numbers_enter();
    tw_status status = read_card(path, text, length, &card);
    twi_plain_numbers_leave(numbers);
    return status ? status : twi_options_write(out, &card, sizeof card, what);
}

/* Printing, parsing and comparing by tables of fields. */
#include "fields.h"
#include "data/sampler.h"
#include "base/philox.h"
#include <talweg/trainer.h>

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- kinds ---- */

/* Parsing functions begin at a digit: no blanks, no signs, no words. */
static bool at_digit(const char *text) { return isdigit((unsigned char)*text); }

static const char *parse_whole(const char *text, uint64_t most, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return at_digit(text) && !errno && *value <= most ? end : NULL;
}

static void print_int(const void *value, char text[TWI_FIELD_TEXT]) {
    snprintf(text, TWI_FIELD_TEXT, "%d", *(const int *)value);
}
static const char *parse_int(const char *text, void *value) {
    uint64_t whole;
    const char *end = parse_whole(text, INT_MAX, &whole);
    if (end) *(int *)value = (int)whole;
    return end;
}

static void print_int64(const void *value, char text[TWI_FIELD_TEXT]) {
    snprintf(text, TWI_FIELD_TEXT, "%lld", (long long)*(const int64_t *)value);
}
static const char *parse_int64(const char *text, void *value) {
    uint64_t whole;
    const char *end = parse_whole(text, INT64_MAX, &whole);
    if (end) *(int64_t *)value = (int64_t)whole;
    return end;
}

static void print_uint64(const void *value, char text[TWI_FIELD_TEXT]) {
    snprintf(text, TWI_FIELD_TEXT, "%llu", (unsigned long long)*(const uint64_t *)value);
}
static const char *parse_uint64(const char *text, void *value) { return parse_whole(text, UINT64_MAX, value); }

static void print_bool(const void *value, char text[TWI_FIELD_TEXT]) {
    snprintf(text, TWI_FIELD_TEXT, "%d", *(const bool *)value);
}
static const char *parse_bool(const char *text, void *value) {
    uint64_t whole;
    const char *end = parse_whole(text, 1, &whole);
    if (end) *(bool *)value = whole == 1;
    return end;
}

static void print_float(const void *value, char text[TWI_FIELD_TEXT]) {
    snprintf(text, TWI_FIELD_TEXT, "%.9g", (double)*(const float *)value);
}

static void print_double(const void *value, char text[TWI_FIELD_TEXT]) {
    snprintf(text, TWI_FIELD_TEXT, "%.17g", *(const double *)value);
}
static const char *parse_double(const char *text, void *value) {
    char *end;
    const double number = strtod(text, &end);
    if (!at_digit(text) || !isfinite(number)) return NULL;
    *(double *)value = number;
    return end;
}

static void print_optimizer(const void *value, char text[TWI_FIELD_TEXT]) {
    static const char *const names[] = {[TW_SGD] = "sgd", [TW_ADAMW] = "adamw"};
    snprintf(text, TWI_FIELD_TEXT, "%s", names[*(const tw_optimizer_kind *)value]);
}

static void print_precision(const void *value, char text[TWI_FIELD_TEXT]) {
    snprintf(text, TWI_FIELD_TEXT, "%s", tw_precision_name(*(const tw_precision *)value));
}

/* "2: conv1=f32 fc=tf32", and a hash, since the text may be cut. */
static void print_rules(const void *value, char text[TWI_FIELD_TEXT]) {
    const tw_trainer_options *o = value;
    uint64_t hash = 0;
    int length = snprintf(text, TWI_FIELD_TEXT, "%d:", o->precision_rule_count);
    for (int i = 0; i < o->precision_rule_count; i++) {
        const tw_precision_rule *rule = &o->precision_rules[i];
        hash = (hash ^ twi_hash_text(rule->layer)) * 31 + (uint64_t)rule->precision;
        if (length < TWI_FIELD_TEXT / 2)
            length += snprintf(text + length, (size_t)(TWI_FIELD_TEXT - length), " %.64s=%s", rule->layer,
                               tw_precision_name(rule->precision));
    }
    if (hash) snprintf(text + length, (size_t)(TWI_FIELD_TEXT - length), " (%016llx)", (unsigned long long)hash);
}

static void print_schedule(const void *value, char text[TWI_FIELD_TEXT]) {
    static const char *const names[] = {
        [TW_SCHEDULE_CONSTANT] = "constant", [TW_SCHEDULE_STEP] = "step", [TW_SCHEDULE_COSINE] = "cosine"};
    snprintf(text, TWI_FIELD_TEXT, "%s", names[*(const tw_schedule_kind *)value]);
}

static void print_non_finite(const void *value, char text[TWI_FIELD_TEXT]) {
    static const char *const names[] = {
        [TW_NON_FINITE_STOP] = "stop", [TW_NON_FINITE_SKIP] = "skip", [TW_NON_FINITE_ROLL_BACK] = "roll back"};
    snprintf(text, TWI_FIELD_TEXT, "%s", names[*(const tw_non_finite *)value]);
}

/* "channels", and for each " mean deviation". */
static void print_normalization(const void *value, char text[TWI_FIELD_TEXT]) {
    const tw_normalization *n = value;
    int length = snprintf(text, TWI_FIELD_TEXT, "%d", n->channels);
    for (int c = 0; c < n->channels; c++)
        length += snprintf(text + length, (size_t)(TWI_FIELD_TEXT - length), " %.9g %.9g", (double)n->mean[c],
                           (double)n->deviation[c]);
}
static const char *parse_normalization(const char *text, void *value) {
    tw_normalization n = {0};
    const char *at = parse_int(text, &n.channels);
    if (!at || n.channels > TW_MAX_CHANNELS) return NULL;
    for (int i = 0; i < 2 * n.channels; i++) {
        char *end;
        *(i % 2 ? &n.deviation[i / 2] : &n.mean[i / 2]) = strtof(at, &end);
        if (*at != ' ' || end == at) return NULL;
        at = end;
    }
    if (twi_normalization_check(&n)) return NULL;
    *(tw_normalization *)value = n;
    return at;
}

const twi_field_kind twi_field_int = {print_int, parse_int}, twi_field_int64 = {print_int64, parse_int64},
                     twi_field_uint64 = {print_uint64, parse_uint64}, twi_field_bool = {print_bool, parse_bool},
                     twi_field_float = {print_float, NULL}, twi_field_double = {print_double, parse_double},
                     twi_field_precision = {print_precision, NULL}, twi_field_rules = {print_rules, NULL},
                     twi_field_optimizer = {print_optimizer, NULL}, twi_field_schedule = {print_schedule, NULL},
                     twi_field_non_finite = {print_non_finite, NULL},
                     twi_field_normalization = {print_normalization, parse_normalization};

/* ---- tables ---- */

static const void *value_of(const twi_field *field, const void *values) { return (const char *)values + field->offset; }

void twi_fields_print(const twi_field *fields, const void *values, twi_text *text,
                      void (*add)(twi_text *text, const char *key, const char *value)) {
    char printed[TWI_FIELD_TEXT];
    for (; fields->key; fields++) {
        fields->kind->print(value_of(fields, values), printed);
        add(text, fields->key, printed);
    }
}

static tw_status text_of(const twi_field *field, twi_field_find find, const void *source, const char *where,
                         const char **text) {
    *text = find(source, field->key);
    if (!*text) *text = field->preset;
    return *text ? TW_OK : TWI_FAIL(TW_ERROR_FORMAT, "%s: its metadata do not hold '%s'", where, field->key);
}

tw_status twi_fields_parse(const twi_field *fields, void *values, twi_field_find find, const void *source,
                           const char *where) {
    for (; fields->key; fields++) {
        const char *text;
        TWI_TRY(text_of(fields, find, source, where, &text));
        const char *end = fields->kind->parse(text, (char *)values + fields->offset);
        if (!end || *end)
            return TWI_FAIL(TW_ERROR_FORMAT, "%s: '%s' of its metadata cannot be '%.100s'", where, fields->key, text);
    }
    return TW_OK;
}

static void add_difference(twi_text *differences, const char *key, const char *here, const char *there) {
    if (strcmp(here, there) != 0)
        twi_text_add(differences, "%s %s (%.100s here, %.100s there)", differences->length ? "," : "", key, here,
                     there);
}

tw_status twi_fields_compare(const twi_field *fields, const void *values, twi_field_find find, const void *source,
                             const char *where, twi_text *differences) {
    char here[TWI_FIELD_TEXT];
    for (; fields->key; fields++) {
        const char *there;
        TWI_TRY(text_of(fields, find, source, where, &there));
        fields->kind->print(value_of(fields, values), here);
        add_difference(differences, fields->key, here, there);
    }
    return TW_OK;
}

void twi_fields_differ(const twi_field *fields, const void *here, const void *there, twi_text *differences) {
    char texts[2][TWI_FIELD_TEXT];
    for (; fields->key; fields++) {
        fields->kind->print(value_of(fields, here), texts[0]);
        fields->kind->print(value_of(fields, there), texts[1]);
        add_difference(differences, fields->key, texts[0], texts[1]);
    }
}

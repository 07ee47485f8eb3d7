/* One row for each type of attribute: how it is written, how it is read. */
#include "attr_text.h"

#include <math.h>
#include <string.h>

enum { MOST_ATTRS = 64 };

typedef struct attr_kind {
    size_t size;
    tw_status (*write)(twi_text *text, const void *field);
    twi_json_read read; /* into the field */
} attr_kind;

static tw_status write_int(twi_text *text, const void *field) {
    twi_text_add(text, "%d", (int)*(const int32_t *)field);
    return TW_OK;
}

static tw_status read_int(twi_json *json, void *field) {
    int64_t value;
    TWI_TRY(twi_json_integer(json, &value));
    if (value < INT32_MIN || value > INT32_MAX) return twi_json_fail(json, "a whole number of 32 bits before this");
    *(int32_t *)field = (int32_t)value;
    return TW_OK;
}

static tw_status write_float(twi_text *text, const void *field) {
    const float value = *(const float *)field;
    if (!isfinite(value)) return TWI_FAIL(TW_ERROR_ARGUMENT, "it is not finite, which a file cannot hold");
    twi_text_add(text, "%.9g", (double)value);
    return TW_OK;
}

static tw_status read_float(twi_json *json, void *field) { return twi_json_float(json, field); }

static tw_status write_bool(twi_text *text, const void *field) {
    twi_text_add(text, *(const bool *)field ? "true" : "false");
    return TW_OK;
}

static tw_status read_bool(twi_json *json, void *field) { return twi_json_bool(json, field); }

static tw_status write_ints(twi_text *text, const void *field) {
    const int64_t *values = field;
    for (int i = 0; i < TW_MAX_RANK; i++) twi_text_add(text, "%s%lld", i ? "," : "[", (long long)values[i]);
    twi_text_add(text, "]");
    return TW_OK;
}

static tw_status read_ints(twi_json *json, void *field) {
    int64_t *values = field;
    for (int i = 0; i < TW_MAX_RANK; i++) {
        TWI_TRY(twi_json_expect(json, i ? ',' : '['));
        TWI_TRY(twi_json_integer(json, &values[i]));
    }
    return twi_json_expect(json, ']');
}

static const attr_kind kinds[] = {
    [TWI_ATTR_INT] = {sizeof(int32_t), write_int, read_int},
    [TWI_ATTR_FLOAT] = {sizeof(float), write_float, read_float},
    [TWI_ATTR_BOOL] = {sizeof(bool), write_bool, read_bool},
    [TWI_ATTR_INTS] = {TW_MAX_RANK * sizeof(int64_t), write_ints, read_ints},
};

tw_status twi_attrs_write(twi_text *text, const twi_op *op, const void *attrs, const void *preset) {
    const char *before = "{";
    if (op->attr_count > MOST_ATTRS)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "the op has %d attributes; a file holds at most %d", op->attr_count,
                        MOST_ATTRS);
    for (int i = 0; i < op->attr_count; i++) {
        const twi_attr *attr = &op->attrs[i];
        const char *field = (const char *)attrs + attr->offset;
        if (memcmp(field, (const char *)preset + attr->offset, kinds[attr->type].size) == 0) continue;
        twi_text_add(text, "%s\"%s\":", before, attr->name);
        tw_status status = kinds[attr->type].write(text, field);
        if (status) return twi_fail_within(status, "attribute '%s'", attr->name);
        before = ",";
    }
    twi_text_add(text, *before == '{' ? "{}" : "}");
    return TW_OK;
}

typedef struct attrs_reader {
    const twi_op *op;
    char *attrs;
    uint64_t seen; /* a bit a row of the table */
} attrs_reader;

static tw_status read_attr(twi_json *json, const char *key, void *self) {
    attrs_reader *reader = self;
    int found = 0;
    const int count = reader->op->attr_count < MOST_ATTRS ? reader->op->attr_count : MOST_ATTRS;
    while (found < count && strcmp(reader->op->attrs[found].name, key) != 0) found++;
    if (found == count)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: %s, '%.200s': the op '%s' has no attribute '%s'", json->where, json->part,
                        json->item, reader->op->name, key);
    if (reader->seen >> found & 1) return twi_json_refuse_key(json, key, "repeated");
    reader->seen |= (uint64_t)1 << found;
    const twi_attr *attr = &reader->op->attrs[found];
    tw_status status = kinds[attr->type].read(json, reader->attrs + attr->offset);
    return status ? twi_fail_within(status, "attribute '%s'", key) : TW_OK;
}

tw_status twi_attrs_read(twi_json *json, const twi_op *op, void *attrs) {
    attrs_reader reader = {op, attrs, 0};
    return twi_json_map(json, read_attr, &reader);
}

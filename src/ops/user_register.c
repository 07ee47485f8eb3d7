/* What a user registers: checked, copied into one block, added to the context's registry. What the op does from then on
 * is in user_op.c. */
#include "base/context.h"
#include "base/options.h"
#include "user_op.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MOST = 40, KERNELS = 3, ATTRS_MOST = 4096 };
static const char *const suffixes[KERNELS] = {"forward", "train", "backward"};
enum { SUFFIX_MOST = sizeof "backward" };

/* Sizes and names of the field types, by tw_op_attr_type and by twi_attr_type. */
static const struct {
    size_t size, alignment;
} attr_types[] = {
    [TWI_ATTR_INT] = {sizeof(int32_t), _Alignof(int32_t)},
    [TWI_ATTR_FLOAT] = {sizeof(float), _Alignof(float)},
    [TWI_ATTR_BOOL] = {sizeof(bool), _Alignof(bool)},
    [TWI_ATTR_INTS] = {sizeof(int64_t[TW_MAX_RANK]), _Alignof(int64_t)},
};
_Static_assert((int)TW_OP_INT == (int)TWI_ATTR_INT && (int)TW_OP_FLOAT == (int)TWI_ATTR_FLOAT &&
                   (int)TW_OP_BOOL == (int)TWI_ATTR_BOOL && (int)TW_OP_INTS == (int)TWI_ATTR_INTS,
               "attribute types are the library's own");

/* ---- checks ---- */

static bool is_name(const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", others[] = "0123456789_";
    if (!text || !*text || !strchr(letters, *text)) return false;
    size_t length = 0;
    while (text[length] && length <= NAME_MOST && (strchr(letters, text[length]) || strchr(others, text[length])))
        length++;
    return !text[length] && length <= NAME_MOST;
}

static tw_status check_attrs(const char *name, const tw_op_options *given) {
    if (given->attrs_size > ATTRS_MOST || given->attr_count < 0 || (given->attr_count > 0 && !given->attrs))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_op_register: op '%s': attrs_size %zu with %d rows at %p: expected at most %d bytes, and a "
                        "table where rows are counted",
                        name, given->attrs_size, given->attr_count, (const void *)given->attrs, ATTRS_MOST);
    for (int i = 0; i < given->attr_count; i++) {
        const tw_op_attr *attr = &given->attrs[i];
        if (!is_name(attr->name))
            return TWI_FAIL(TW_ERROR_ARGUMENT,
                            "tw_op_register: op '%s': attrs[%d] has the name '%.50s', expected letters, digits and "
                            "'_', a letter first, at most %d",
                            name, i, attr->name ? attr->name : "", NAME_MOST);
        if (attr->type < TW_OP_INT || attr->type > TW_OP_INTS)
            return TWI_FAIL(TW_ERROR_ARGUMENT,
                            "tw_op_register: op '%s': attribute '%s' has type %d, none of tw_op_attr_type", name,
                            attr->name, (int)attr->type);
        if (attr_types[attr->type].size > given->attrs_size ||
            attr->offset > given->attrs_size - attr_types[attr->type].size ||
            attr->offset % attr_types[attr->type].alignment)
            return TWI_FAIL(TW_ERROR_ARGUMENT,
                            "tw_op_register: op '%s': attribute '%s', %zu bytes at %zu, is no field of a struct of %zu "
                            "bytes; use offsetof and sizeof",
                            name, attr->name, attr_types[attr->type].size, attr->offset, given->attrs_size);
        for (int k = 0; k < i; k++)
            if (strcmp(given->attrs[k].name, attr->name) == 0)
                return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_op_register: op '%s': two attributes are called '%s'", name,
                                attr->name);
    }
    return TW_OK;
}

static tw_status check(const char *name, const tw_op_options *given) {
    if (!is_name(name))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_op_register: '%.50s' is no name of an op: expected letters, digits and '_', a letter "
                        "first, at most %d",
                        name, NAME_MOST);
    if (given->inputs < 1 || given->parameters < 0 || given->inputs > TW_OP_MAX_INPUTS ||
        given->parameters > TW_OP_MAX_INPUTS - given->inputs)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_op_register: op '%s': %d inputs and %d parameters, expected 1 input or more and %d in all "
                        "at most",
                        name, given->inputs, given->parameters, TW_OP_MAX_INPUTS);
    if (given->layout < TW_OP_ROW_MAJOR || given->layout > TW_OP_ANY_LAYOUT)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_op_register: op '%s': layout %d is none of tw_op_layout", name,
                        (int)given->layout);
    if (given->backward_ignores & ~((TW_OP_INPUT(given->inputs + given->parameters) - 1) | TW_OP_OUTPUT))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_op_register: op '%s': backward_ignores is 0x%x, which names more than its %d inputs and "
                        "TW_OP_OUTPUT",
                        name, given->backward_ignores, given->inputs + given->parameters);
    if (!given->forward_cpu && !given->forward_cuda)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_op_register: op '%s' has no forward; give forward_cpu, forward_cuda or both", name);
    if ((given->backward_cpu && !given->forward_cpu) || (given->backward_cuda && !given->forward_cuda))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_op_register: op '%s' has a backward without a forward for the same device; give both",
                        name);
    return check_attrs(name, given);
}

/* ---- copying ---- */

static char *put_text(char **end, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *at = memcpy(*end, text, bytes);
    *end += bytes;
    return at;
}

/* The record, its attribute rows and its texts in one block. */
static tw_status make(tw_context *context, const char *name, const tw_op_options *given, twi_user_op **out) {
    twi_user_op *user;
    const char *formula = given->formula ? given->formula : "";
    size_t rows = (size_t)given->attr_count * sizeof(twi_attr), texts = strlen(formula) + 1;
    for (int i = 0; i < given->attr_count; i++) texts += strlen(given->attrs[i].name) + 1;
    texts += (KERNELS + 1) * (strlen(name) + 1 + SUFFIX_MOST);
    TWI_TRY(twi_get(context->memory, &user, 1, sizeof *user + rows + texts, "op of a user's"));
    twi_attr *attrs = (twi_attr *)(user + 1);
    char *end = (char *)attrs + rows;
    user->given = *given;
    user->input_count = given->inputs + given->parameters;
    user->given.formula = put_text(&end, formula);
    user->given.attrs = NULL; /* the caller's */
    for (int i = 0; i < given->attr_count; i++) {
        const tw_op_attr *attr = &given->attrs[i];
        attrs[i] = (twi_attr){put_text(&end, attr->name), (uint8_t)attr->type, (uint16_t)attr->offset, attr->preset};
    }
    user->op.name = put_text(&end, name);
    user->op.attrs = attrs;
    user->op.attr_count = given->attr_count;
    const char *names[KERNELS];
    for (int k = 0; k < KERNELS; k++) {
        names[k] = end;
        end += snprintf(end, strlen(name) + 1 + SUFFIX_MOST, "%s.%s", name, suffixes[k]) + 1;
    }
    twi_user_op_fill(user, names);
    *out = user;
    return TW_OK;
}

tw_status tw_op_register(tw_context *context, const char *name, const tw_op_options *options) {
    tw_op_options given;
    if (!context || !name) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_op_register: context or name is NULL");
    TWI_TRY(twi_options_read(&given, sizeof given, options, "tw_op_register"));
    if (given.inputs == 0) given.inputs = 1;
    TWI_TRY(check(name, &given));
    twi_user_op *user;
    TWI_TRY(make(context, name, &given, &user));
    tw_status status = twi_registry_add(context, &user->op);
    if (status) {
        twi_put(context->memory, user);
        return status;
    }
    user->next = context->own_registry->user;
    context->own_registry->user = user;
    return TW_OK;
}

tw_status tw_op_fail(tw_status status, const char *format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return TWI_FAIL(status ? status : TW_ERROR_ARGUMENT, "%s", text);
}

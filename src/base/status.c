/* Status names, the wording of failures and the version. Where the text is kept is last_error.c's; deciding what fails,
 * and why, is left to the callers. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ERROR_TEXT 2048

static const char *const status_names[] = {
    [TW_OK] = "TW_OK",
    [TW_ERROR_ARGUMENT] = "TW_ERROR_ARGUMENT",
    [TW_ERROR_SHAPE] = "TW_ERROR_SHAPE",
    [TW_ERROR_OUT_OF_MEMORY] = "TW_ERROR_OUT_OF_MEMORY",
    [TW_ERROR_OVERFLOW] = "TW_ERROR_OVERFLOW",
    [TW_ERROR_FILE] = "TW_ERROR_FILE",
    [TW_ERROR_FORMAT] = "TW_ERROR_FORMAT",
    [TW_ERROR_LABEL] = "TW_ERROR_LABEL",
    [TW_ERROR_NUMERIC] = "TW_ERROR_NUMERIC",
    [TW_ERROR_UNSUPPORTED] = "TW_ERROR_UNSUPPORTED",
    [TW_ERROR_DEVICE] = "TW_ERROR_DEVICE",
    [TW_ERROR_STATE] = "TW_ERROR_STATE",
    [TW_ERROR_MISMATCH] = "TW_ERROR_MISMATCH",
    [TW_STOPPED] = "TW_STOPPED",
    [TW_ERROR_INTERNAL] = "TW_ERROR_INTERNAL",
};

const char *tw_status_name(tw_status status) {
    size_t index = (unsigned)status;
    return index < sizeof status_names / sizeof status_names[0] ? status_names[index] : "unknown tw_status";
}

/* Both functions format aside first: an argument may be the text of the previous failure itself. */
void twi_fail(const char *format, ...) {
    char text[ERROR_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    twi_set_error(text);
}

tw_status twi_fail_within(tw_status code, const char *prefix_format, ...) {
    char text[ERROR_TEXT];
    va_list arguments;
    va_start(arguments, prefix_format);
    vsnprintf(text, sizeof text, prefix_format, arguments);
    va_end(arguments);
    strncat(text, ": ", sizeof text - 1 - strlen(text));
    strncat(text, tw_last_error(), sizeof text - 1 - strlen(text));
    twi_set_error(text);
    return code;
}

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *tw_version(void) { return VERSION_TEXT(TW_VERSION_MAJOR, TW_VERSION_MINOR, TW_VERSION_PATCH); }

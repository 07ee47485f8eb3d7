/* How failures are born and passed on. A failure is born only in TWI_FAIL and passed on only by TWI_TRY, so that a
 * status and its text cannot disagree. The text names: what failed (layer, file, argument), the values, the cause,
 * one remedy. */
#ifndef TWI_BASE_STATUS_H
#define TWI_BASE_STATUS_H

#include <talweg/base.h>

/* Records the message for this thread and yields `code` (a constant, so that the compiler follows it). Use as:
 * return TWI_FAIL(TW_ERROR_SHAPE, "conv2d '%s': ...", name); */
#define TWI_FAIL(code, ...) (twi_fail(__VA_ARGS__), (code))
#define TWI_TRY(call)                       \
    do {                                    \
        tw_status twi_status_ = (call);     \
        if (twi_status_) return twi_status_; \
    } while (0)
/* Passes a failure on through a cleanup label: status must be a local named `status`. */
#define TWI_TRY_GOTO(call, label)  \
    do {                           \
        status = (call);           \
        if (status) goto label;    \
    } while (0)

/* Keeps a text as the thread's last error; for twi_fail. `text` is not the kept one itself. */
void twi_set_error(const char *text);
void twi_fail(const char *format, ...) TW_PRINTF(1, 2);
/* Puts "prefix: " before the current message (for a caller that knows the file or layer); returns `code` unchanged. */
tw_status twi_fail_within(tw_status code, const char *prefix_format, ...) TW_PRINTF(2, 3);

#endif

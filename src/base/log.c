/* Formats a log line and hands it to the context's callback. The library itself never prints. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>

#define LINE_TEXT 2048 /* a longer line is cut: it is a line, not a dump */

void twi_log_line(const twi_log *log, tw_log_level level, const char *format, ...) {
    if (!log || !log->fn || level > log->level) return;
    char line[LINE_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log->fn(log->user, level, line);
}

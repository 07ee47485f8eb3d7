/* The context's log callback. */
#ifndef TWI_BASE_LOG_H
#define TWI_BASE_LOG_H

#include <talweg/context.h>

typedef struct twi_log {
    tw_log_fn fn;
    void *user;
    tw_log_level level;
} twi_log;

/* Formats and passes on one line if the level is wanted. log may be NULL. */
void twi_log_line(const twi_log *log, tw_log_level level, const char *format, ...) TW_PRINTF(3, 4);

#endif

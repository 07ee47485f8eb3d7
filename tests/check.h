/* cmocka in one include, and statuses as checks that say the library's message. */
#ifndef TALWEG_TESTS_CHECK_H
#define TALWEG_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include "check_device.h"
#include <talweg/base.h>

#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        tw_status check_status_ = (call);                                                          \
        if (check_status_) fail_msg("%s: %s: %s", #call, tw_status_name(check_status_), tw_last_error()); \
    } while (0)

/* The call fails with this status, and the message says this. */
#define CHECK_FAILS(call, status, part)                                                            \
    do {                                                                                           \
        tw_status check_status_ = (call);                                                          \
        if (check_status_ != (status)) fail_msg("%s: %s instead of %s", #call, tw_status_name(check_status_), #status); \
        if (!strstr(tw_last_error(), (part))) fail_msg("\"%s\" does not say \"%s\"", tw_last_error(), (part)); \
    } while (0)

#endif

/* What the environment asks of a test. TALWEG_TEST_DEVICE names the device, for tests that can be run on any.
 * TALWEG_TEST_AMOUNT=sampled: a part of what is alike will do, as in the quick run of builds that are slow. */
#ifndef TALWEG_TESTS_CHECK_DEVICE_H
#define TALWEG_TESTS_CHECK_DEVICE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* NULL: none was named. */
static inline const char *check_device(void) { return getenv("TALWEG_TEST_DEVICE"); }
static inline const char *check_device_or_cpu(void) { return check_device() ? check_device() : "cpu"; }

static inline bool check_sampled(void) {
    const char *amount = getenv("TALWEG_TEST_AMOUNT");
    return amount && strcmp(amount, "sampled") == 0;
}

#endif

/* Tests that can be run on any device: the environment variable TALWEG_TEST_DEVICE names it. */
#ifndef TALWEG_TESTS_CHECK_DEVICE_H
#define TALWEG_TESTS_CHECK_DEVICE_H

#include <stdlib.h>

/* NULL: none was named. */
static inline const char *check_device(void) { return getenv("TALWEG_TEST_DEVICE"); }
static inline const char *check_device_or_cpu(void) { return check_device() ? check_device() : "cpu"; }

#endif

/* The system's steady clock. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "clock.h"

#include <time.h>

int64_t twi_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* exists everywhere and cannot fail */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

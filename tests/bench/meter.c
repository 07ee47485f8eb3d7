/* See meter.h. */
#define _GNU_SOURCE
#include "meter.h"

#include <stdio.h>
#include <stdlib.h>

void meter_check(tw_status status, const char *what) {
    if (!status) return;
    fprintf(stderr, "%s: %s: %s\n", meter_program, what, tw_last_error());
    exit(1);
}

void *meter_need(void *memory) {
    if (memory) return memory;
    fprintf(stderr, "%s: no memory\n", meter_program);
    exit(1);
}

void meter_refuse(const char *reason, const char *text) {
    fprintf(stderr, "%s: %s: '%s'\n%s", meter_program, reason, text, meter_usage);
    exit(2);
}

double meter_number(const char *text, double least, double most, const char *reason) {
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most)) meter_refuse(reason, text);
    return value;
}

int meter_whole(const char *text, int least, int most, const char *reason) {
    const double value = meter_number(text, least, most, reason);
    if (value != (int)value) meter_refuse(reason, text);
    return (int)value;
}

double meter_now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

double meter_quantile(const double *values, int count, double q) {
    const double at = q * (count - 1);
    const int below = (int)at, above = below + 1 < count ? below + 1 : below;
    return values[below] + (at - below) * (values[above] - values[below]);
}

double meter_median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return meter_quantile(values, count, 0.5);
}

/* For tests that call a kernel's specification directly: operands by hand, and a look-up by name. */
#ifndef SPEC_CALL_H
#define SPEC_CALL_H

#include "ops/op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

/* Appends an operand in row-major order and returns it: OPERAND(&call, data, dims...). */
#define OPERAND(call, data, ...) \
    spec_operand(call, data, COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})
twi_operand *spec_operand(twi_call *call, const void *data, int64_t rank, const int64_t *dims);
/* Makes it one with the channels last in memory. */
void spec_channels_last(twi_operand *operand);

/* Runs the specification of a kernel, which must take as many operands as the call has. */
void spec_run(const char *kernel_name, const twi_call *call);

/* Compares with expected numbers: CHECK(found, tolerance, expected...); relative for large ones. */
#define CHECK(found, tolerance, ...) \
    spec_check(__LINE__, found, COUNT(((double[]){__VA_ARGS__})), (double[]){__VA_ARGS__}, tolerance)
void spec_check(int line, const float *found, int64_t count, const double *expected, double tolerance);

#endif

/* Convolutions of a family of CPU implementations against sums in double. */
#ifndef TALWEG_TESTS_CONV_CHECK_H
#define TALWEG_TESTS_CONV_CHECK_H

#include "impl_call.h"
#include "backend/attrs.h"

typedef struct conv_check_case {
    int64_t n, c, h, w, o, kernel_h, kernel_w;
    twi_conv2d_attrs attrs;
} conv_check_case;

/* Runs forward, forward with bias, with bias and relu, backward of the data and of the weights (replacing, adding, and in
 * ranges), all that the family takes, on every instruction set there is; returns how many calls were taken. */
int conv_check(const twi_cpu_impl *family, const conv_check_case *cases, int count);

/* One forward call: x and w are dense, images N,H,W,C, kernels O,H,W,I; returns y, released by impl_release. */
float *conv_check_forward(const twi_cpu_impl *family, twi_isa isa, const conv_check_case *c, float *x, float *w);
/* The same for the gradient of the weights. */
float *conv_check_backward_weights(const twi_cpu_impl *family, twi_isa isa, const conv_check_case *c, float *x,
                                   float *dy);
/* A call by name whose operands are in the order of the kernel; the last is written. */
void conv_check_call(twi_call *call, const conv_check_case *c, const char *kernel, float *x, float *w, float *b,
                     float *y);

#endif

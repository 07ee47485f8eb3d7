/* A convolution and the max pooling of its result, with numbers to run CPU implementations on: what its gradients are
 * by sums in double, and the calls for them. */
#ifndef TALWEG_TESTS_POOLED_CONV_H
#define TALWEG_TESTS_POOLED_CONV_H

#include "impl_call.h"
#include "backend/attrs.h"

typedef struct pooled_case {
    int64_t n, c, h, w, o, kernel_h, kernel_w;
    twi_conv2d_pool_attrs attrs;
} pooled_case;

/* Rows and columns of the convolution's result and of the pooling's. */
typedef struct pooled_size {
    int64_t out_h, out_w, rows, columns;
} pooled_size;

/* x, w, b and dy, their gradients, and the pooling's index; some of dy are 0, as behind a relu. Images N,H,W,C, kernels
 * O,H,W,I. */
typedef struct pooled_conv {
    const pooled_case *c;
    pooled_size size;
    float *x, *w, *b, *dy, *dx, *dw;
    uint8_t *index; /* of an element inside of the result */
    double *expected_dx, *expected_dw;
} pooled_conv;

pooled_conv pooled_open(const pooled_case *c);
/* One without memory, to ask for refusals. */
pooled_conv pooled_sketch(const pooled_case *c);
void pooled_close(pooled_conv *p);

int64_t pooled_x_count(const pooled_case *c);
int64_t pooled_w_count(const pooled_case *c);
int64_t pooled_y_count(const pooled_conv *p);

/* conv2d.forward_bias_max_pool, with or without relu, which writes y and the index. */
void pooled_forward_call(twi_call *call, const pooled_conv *p, float *y, uint8_t *index);
extern const char pooled_weights_kernel[], pooled_data_kernel[];
void pooled_weights_call(twi_call *call, const pooled_conv *p);
void pooled_data_call(twi_call *call, const pooled_conv *p);

/* ---- samples side by side ---- */

extern const int pooled_lanes[]; /* by instruction set */

int64_t pooled_turned_at(int64_t n, int64_t element, int64_t elements, int64_t lanes);
/* Lanes without a sample hold not-a-number, and any bytes. */
float *pooled_turned_floats(const float *from, int64_t n, int64_t elements, int64_t lanes);
uint8_t *pooled_turned_bytes(const uint8_t *from, int64_t n, int64_t elements, int64_t lanes);

/* Either gradient with samples turned: for the weights of x (bit 1), dy (2), index (4); for the input of all, and it
 * comes back as rows. */
enum { POOLED_ALL_TURNED = 7 };
void pooled_weights_turned(const pooled_conv *p, const twi_cpu_impl *family, twi_isa isa, int turned);
void pooled_data_turned(const pooled_conv *p, const twi_cpu_impl *family, twi_isa isa);

/* Fails where |got - times * expected| > 2e-6 * sqrt(scale) * (1 + |times * expected|). scale: how many numbers were
 * added, at most. */
void pooled_close_to(const double *expected, const float *got, int64_t count, double scale, double times,
                     const char *what);

#endif

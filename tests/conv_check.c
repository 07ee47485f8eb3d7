/* See conv_check.h. */
#include "conv_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int64_t out_size(int64_t in, int64_t kernel, int32_t stride, int32_t before, int32_t after, int32_t dilation) {
    return (in + before + after - (kernel - 1) * dilation - 1) / stride + 1;
}

/* ---- shapes and calls ---- */

typedef struct conv_shapes {
    impl_shape x, w, y, b;
} conv_shapes;

static conv_shapes shapes_of(const conv_check_case *c) {
    const twi_conv2d_attrs *a = &c->attrs;
    conv_shapes s = {
        .x = {4, {c->n, c->c, c->h, c->w}, true},
        .w = {4, {c->o, c->c / a->groups, c->kernel_h, c->kernel_w}, true},
        .y = {4, {c->n, c->o}, true},
        .b = {1, {c->o}, false},
    };
    s.y.dim[2] = out_size(c->h, c->kernel_h, a->stride_h, a->pad_top, a->pad_bottom, a->dilation_h);
    s.y.dim[3] = out_size(c->w, c->kernel_w, a->stride_w, a->pad_left, a->pad_right, a->dilation_w);
    return s;
}

/* x, w, b, y stand for a tensor and for its gradient alike. */
void conv_check_call(twi_call *call, const conv_check_case *c, const char *kernel, float *x, float *w, float *b,
                     float *y) {
    conv_shapes s = shapes_of(c);
    *call = (twi_call){.attrs = &c->attrs, .first = true};
    if (strncmp(kernel, "conv2d.forward", 14) == 0) {
        impl_operand(call, 0, TWI_REAL, &s.x, x);
        impl_operand(call, 1, TWI_REAL, &s.w, w);
        if (b) impl_operand(call, 2, TWI_REAL, &s.b, b);
        if (b) call->operand[2].stride[0] = 1;
        impl_operand(call, b ? 3 : 2, TWI_REAL, &s.y, y);
    } else if (strcmp(kernel, "conv2d.backward_data") == 0) {
        impl_operand(call, 0, TWI_REAL, &s.y, y);
        impl_operand(call, 1, TWI_REAL, &s.w, w);
        impl_operand(call, 2, TWI_REAL, &s.x, x);
    } else {
        impl_operand(call, 0, TWI_REAL, &s.x, x);
        impl_operand(call, 1, TWI_REAL, &s.y, y);
        impl_operand(call, 2, TWI_ACC, &s.w, w);
    }
}

/* Numbers whose address is a multiple of 4 bytes and of nothing more. */
static float *odd_floats(const impl_shape *shape) { return impl_floats(impl_count(shape) + 1) + 1; }

float *conv_check_forward(const twi_cpu_impl *family, twi_isa isa, const conv_check_case *c, float *x, float *w) {
    conv_shapes s = shapes_of(c);
    float *y = odd_floats(&s.y);
    twi_call call;
    conv_check_call(&call, c, "conv2d.forward", x, w, NULL, y);
    impl_run(family, "conv2d.forward", isa, &call);
    return y;
}

float *conv_check_backward_weights(const twi_cpu_impl *family, twi_isa isa, const conv_check_case *c, float *x,
                                   float *dy) {
    conv_shapes s = shapes_of(c);
    float *dw = odd_floats(&s.w);
    twi_call call;
    conv_check_call(&call, c, "conv2d.backward_weights", x, dw, NULL, dy);
    impl_run(family, "conv2d.backward_weights", isa, &call);
    return dw;
}

/* ---- sums in double ---- */

/* Of every element of the tensor summed for, the sum of products and of their sizes. */
typedef struct sums {
    double *value, *size;
} sums;

static sums sums_of(int64_t count) {
    sums s = {calloc((size_t)count, sizeof(double)), calloc((size_t)count, sizeof(double))};
    assert_true(s.value && s.size);
    return s;
}
static void sums_free(sums s) {
    free(s.value);
    free(s.size);
}
static void sums_add(sums s, int64_t i, double a, double b) {
    s.value[i] += a * b;
    s.size[i] += fabs(a * b);
}

/* Visits all products once: y += w x, dx += w dy, dw += x dy. */
static void reference(const conv_check_case *c, const conv_shapes *s, const float *x, const float *w, const float *dy,
                      sums y, sums dx, sums dw) {
    const twi_conv2d_attrs *a = &c->attrs;
    int64_t group_in = s->w.dim[1], group_out = c->o / a->groups;
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t o = 0; o < c->o; o++)
            for (int64_t p = 0; p < s->y.dim[2]; p++)
                for (int64_t q = 0; q < s->y.dim[3]; q++)
                    for (int64_t i = 0; i < group_in; i++)
                        for (int64_t k = 0; k < c->kernel_h; k++)
                            for (int64_t l = 0; l < c->kernel_w; l++) {
                                int64_t row = p * a->stride_h + k * a->dilation_h - a->pad_top;
                                int64_t column = q * a->stride_w + l * a->dilation_w - a->pad_left;
                                if (row < 0 || row >= c->h || column < 0 || column >= c->w) continue;
                                int64_t at_x = impl_at(&s->x, n, o / group_out * group_in + i, row, column);
                                int64_t at_w = impl_at(&s->w, o, i, k, l), at_y = impl_at(&s->y, n, o, p, q);
                                sums_add(y, at_y, w[at_w], x[at_x]);
                                sums_add(dx, at_x, w[at_w], dy[at_y]);
                                sums_add(dw, at_w, x[at_x], dy[at_y]);
                            }
}

/* Within the rounding of a sum: a product left out or taken twice is far outside. */
static void compare(const char *what, int index, const float *got, sums want, int64_t count, const float *before,
                    const float *bias, int64_t channels, bool relu) {
    for (int64_t i = 0; i < count; i++) {
        double plus = before ? before[i] : bias ? bias[i % channels] : 0, expected = want.value[i] + plus;
        if (relu && expected < 0) expected = 0;
        if (!(fabs(got[i] - expected) <= 2e-6 * (want.size[i] + fabs(plus)) + 1e-30))
            fail_msg("%s, case %d: element %lld is %.9g, expected %.9g", what, index, (long long)i, got[i], expected);
    }
}

/* ---- a case ---- */

static bool takes(const twi_cpu_impl *family, const char *kernel, const twi_call *call, twi_isa isa) {
    while (family->kernel && strcmp(family->kernel, kernel) != 0) family++;
    return family->kernel && !family->refuse(call, isa);
}

static int check_case(const twi_cpu_impl *family, twi_isa isa, const conv_check_case *c, int index) {
    static const char *const forward[] = {"conv2d.forward", "conv2d.forward_bias", "conv2d.forward_bias_relu"};
    conv_shapes s = shapes_of(c);
    float *x = odd_floats(&s.x), *w = odd_floats(&s.w), *dy = odd_floats(&s.y), *b = odd_floats(&s.b);
    int64_t x_count = impl_count(&s.x), w_count = impl_count(&s.w), y_count = impl_count(&s.y);
    sums want_y = sums_of(y_count), want_dx = sums_of(x_count), want_dw = sums_of(w_count);
    reference(c, &s, x, w, dy, want_y, want_dx, want_dw);
    int taken = 0;
    twi_call call;
    for (int f = 0; f < 3; f++) {
        float *y = odd_floats(&s.y);
        conv_check_call(&call, c, forward[f], x, w, f > 0 ? b : NULL, y);
        if (!takes(family, forward[f], &call, isa)) continue;
        impl_run(family, forward[f], isa, &call);
        compare(forward[f], index, y, want_y, y_count, NULL, f > 0 ? b : NULL, c->o, f == 2);
        taken++;
    }
    float *dx = odd_floats(&s.x);
    conv_check_call(&call, c, "conv2d.backward_data", dx, w, NULL, dy);
    if (takes(family, "conv2d.backward_data", &call, isa)) {
        impl_run(family, "conv2d.backward_data", isa, &call);
        compare("conv2d.backward_data", index, dx, want_dx, x_count, NULL, NULL, 1, false);
        taken++;
    }
    const bool twice = impl_finishes(family, "conv2d.backward_weights");
    for (int add = 0; add < 2; add++) {
        float *dw = odd_floats(&s.w), *before = odd_floats(&s.w);
        memcpy(before, dw, (size_t)w_count * sizeof *dw);
        conv_check_call(&call, c, "conv2d.backward_weights", x, dw, NULL, dy);
        call.first = !add;
        if (!takes(family, "conv2d.backward_weights", &call, isa)) continue;
        impl_run(family, "conv2d.backward_weights", isa, &call);
        for (int64_t i = 0; twice && add && i < w_count; i++) dw[i] /= 2;
        compare("conv2d.backward_weights", index, dw, want_dw, w_count, add && !twice ? before : NULL, NULL, 1, false);
        taken++;
    }
    float *dw = odd_floats(&s.w);
    conv_check_call(&call, c, "conv2d.backward_weights_ranged", x, dw, NULL, dy);
    if (takes(family, "conv2d.backward_weights_ranged", &call, isa)) {
        const int64_t parts = twi_conv2d_parts(s.w.dim), cuts[] = {0, 1, (parts + 1) / 2, parts};
        for (int i = 0; i < 3; i++) {
            call.begin = cuts[i], call.end = cuts[i + 1];
            if (call.begin < call.end) impl_run(family, "conv2d.backward_weights_ranged", isa, &call);
        }
        compare("conv2d.backward_weights_ranged", index, dw, want_dw, w_count, NULL, NULL, 1, false);
        taken++;
    }
    sums_free(want_y), sums_free(want_dx), sums_free(want_dw);
    impl_release();
    return taken;
}

int conv_check(const twi_cpu_impl *family, const conv_check_case *cases, int count) {
    int taken = 0;
    IMPL_EACH_ISA(isa) {
        for (int i = 0; i < count; i++) taken += check_case(family, (twi_isa)isa, &cases[i], i);
    }
    return taken;
}

/* Convolutions of halves by Winograd's filtering, in tiles of 4 and of 2: forward and both gradients against sums in double, on
 * every instruction set and both types, with sizes that fill tiles and sizes that do not; that images do not feel each other.
 * Those of f32, and what is refused: test_winograd.c. */
#include "impl_call.h"
#include "check.h"

#include "backend/attrs.h"
#include "base/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct conv_case {
    int64_t n, c, h, w, o;
    twi_conv2d_attrs attrs; /* stride, padding top left bottom right, dilation, groups */
} conv_case;

/* clang-format off */
static const conv_case cases[] = {
    {2, 16, 8, 8, 16, {1, 1, 1, 1, 1, 1, 1, 1, 1}},   /* whole tiles */
    {3, 16, 9, 7, 48, {1, 1, 1, 1, 1, 1, 1, 1, 1}},   /* rows and columns left over */
    {2, 32, 11, 10, 16, {1, 1, 0, 0, 0, 0, 1, 1, 1}}, /* no padding */
    {1, 16, 7, 9, 32, {1, 1, 2, 0, 1, 2, 1, 1, 1}},   /* another one on each side */
    {3, 16, 24, 23, 16, {1, 1, 1, 1, 1, 1, 1, 1, 1}}, /* several blocks of tiles */
    {1, 48, 4, 3, 32, {1, 1, 1, 1, 1, 1, 1, 1, 1}},   /* one tile */
    {2, 32, 5, 2, 48, {1, 1, 1, 1, 1, 1, 1, 1, 1}},   /* tiles of 4 would be half empty: of 2 */
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

typedef struct tensors {
    impl_shape x, w, y, b;
    uint16_t *data_x, *data_w, *data_y, *data_b;
    tw_dtype dtype;
} tensors;

static uint16_t *halves(int64_t count, tw_dtype dtype) {
    float *values = impl_floats(count);
    uint16_t *made = (uint16_t *)impl_floats((count + 1) / 2);
    for (int64_t i = 0; i < count; i++) made[i] = twi_half_from_f32(dtype, values[i]);
    return made;
}

static tensors make(const conv_case *c, tw_dtype dtype) {
    tensors t = {
        .x = {4, {c->n, c->c, c->h, c->w}, true},
        .w = {4, {c->o, c->c, 3, 3}, true},
        .y = {4, {c->n, c->o, twi_conv2d_rows(&c->attrs, c->h, 3), twi_conv2d_columns(&c->attrs, c->w, 3)}, true},
        .b = {2, {1, c->o}, false},
        .dtype = dtype};
    t.data_x = halves(impl_count(&t.x), dtype);
    t.data_w = halves(impl_count(&t.w), dtype);
    t.data_y = halves(impl_count(&t.y), dtype);
    t.data_b = halves(impl_count(&t.b), dtype);
    return t;
}

static void operand(twi_call *call, const tensors *t, const impl_shape *shape, void *data) {
    const int o = call->operand_count;
    impl_operand(call, o, TWI_REAL, shape, data);
    call->operand[o].dtype = (uint8_t)t->dtype;
    if (shape != &t->b) return;
    call->operand[o].shape = (twi_shape){1, {shape->dim[1]}};
    call->operand[o].stride[0] = 1;
}

static const twi_cpu_impl *find(const char *kernel) {
    const twi_cpu_impl *impl = twi_cpu_winograd_impls;
    while (strcmp(impl->kernel, kernel) != 0) impl++;
    return impl;
}

/* Guarded, and not-a-number, so that what is read before it is written shows. */
static void *workspace_of(size_t bytes) {
    float *memory = impl_floats((int64_t)(bytes / sizeof(float)));
    memset(memory, 0xFF, bytes);
    return memory;
}

/* Runs a call as a group of chunks would: once, or a second time on top of it. */
static void run(const char *kernel, twi_isa isa, twi_call *call, bool twice) {
    twi_kernel bare = {.name = kernel, .operand_count = call->operand_count};
    const twi_cpu_impl *impl = find(kernel);
    twi_cpu_site site = {.impl = impl, .isa = isa, .workers = 1, .kernel = &bare};
    void *partial[TWI_MAX_OPERANDS] = {NULL};
    call->kernel = &bare;
    call->first = true;
    if (impl->refuse(call, isa)) fail_msg("%s was refused: %s", kernel, impl->refuse(call, isa));
    assert_int_equal(impl->prepare(&site, call, NULL), TW_OK);
    twi_cpu_workspace workspace = {.shared = workspace_of(site.shared_bytes),
                                   .scratch = workspace_of(site.worker_bytes)};
    twi_call part = *call;
    for (int o = 0; o < call->operand_count; o++)
        if (site.partial_bytes[o]) part.operand[o].data = partial[o] = workspace_of(site.partial_bytes[o]);
    if (impl->begin) impl->begin(&site, call, &workspace);
    impl->run(&site, &part, &workspace);
    part.first = false;
    if (twice) impl->run(&site, &part, &workspace);
    if (impl->finish) impl->finish(&site, call, &workspace, partial);
}

/* ---- sums in double ---- */

typedef struct sums {
    double *value, *size;
} sums;

static sums sums_of(const impl_shape *shape) {
    const size_t count = (size_t)impl_count(shape);
    sums s = {calloc(count, sizeof(double)), calloc(count, sizeof(double))};
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

/* Visits all products once: y += w x, dx += w dy, dw += x dy; y's numbers are dy. */
static void reference(const conv_case *c, const tensors *t, sums y, sums dx, sums dw) {
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t o = 0; o < c->o; o++)
            for (int64_t p = 0; p < t->y.dim[2]; p++)
                for (int64_t q = 0; q < t->y.dim[3]; q++)
                    for (int64_t k = 0; k < 9; k++) {
                        const int64_t row = p + k / 3 - c->attrs.pad_top, column = q + k % 3 - c->attrs.pad_left;
                        if (row < 0 || row >= c->h || column < 0 || column >= c->w) continue;
                        const int64_t at_y = impl_at(&t->y, n, o, p, q);
                        const double dy = (double)twi_half_to_f32(t->dtype, t->data_y[at_y]);
                        for (int64_t i = 0; i < c->c; i++) {
                            const int64_t at_x = impl_at(&t->x, n, i, row, column);
                            const int64_t at_w = impl_at(&t->w, o, i, k / 3, k % 3);
                            const double x = (double)twi_half_to_f32(t->dtype, t->data_x[at_x]);
                            const double w = (double)twi_half_to_f32(t->dtype, t->data_w[at_w]);
                            sums_add(y, at_y, w, x);
                            sums_add(dx, at_x, w, dy);
                            sums_add(dw, at_w, x, dy);
                        }
                    }
}

/* Within one rounding to the type and what f32 adds to a sum: a product left out or taken twice is far outside. */
static void compare(const char *what, const tensors *t, const uint16_t *got, sums want, const impl_shape *shape,
                    double factor, const uint16_t *bias, bool relu) {
    const double unit = t->dtype == TW_BF16 ? 0x1p-8 : 0x1p-11, channels = (double)shape->dim[1];
    for (int64_t i = 0; i < impl_count(shape); i++) {
        const double plus = bias ? (double)twi_half_to_f32(t->dtype, bias[i % (int64_t)channels]) : 0;
        double expected = factor * want.value[i] + plus, found = (double)twi_half_to_f32(t->dtype, got[i]);
        if (relu && expected < 0) expected = 0;
        if (!(fabs(found - expected) <= unit * fabs(expected) + 1e-5 * (want.size[i] + 1)))
            fail_msg("%s, %s, %lld channels of %lld x %lld: element %lld is %.9g, expected %.9g", what,
                     tw_dtype_name(t->dtype), (long long)shape->dim[1], (long long)shape->dim[2],
                     (long long)shape->dim[3], (long long)i, found, expected);
    }
}

/* ---- checks ---- */

static void check_forward(const conv_case *c, const tensors *t, twi_isa isa, sums want) {
    static const char *const kernels[] = {"conv2d.forward", "conv2d.forward_bias", "conv2d.forward_bias_relu"};
    for (int k = 0; k < 3; k++) {
        uint16_t *y = halves(impl_count(&t->y), t->dtype);
        twi_call call = {.attrs = &c->attrs};
        operand(&call, t, &t->x, t->data_x);
        operand(&call, t, &t->w, t->data_w);
        if (k > 0) operand(&call, t, &t->b, t->data_b);
        operand(&call, t, &t->y, y);
        run(kernels[k], isa, &call, false);
        compare(kernels[k], t, y, want, &t->y, 1, k > 0 ? t->data_b : NULL, k == 2);
    }
}

static void check_backward(const conv_case *c, const tensors *t, twi_isa isa, sums want_dx, sums want_dw) {
    uint16_t *dx = halves(impl_count(&t->x), t->dtype), *dw = halves(impl_count(&t->w), t->dtype);
    twi_call data = {.attrs = &c->attrs}, weights = {.attrs = &c->attrs};
    operand(&data, t, &t->y, t->data_y);
    operand(&data, t, &t->w, t->data_w);
    operand(&data, t, &t->x, dx);
    run("conv2d.backward_data", isa, &data, false);
    compare("backward_data", t, dx, want_dx, &t->x, 1, NULL, false);
    operand(&weights, t, &t->x, t->data_x);
    operand(&weights, t, &t->y, t->data_y);
    operand(&weights, t, &t->w, dw);
    for (int twice = 0; twice <= 1; twice++) {
        run("conv2d.backward_weights", isa, &weights, twice);
        compare("backward_weights", t, dw, want_dw, &t->w, 1 + twice, NULL, false);
    }
    float *wide = impl_floats(impl_count(&t->w)); /* f32 beside images of halves: the same, not rounded */
    weights.operand[2].data = wide;
    weights.operand[2].dtype = TW_F32;
    run("conv2d.backward_weights", isa, &weights, true);
    for (int64_t i = 0; i < impl_count(&t->w); i++) assert_int_equal(twi_half_from_f32(t->dtype, wide[i]), dw[i]);
}

static void agrees_with_sums_in_double(void **state) {
    static const tw_dtype types[] = {TW_BF16, TW_F16};
    (void)state;
    for (int k = 0; k < 2 * CASES; k++) {
        const conv_case *c = &cases[k / 2];
        const tensors t = make(c, types[k % 2]);
        sums y = sums_of(&t.y), dx = sums_of(&t.x), dw = sums_of(&t.w);
        reference(c, &t, y, dx, dw);
        IMPL_EACH_ISA(isa) {
            check_forward(c, &t, (twi_isa)isa, y);
            check_backward(c, &t, (twi_isa)isa, dx, dw);
        }
        sums_free(y);
        sums_free(dx);
        sums_free(dw);
        impl_release();
    }
}

/* In whatever chunk an image stands: its results have the same bits. */
static void images_do_not_feel_each_other(void **state) {
    (void)state;
    const conv_case all = {5, 16, 10, 9, 16, {1, 1, 1, 1, 1, 1, 1, 1, 1}};
    conv_case one = all;
    one.n = 1;
    IMPL_EACH_ISA(isa) {
        const tensors t = make(&all, TW_BF16);
        tensors single = make(&one, TW_BF16);
        const int64_t in = impl_count(&single.x), out = impl_count(&single.y);
        t.data_x[2 * in + 40] = 0x7FC0; /* not-a-number, in the third image */
        for (int n = -1; n < all.n; n++) {
            const tensors *at = n < 0 ? &t : &single;
            if (n >= 0) memcpy(single.data_x, t.data_x + n * in, (size_t)in * sizeof(uint16_t));
            twi_call call = {.attrs = &all.attrs};
            operand(&call, at, &at->x, at->data_x);
            operand(&call, at, &at->w, t.data_w);
            operand(&call, at, &at->y, at->data_y);
            run("conv2d.forward", (twi_isa)isa, &call, false);
            if (n >= 0) assert_memory_equal(single.data_y, t.data_y + n * out, (size_t)out * sizeof(uint16_t));
        }
        impl_release();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_sums_in_double),
        cmocka_unit_test(images_do_not_feel_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

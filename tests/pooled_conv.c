#include "pooled_conv.h"
#include "check.h"

#include <math.h>

static int64_t windows(int64_t size, int window, int stride, int before, int after, bool up) {
    return (size + before + after - window + (up ? stride - 1 : 0)) / stride + 1;
}

static pooled_size size_of(const pooled_case *c) {
    pooled_size s = {.out_h = twi_conv2d_rows(&c->attrs.conv, c->h, c->kernel_h),
                     .out_w = twi_conv2d_columns(&c->attrs.conv, c->w, c->kernel_w)};
    const twi_pool_attrs *a = &c->attrs.pool;
    s.rows = windows(s.out_h, a->kernel_h, a->stride_h, a->pad_top, a->pad_bottom, a->ceil_mode);
    s.columns = windows(s.out_w, a->kernel_w, a->stride_w, a->pad_left, a->pad_right, a->ceil_mode);
    return s;
}

int64_t pooled_x_count(const pooled_case *c) { return c->n * c->h * c->w * c->c; }
int64_t pooled_w_count(const pooled_case *c) { return c->o * c->kernel_h * c->kernel_w * c->c; }
int64_t pooled_y_count(const pooled_conv *p) { return p->c->n * p->size.rows * p->size.columns * p->c->o; }

/* The position that won window p,q in channel o of sample n. */
static int64_t winner(const pooled_conv *p, int64_t i, int64_t *out_y, int64_t *out_x) {
    const twi_pool_attrs *a = &p->c->attrs.pool;
    const int64_t window = i / p->c->o;
    *out_y = window / p->size.columns % p->size.rows * a->stride_h - a->pad_top + p->index[i] / a->kernel_w;
    *out_x = window % p->size.columns * a->stride_w - a->pad_left + p->index[i] % a->kernel_w;
    return window / p->size.columns / p->size.rows;
}

static void expect(pooled_conv *p) {
    const pooled_case *c = p->c;
    const twi_conv2d_attrs *a = &c->attrs.conv;
    for (int64_t i = 0; i < pooled_y_count(p); i++) {
        int64_t y, x, n = winner(p, i, &y, &x), o = i % c->o;
        for (int64_t r = 0; r < c->kernel_h; r++)
            for (int64_t k = 0; k < c->kernel_w; k++) {
                const int64_t in_y = y * a->stride_h + r - a->pad_top, in_x = x * a->stride_w + k - a->pad_left;
                if (in_y < 0 || in_y >= c->h || in_x < 0 || in_x >= c->w) continue;
                const int64_t at = ((n * c->h + in_y) * c->w + in_x) * c->c,
                              tap = ((o * c->kernel_h + r) * c->kernel_w + k) * c->c;
                for (int64_t in = 0; in < c->c; in++) {
                    p->expected_dx[at + in] += (double)p->dy[i] * (double)p->w[tap + in];
                    p->expected_dw[tap + in] += (double)p->dy[i] * (double)p->x[at + in];
                }
            }
    }
}

pooled_conv pooled_sketch(const pooled_case *c) { return (pooled_conv){.c = c, .size = size_of(c)}; }

pooled_conv pooled_open(const pooled_case *c) {
    pooled_conv p = pooled_sketch(c);
    p.x = impl_floats(pooled_x_count(c)), p.dx = impl_floats(pooled_x_count(c));
    p.w = impl_floats(pooled_w_count(c)), p.dw = impl_floats(pooled_w_count(c));
    p.b = impl_floats(c->o);
    p.dy = impl_floats(pooled_y_count(&p)), p.index = impl_bytes(pooled_y_count(&p));
    p.expected_dx = calloc((size_t)pooled_x_count(c), sizeof(double));
    p.expected_dw = calloc((size_t)pooled_w_count(c), sizeof(double));
    assert_true(p.expected_dx && p.expected_dw);
    for (int64_t i = 0; i < pooled_y_count(&p); i++) {
        if (p.dy[i] < -0.4f) p.dy[i] = 0;
        const int elements = c->attrs.pool.kernel_h * c->attrs.pool.kernel_w;
        int64_t y, x;
        do {
            p.index[i] = (uint8_t)((p.index[i] + 1) % elements);
            winner(&p, i, &y, &x);
        } while (y < 0 || y >= p.size.out_h || x < 0 || x >= p.size.out_w);
    }
    expect(&p);
    return p;
}
void pooled_close(pooled_conv *p) {
    free(p->expected_dx);
    free(p->expected_dw);
    impl_release();
}

static impl_shape image_of(const pooled_case *c) { return (impl_shape){4, {c->n, c->c, c->h, c->w}, true}; }
static impl_shape weights_of(const pooled_case *c) {
    return (impl_shape){4, {c->o, c->c, c->kernel_h, c->kernel_w}, true};
}
static impl_shape pooled_of(const pooled_conv *p) {
    return (impl_shape){4, {p->c->n, p->c->o, p->size.rows, p->size.columns}, true};
}

static void pooled_operands(twi_call *call, const pooled_conv *p, int dy) {
    const impl_shape pooled = pooled_of(p);
    *call = (twi_call){.attrs = &p->c->attrs, .first = true};
    impl_operand(call, dy, TWI_REAL, &pooled, p->dy);
    impl_operand(call, dy + 1, TWI_U8, &pooled, p->index);
}
void pooled_forward_call(twi_call *call, const pooled_conv *p, float *y, uint8_t *index) {
    const impl_shape image = image_of(p->c), weights = weights_of(p->c), pooled = pooled_of(p);
    *call = (twi_call){.attrs = &p->c->attrs, .first = true};
    impl_operand(call, 0, TWI_REAL, &image, p->x);
    impl_operand(call, 1, TWI_REAL, &weights, p->w);
    impl_rows(call, 2, TWI_REAL, 1, p->c->o, p->b);
    impl_operand(call, 3, TWI_REAL, &pooled, y);
    impl_operand(call, 4, TWI_U8, &pooled, index);
}
void pooled_weights_call(twi_call *call, const pooled_conv *p) {
    const impl_shape image = image_of(p->c), weights = weights_of(p->c);
    pooled_operands(call, p, 1);
    impl_operand(call, 0, TWI_REAL, &image, p->x);
    impl_operand(call, 3, TWI_ACC, &weights, p->dw);
}
void pooled_data_call(twi_call *call, const pooled_conv *p) {
    const impl_shape image = image_of(p->c), weights = weights_of(p->c);
    pooled_operands(call, p, 0);
    impl_operand(call, 2, TWI_REAL, &weights, p->w);
    impl_operand(call, 3, TWI_REAL, &image, p->dx);
}

const char pooled_weights_kernel[] = "conv2d.backward_weights_unpooled",
           pooled_data_kernel[] = "conv2d.backward_data_unpooled";

/* ---- samples side by side ---- */

const int pooled_lanes[] = {
    [TWI_ISA_BASELINE] = 4, [TWI_ISA_AVX2] = 8, [TWI_ISA_AVX512] = 16, [TWI_ISA_AVX512_BF16] = 16};

int64_t pooled_turned_at(int64_t n, int64_t e, int64_t elements, int64_t lanes) {
    return (n / lanes * elements + e) * lanes + n % lanes;
}
static int64_t whole_blocks(int64_t n, int64_t lanes) { return (n + lanes - 1) / lanes * lanes; }

float *pooled_turned_floats(const float *from, int64_t n, int64_t elements, int64_t lanes) {
    float *turned = impl_floats(whole_blocks(n, lanes) * elements);
    for (int64_t i = 0; i < whole_blocks(n, lanes) * elements; i++) turned[i] = NAN;
    for (int64_t i = 0; i < n * elements; i++)
        turned[pooled_turned_at(i / elements, i % elements, elements, lanes)] = from[i];
    return turned;
}
uint8_t *pooled_turned_bytes(const uint8_t *from, int64_t n, int64_t elements, int64_t lanes) {
    uint8_t *turned = impl_bytes(whole_blocks(n, lanes) * elements);
    for (int64_t i = 0; i < n * elements; i++)
        turned[pooled_turned_at(i / elements, i % elements, elements, lanes)] = from[i];
    return turned;
}

/* With all samples turned. */
static pooled_conv turned_conv(const pooled_conv *p, twi_isa isa) {
    const int lanes = pooled_lanes[isa];
    const pooled_case *c = p->c;
    const int64_t image = pooled_x_count(c) / c->n, pooled = pooled_y_count(p) / c->n;
    pooled_conv t = *p;
    t.x = pooled_turned_floats(p->x, c->n, image, lanes), t.dx = pooled_turned_floats(p->x, c->n, image, lanes);
    t.dy = pooled_turned_floats(p->dy, c->n, pooled, lanes);
    t.index = pooled_turned_bytes(p->index, c->n, pooled, lanes);
    return t;
}
void pooled_weights_turned(const pooled_conv *p, const twi_cpu_impl *family, twi_isa isa, int turned) {
    const pooled_conv all = turned_conv(p, isa);
    pooled_conv t = *p;
    if (turned & 1) t.x = all.x;
    if (turned & 2) t.dy = all.dy;
    if (turned & 4) t.index = all.index;
    twi_call call;
    pooled_weights_call(&call, &t);
    for (int o = 0; o < 3; o++)
        if (turned >> o & 1) call.operand[o].lanes = (uint8_t)pooled_lanes[isa];
    impl_run(family, pooled_weights_kernel, isa, &call);
}
void pooled_data_turned(const pooled_conv *p, const twi_cpu_impl *family, twi_isa isa) {
    const pooled_conv t = turned_conv(p, isa);
    const int64_t image = pooled_x_count(p->c) / p->c->n;
    twi_call call;
    pooled_data_call(&call, &t);
    call.operand[0].lanes = call.operand[1].lanes = call.operand[3].lanes = (uint8_t)pooled_lanes[isa];
    impl_run(family, pooled_data_kernel, isa, &call);
    for (int64_t i = 0; i < pooled_x_count(p->c); i++)
        p->dx[i] = t.dx[pooled_turned_at(i / image, i % image, image, pooled_lanes[isa])];
}

void pooled_close_to(const double *expected, const float *got, int64_t count, double scale, double times,
                     const char *what) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - times * expected[i]) <= 2e-6 * sqrt(scale) * (1 + fabs(times * expected[i]))))
            fail_msg("%s %d: %g, expected %g", what, (int)i, (double)got[i], times * expected[i]);
}

/* The CPU back end's light loops against plain loops in double: bias, relu, add, copies, dropout, updates. */
#include "impl_call.h"
#include "base/half.h"
#include "base/philox.h"
#include "backend/attrs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static const int64_t channel_counts[] = {1, 3, 5, 8, 10, 16, 17, 32, 64, 100};
static const impl_shape shapes[] = {
    {4, {1, 0, 1, 1}, true}, {4, {3, 0, 3, 5}, true}, {4, {2, 0, 8, 8}, true}, {2, {7, 0}, false}, {2, {1, 0}, false}};

static void each_shape(void (*test)(const impl_shape *shape, twi_isa isa)) {
    IMPL_EACH_ISA(isa)
    for (int s = 0; s < COUNT(shapes); s++)
        for (int c = 0; c < COUNT(channel_counts); c++) {
            impl_shape shape = shapes[s];
            shape.dim[1] = channel_counts[c];
            test(&shape, (twi_isa)isa);
            impl_release();
        }
}

/* Channel of the element at an offset of a value with channels innermost. */
static int64_t channel(const impl_shape *shape, int64_t i) { return i % shape->dim[1]; }

/* ---- bias, relu, add ---- */

static void check_bias(const impl_shape *shape, twi_isa isa) {
    int64_t count = impl_count(shape), channels = shape->dim[1];
    float *x = impl_floats(count), *b = impl_floats(channels), *y = impl_floats(count), *db = impl_floats(channels);
    twi_call forward = {0}, backward = {0};
    impl_operand(&forward, 0, TWI_REAL, shape, x);
    impl_rows(&forward, 1, TWI_REAL, 1, channels, b);
    impl_operand(&forward, 2, TWI_REAL, shape, y);
    impl_run(twi_cpu_point_impls, "bias.forward", isa, &forward);
    impl_operand(&backward, 0, TWI_REAL, shape, x);
    impl_rows(&backward, 1, TWI_ACC, 1, channels, db);
    for (int chunk = 0; chunk < 2; chunk++) { /* replaces, then adds */
        backward.first = chunk == 0;
        impl_run(twi_cpu_point_impls, "bias.backward", isa, &backward);
    }
    double want[100] = {0};
    for (int64_t i = 0; i < count; i++) {
        impl_close((double)x[i] + b[channel(shape, i)], y[i], 1e-6, "bias.forward", i);
        want[channel(shape, i)] += 2.0 * x[i];
    }
    for (int64_t c = 0; c < channels; c++) impl_close(want[c], db[c], 1e-5, "bias.backward", c);
}
static void bias(void **state) { (void)state, each_shape(check_bias); }

static void check_bias_relu(const impl_shape *shape, twi_isa isa) {
    int64_t count = impl_count(shape), channels = shape->dim[1];
    float *dy = impl_floats(count), *y = impl_floats(count), *db = impl_floats(channels), *g = impl_floats(count);
    for (int64_t i = 0; i < count; i += 3) y[i] = 0;
    y[count - 1] = NAN;
    memcpy(g, dy, (size_t)count * sizeof(float));
    twi_call call = {.first = true};
    impl_operand(&call, 0, TWI_REAL, shape, g); /* g in the place of dy */
    impl_operand(&call, 1, TWI_REAL, shape, y);
    impl_operand(&call, 2, TWI_REAL, shape, g);
    impl_rows(&call, 3, TWI_ACC, 1, channels, db);
    impl_run(twi_cpu_point_impls, "bias_relu.backward", isa, &call);
    double want[100] = {0};
    for (int64_t i = 0; i < count; i++) {
        float passed = y[i] <= 0 ? 0 : dy[i]; /* not-a-number passes */
        assert_true(g[i] == passed);
        want[channel(shape, i)] += passed;
    }
    for (int64_t c = 0; c < channels; c++) impl_close(want[c], db[c], 1e-5, "bias_relu.backward", c);
}
static void bias_relu(void **state) { (void)state, each_shape(check_bias_relu); }

static void check_relu_add(const impl_shape *shape, twi_isa isa) {
    int64_t count = impl_count(shape);
    float *x = impl_floats(count), *y = impl_floats(count), *dx = impl_floats(count), *dy = impl_floats(count);
    x[0] = NAN;
    x[count / 2] = -0.0f;
    twi_call call = {0};
    impl_operand(&call, 0, TWI_REAL, shape, x);
    impl_operand(&call, 1, TWI_REAL, shape, y);
    impl_run(twi_cpu_point_impls, "relu.forward", isa, &call);
    for (int64_t i = 0; i < count; i++) impl_close(x[i] < 0 ? 0 : x[i], y[i], 0, "relu.forward", i);
    impl_operand(&call, 0, TWI_REAL, shape, dy);
    impl_operand(&call, 2, TWI_REAL, shape, dx);
    impl_run(twi_cpu_point_impls, "relu.backward", isa, &call);
    for (int64_t i = 0; i < count; i++) assert_true(dx[i] == (y[i] <= 0 ? 0 : dy[i]));
    impl_operand(&call, 1, TWI_REAL, shape, dx);
    impl_operand(&call, 2, TWI_REAL, shape, dy); /* in the place of an operand */
    memcpy(x, dy, (size_t)count * sizeof(float));
    impl_run(twi_cpu_point_impls, "add.forward", isa, &call);
    for (int64_t i = 0; i < count; i++) assert_true(dy[i] == x[i] + dx[i]);
}
static void relu_and_add(void **state) { (void)state, each_shape(check_relu_add); }

/* Element by element, row-major images do as well, but not one of each. */
static void mixed_orders_are_refused(void **state) {
    (void)state;
    const impl_shape image = {4, {2, 3, 4, 5}, true}, row_major = {4, {2, 3, 4, 5}, false};
    twi_call call = {0};
    impl_operand(&call, 0, TWI_REAL, &row_major, NULL);
    impl_operand(&call, 1, TWI_REAL, &row_major, NULL);
    assert_null(impl_refusal(twi_cpu_point_impls, "relu.forward", &call));
    assert_null(impl_refusal(twi_cpu_point_impls, "dropout.apply", &call));
    impl_operand(&call, 1, TWI_REAL, &image, NULL);
    assert_non_null(impl_refusal(twi_cpu_point_impls, "relu.forward", &call));
    assert_non_null(impl_refusal(twi_cpu_point_impls, "dropout.apply", &call));
    assert_null(impl_refusal(twi_cpu_point_impls, "reshape.copy", &call));
    /* Another image, both channels innermost: a permutation that no loop here makes. */
    const impl_shape other = {4, {2, 6, 2, 5}, true};
    impl_operand(&call, 0, TWI_REAL, &other, NULL);
    assert_non_null(impl_refusal(twi_cpu_point_impls, "reshape.copy", &call));
}

/* ---- copy ---- */

static void copies_keep_the_logical_order(void **state) {
    (void)state;
    static const int64_t images[][4] = {{2, 16, 5, 5}, {1, 1, 3, 4}, {3, 17, 6, 7}, {2, 40, 1, 1}, {1, 33, 9, 4}};
    IMPL_EACH_ISA(isa)
    for (int s = 0; s < COUNT(images); s++) {
        impl_shape image = {4, {0}, true}, flat = {2, {0}, false};
        memcpy(image.dim, images[s], sizeof image.dim);
        flat.dim[0] = image.dim[0];
        flat.dim[1] = impl_count(&image) / image.dim[0];
        float *x = impl_floats(impl_count(&image)), *y = impl_floats(impl_count(&image)),
              *z = impl_floats(impl_count(&image));
        twi_call call = {0};
        impl_operand(&call, 0, TWI_REAL, &image, x);
        impl_operand(&call, 1, TWI_REAL, &flat, y);
        impl_run(twi_cpu_point_impls, "reshape.copy", (twi_isa)isa, &call);
        int64_t i = 0;
        for (int64_t n = 0; n < image.dim[0]; n++)
            for (int64_t c = 0; c < image.dim[1]; c++)
                for (int64_t h = 0; h < image.dim[2]; h++)
                    for (int64_t w = 0; w < image.dim[3]; w++, i++) assert_true(y[i] == x[impl_at(&image, n, c, h, w)]);
        impl_operand(&call, 0, TWI_REAL, &flat, y);
        impl_operand(&call, 1, TWI_REAL, &image, z);
        impl_run(twi_cpu_point_impls, "reshape.copy", (twi_isa)isa, &call);
        assert_memory_equal(z, x, (size_t)i * sizeof(float));
        memset(z, 0, (size_t)i * sizeof(float));
        impl_operand(&call, 0, TWI_REAL, &image, x);
        impl_run(twi_cpu_point_impls, "reshape.copy", (twi_isa)isa, &call);
        assert_memory_equal(z, x, (size_t)i * sizeof(float));
        impl_release();
    }
}

/* ---- dropout: the draws are those of twi_draw, one by one, whatever the layout and the chunk ---- */

static void dropout_follows_its_definition(void **state) {
    (void)state;
    static const impl_shape values[] = {
        {2, {3, 37}, false}, {4, {2, 5, 3, 3}, true}, {4, {2, 8, 5, 4}, false}, {2, {2, 1}, false}};
    static const float rates[] = {0.25f, 0.5f, 0.999f, 1, 0};
    IMPL_EACH_ISA(isa)
    for (int s = 0; s < COUNT(values); s++)
        for (int r = 0; r < COUNT(rates); r++) {
            const impl_shape *shape = &values[s];
            int64_t count = impl_count(shape), sample = count / shape->dim[0];
            const twi_dropout_attrs attrs = {rates[r]};
            /* The last index crosses 2^32. */
            twi_control control = {.seed = 7, .attempt = 3};
            twi_call call = {.attrs = &attrs, .control = &control, .stream = 0x123456789ABCDEFu};
            call.sample = s == 0 ? INT64_C(0x400000000) / sample : 5;
            float *x = impl_floats(count), *y = impl_floats(count);
            x[0] = NAN;
            impl_operand(&call, 0, TWI_REAL, shape, x);
            impl_operand(&call, 1, TWI_REAL, shape, y);
            impl_run(twi_cpu_point_impls, "dropout.apply", (twi_isa)isa, &call);
            for (int64_t n = 0; n < shape->dim[0]; n++)
                for (int64_t i = 0; i < sample; i++) {
                    int64_t width = shape->rank == 4 ? shape->dim[3] : 1, height = shape->rank == 4 ? shape->dim[2] : 1;
                    int64_t at = impl_at(shape, n, i / width / height, i / width % height, i % width);
                    uint64_t index = (uint64_t)((call.sample + n) * sample + i);
                    uint32_t word[4];
                    twi_draw(7, TWI_PURPOSE_DROPOUT, call.stream ^ 4 * 0x9E3779B97F4A7C15u, index / 4, word);
                    bool kept = (double)(word[index % 4] >> 8) / 16777216.0 >= rates[r];
                    impl_close(kept ? x[at] / (1 - (double)rates[r]) : 0, y[at], 1e-6, "dropout", at);
                }
            impl_release();
        }
}

/* ---- updates ---- */

static const twi_update_segment segments[] = {
    {2, 8030, 0.1f, false, 0}, {8030, 8031, 0, false, 0}, {9040, 12300, 0.01f, false, 0}};
enum { ELEMENTS = 3 * TWI_UPDATE_WORTH + 64 };

static void sgd(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (int kind = 0; kind < 3; kind++) { /* plain, momentum, Nesterov */
        float *w = impl_floats(ELEMENTS), *g = impl_floats(ELEMENTS), *m = kind ? impl_floats(ELEMENTS) : NULL;
        static double want_w[ELEMENTS], want_m[ELEMENTS];
        for (int i = 0; i < ELEMENTS; i++) want_w[i] = w[i], want_m[i] = m ? m[i] : 0;
        const twi_update_attrs attrs = {
            .segment_count = 3, .segment = segments, .momentum = 0.9f, .nesterov = kind == 2};
        twi_control control = {.learning_rate = 0.1, .guard.factor = 1};
        for (int64_t begin = 0; begin < twi_update_shares(ELEMENTS); begin++) { /* three, not at the segments' ends */
            twi_call call = {.attrs = &attrs, .control = &control, .begin = begin, .end = begin + 1};
            impl_rows(&call, 0, TWI_ACC, 1, ELEMENTS, w);
            impl_rows(&call, 1, TWI_ACC, 1, ELEMENTS, g);
            impl_rows(&call, 2, TWI_ACC, 1, ELEMENTS, m);
            impl_run(twi_cpu_point_impls, "sgd.update", (twi_isa)isa, &call);
        }
        for (int s = 0; s < 3; s++)
            for (int64_t i = segments[s].begin; i < segments[s].end; i++) {
                double d = g[i] + segments[s].weight_decay * want_w[i];
                want_m[i] = 0.9f * want_m[i] + d;
                if (kind) d = kind == 2 ? d + 0.9f * want_m[i] : want_m[i];
                want_w[i] -= 0.1 * d;
            }
        for (int i = 0; i < ELEMENTS; i++) {
            impl_close(want_w[i], w[i], 1e-6, "sgd", i);
            if (m) impl_close(want_m[i], m[i], 1e-6, "momentum", i);
        }
        impl_release();
    }
}

static void adamw(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        float *w = impl_floats(ELEMENTS), *g = impl_floats(ELEMENTS), *m = impl_floats(ELEMENTS),
              *v = impl_floats(ELEMENTS);
        static double want_w[ELEMENTS], want_m[ELEMENTS], want_v[ELEMENTS];
        memset(m, 0, ELEMENTS * sizeof(float));
        memset(v, 0, ELEMENTS * sizeof(float));
        memset(want_m, 0, sizeof want_m);
        memset(want_v, 0, sizeof want_v);
        for (int i = 0; i < ELEMENTS; i++) want_w[i] = w[i];
        const twi_update_attrs attrs = {
            .segment_count = 3, .segment = segments, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f};
        for (int t = 1; t <= 3; t++) {
            twi_control control = {.learning_rate = 0.01, .update = (uint64_t)t - 1, .guard.factor = 1};
            twi_call call = {.attrs = &attrs, .control = &control, .begin = 0, .end = twi_update_shares(ELEMENTS)};
            impl_rows(&call, 0, TWI_ACC, 1, ELEMENTS, w);
            impl_rows(&call, 1, TWI_ACC, 1, ELEMENTS, g);
            impl_rows(&call, 2, TWI_ACC, 1, ELEMENTS, m);
            impl_rows(&call, 3, TWI_ACC, 1, ELEMENTS, v);
            impl_run(twi_cpu_point_impls, "adamw.update", (twi_isa)isa, &call);
            for (int s = 0; s < 3; s++)
                for (int64_t i = segments[s].begin; i < segments[s].end; i++) {
                    double rate = 0.01, b1 = 0.9f, b2 = 0.999f;
                    want_m[i] = b1 * want_m[i] + (1 - b1) * g[i];
                    want_v[i] = b2 * want_v[i] + (1 - b2) * g[i] * g[i];
                    want_w[i] = want_w[i] * (1 - rate * segments[s].weight_decay) -
                                rate * want_m[i] / (1 - pow(b1, t)) / (sqrt(want_v[i] / (1 - pow(b2, t))) + 1e-8);
                }
        }
        for (int i = 0; i < ELEMENTS; i++) impl_close(want_w[i], w[i], 2e-6, "adamw", i);
        impl_release();
    }
}

static void updates_stop_at_a_fault(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        float *w = impl_floats(ELEMENTS), *g = impl_floats(ELEMENTS), *m = impl_floats(ELEMENTS),
              *v = impl_floats(ELEMENTS);
        static float before[3][ELEMENTS];
        memcpy(before[0], w, sizeof before[0]), memcpy(before[1], m, sizeof before[1]),
            memcpy(before[2], v, sizeof before[2]);
        const twi_update_attrs attrs = {
            .segment_count = 3, .segment = segments, .momentum = 0.9f, .beta1 = 0.9f, .beta2 = 0.99f};
        twi_control control = {.learning_rate = 0.1, .guard.factor = 1};
        control.fault.code = TW_ERROR_LABEL;
        twi_call call = {.attrs = &attrs, .control = &control, .begin = 0, .end = twi_update_shares(ELEMENTS)};
        impl_rows(&call, 0, TWI_ACC, 1, ELEMENTS, w);
        impl_rows(&call, 1, TWI_ACC, 1, ELEMENTS, g);
        impl_rows(&call, 2, TWI_ACC, 1, ELEMENTS, m);
        impl_run(twi_cpu_point_impls, "sgd.update", (twi_isa)isa, &call);
        impl_rows(&call, 3, TWI_ACC, 1, ELEMENTS, v);
        impl_run(twi_cpu_point_impls, "adamw.update", (twi_isa)isa, &call);
        assert_memory_equal(w, before[0], sizeof before[0]);
        assert_memory_equal(m, before[1], sizeof before[1]);
        assert_memory_equal(v, before[2], sizeof before[2]);
        impl_release();
    }
}

/* ---- halves ---- */

static bool is_strange(float x) { return x != 0 && fabsf(x) < 0x1p-126f; } /* workers flush such numbers */

/* Whatever the bits: to nearest even, infinities and not-a-number kept. */
static void check_rounding(twi_isa isa, tw_dtype half) {
    enum { COUNT = 60003 };
    const impl_shape shape = {2, {1, COUNT}, false};
    uint16_t *x[3];
    twi_call call = {0};
    for (int o = 0; o < 3; o++) {
        x[o] = (uint16_t *)(void *)impl_bytes(2 * COUNT);
        impl_operand(&call, o, TWI_REAL, &shape, x[o]);
        call.operand[o].dtype = (uint8_t)half;
    }
    for (int i = 0; i < COUNT; i += 2)
        x[1][i] = (uint16_t)((x[0][i] & 0xFF80u) - 0x400u + i % 128); /* a few bits below */
    impl_run(twi_cpu_point_impls, "add.forward", isa, &call);
    for (int i = 0; i < COUNT; i++) {
        const float a = twi_half_to_f32(half, x[0][i]), b = twi_half_to_f32(half, x[1][i]), sum = a + b;
        const uint16_t want = twi_half_from_f32(half, sum);
        if (half == TW_BF16 && (is_strange(a) || is_strange(b) || is_strange(sum))) continue;
        if (isnan(sum) ? !isnan(twi_half_to_f32(half, x[2][i])) : x[2][i] != want)
            fail_msg("%s: %g + %g is %04x, expected %04x", tw_dtype_name(half), a, b, x[2][i], want);
    }
    impl_release();
}

static void sums_are_rounded_to_halves_as_half_c_does(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        check_rounding((twi_isa)isa, TW_BF16);
        check_rounding((twi_isa)isa, TW_F16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_rounded_to_halves_as_half_c_does),
        cmocka_unit_test(bias),
        cmocka_unit_test(bias_relu),
        cmocka_unit_test(relu_and_add),
        cmocka_unit_test(mixed_orders_are_refused),
        cmocka_unit_test(copies_keep_the_logical_order),
        cmocka_unit_test(dropout_follows_its_definition),
        cmocka_unit_test(sgd),
        cmocka_unit_test(adamw),
        cmocka_unit_test(updates_stop_at_a_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

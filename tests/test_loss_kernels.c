/* The CPU back end's softmax and losses against plain loops in double, whatever the number of rows and of classes; and the
 * logarithm they take. */
#include "impl_call.h"
#include "backend/attrs.h"
#include "backend/cpu/vec_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Cross-entropy of a row in double: the loss and its gradient. */
static double row_loss(const float *x, int64_t classes, int32_t label, double smoothing, double *gradient) {
    double largest = x[0], sum = 0, loss = 0;
    for (int64_t c = 1; c < classes; c++) largest = x[c] > largest ? x[c] : largest;
    for (int64_t c = 0; c < classes; c++) sum += exp(x[c] - largest);
    for (int64_t c = 0; c < classes; c++) {
        double target = (c == label) * (1 - smoothing) + smoothing / (double)classes, logp = x[c] - largest - log(sum);
        gradient[c] = exp(logp) - target;
        if (target > 0) loss -= target * logp;
    }
    return loss;
}

typedef struct loss_case {
    int64_t rows, classes;
    const float *x;
    const int32_t *labels;
    float smoothing, seed, loss, *dx;
    twi_control control;
} loss_case;

static void call_loss(loss_case *t, bool fused, twi_isa isa, bool first) {
    const twi_cross_entropy_attrs attrs = {t->smoothing};
    const impl_shape two = {2, {t->rows, t->classes}, false};
    twi_call call = {.attrs = &attrs, .control = &t->control, .first = first, .sample = 10, .node = 3};
    float *logp = impl_floats(t->rows * t->classes);
    memcpy(t->dx, t->x, (size_t)(t->rows * t->classes) * sizeof(float)); /* dx in the place of x */
    if (!fused) {
        twi_call forward = call;
        impl_operand(&forward, 0, TWI_REAL, &two, t->dx);
        impl_operand(&forward, 1, TWI_ACC, &two, logp);
        impl_run(twi_cpu_point_impls, "cross_entropy.log_softmax", isa, &forward);
    }
    impl_operand(&call, 0, fused ? TWI_REAL : TWI_ACC, &two, fused ? t->dx : logp);
    impl_rows(&call, 1, TWI_I32, 1, t->rows, (void *)(uintptr_t)t->labels);
    impl_rows(&call, 2, TWI_ACC, 1, 1, &t->seed);
    if (fused) impl_rows(&call, 3, TWI_ACC, 1, 1, &t->loss);
    impl_operand(&call, 3 + fused, TWI_REAL, &two, t->dx);
    impl_run(twi_cpu_point_impls, fused ? "softmax_cross_entropy.both" : "cross_entropy.backward", isa, &call);
}

static void cross_entropy(void **state) {
    (void)state;
    static const int64_t classes[] = {1, 2, 3, 4, 5, 8, 10, 16, 17, 31, 47, 48, 49, 100, 1000};
    static const float smoothings[] = {0, 0.2f};
    IMPL_EACH_ISA(isa)
    for (int k = 0; k < COUNT(classes); k++)
        for (int s = 0; s < 2; s++)
            for (int fused = 0; fused < 2; fused++) {
                enum { ROWS = 21 }; /* whole vectors of any kind, and a rest */
                int32_t labels[ROWS];
                float *x = impl_floats(ROWS * classes[k]);
                for (int64_t i = 0; i < ROWS * classes[k]; i++) x[i] *= 20;
                for (int n = 0; n < ROWS; n++) labels[n] = (int32_t)(n * 7 % classes[k]);
                loss_case t = {ROWS, classes[k], x, labels, smoothings[s], 0.2f, 100, impl_floats(ROWS * classes[k]),
                               {0}};
                call_loss(&t, fused, (twi_isa)isa, false);
                double loss = 100, gradient[1000];
                for (int n = 0; n < ROWS; n++) {
                    loss += row_loss(x + n * classes[k], classes[k], labels[n], smoothings[s], gradient);
                    for (int64_t c = 0; c < classes[k]; c++)
                        impl_close(gradient[c] * 0.2, t.dx[n * classes[k] + c], 1e-6, "gradient", c);
                }
                if (fused) impl_close(loss, t.loss, 1e-6, "loss", 0);
                impl_release();
            }
}

/* Losses far beyond what an exponential holds are exact; closed forms. */
static void huge_logits(void **state) {
    (void)state;
    static const struct {
        float x[3];
        int64_t classes;
        int32_t label;
        double loss, gradient[3];
    } rows[] = {
        {{1000, 0}, 2, 1, 1000, {1, -1}},
        {{1000, 0}, 2, 0, 0, {0, 0}},
        {{1e8f, 1e8f}, 2, 0, 0.6931472, {-0.5, 0.5}},
        {{60000, -60000, 0}, 3, 1, 120000, {1, -1, 0}},
        {{-INFINITY, 0, 0}, 3, 1, 0.6931472, {0, -0.5, 0.5}},
        {{-INFINITY, 0, 0}, 3, 0, INFINITY, {-1, 0.5, 0.5}},
        {{INFINITY, 0, 1}, 3, 0, NAN, {NAN, NAN, NAN}},
        {{0, NAN, 1}, 3, 0, NAN, {NAN, NAN, NAN}},
    };
    IMPL_EACH_ISA(isa)
    for (int r = 0; r < COUNT(rows); r++)
        for (int fused = 0; fused < 2; fused++) {
            float *dx = impl_floats(3);
            loss_case t = {1, rows[r].classes, rows[r].x, &rows[r].label, 0, 1, 0, dx, {0}};
            call_loss(&t, fused, (twi_isa)isa, true);
            if (fused && isinf(rows[r].loss))
                assert_true(isinf(t.loss));
            else if (fused)
                impl_close(rows[r].loss, t.loss, 1e-6, "loss", r);
            for (int64_t c = 0; c < rows[r].classes; c++) impl_close(rows[r].gradient[c], dx[c], 1e-6, "gradient", c);
            impl_release();
        }
}

/* A label that is none raises a fault with its sample; its gradient is 0 and the others' is not. */
static void labels_outside(void **state) {
    (void)state;
    static const int32_t labels[] = {0, 3, -1};
    IMPL_EACH_ISA(isa)
    for (int fused = 0; fused < 2; fused++) {
        float *x = impl_floats(9), *dx = impl_floats(9);
        loss_case t = {3, 3, x, labels, 0.1f, 1, 0, dx, {0}};
        call_loss(&t, fused, (twi_isa)isa, true);
        for (int c = 0; c < 3; c++) assert_true(dx[c] != 0 && dx[3 + c] == 0 && dx[6 + c] == 0);
        if (fused) {
            assert_int_equal(t.control.fault.code, TW_ERROR_LABEL);
            assert_int_equal(t.control.fault.sample, 11);
            assert_int_equal(t.control.fault.node, 3);
            assert_true(t.control.fault.value == 3 && isfinite(t.loss));
        }
        impl_release();
    }
}

/* Every exponent of the exponential, through a softmax of two. */
static void softmax_is_accurate(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (float x = 0; x > -110; x -= 0.37f) {
        float row[2] = {0, x}, y[2];
        const impl_shape two = {2, {1, 2}, false};
        twi_call call = {0};
        impl_operand(&call, 0, TWI_REAL, &two, row);
        impl_operand(&call, 1, TWI_REAL, &two, y);
        impl_run(twi_cpu_point_impls, "softmax.forward", (twi_isa)isa, &call);
        double want = exp(x) / (1 + exp(x));
        if (want < 0x1p-126) want = 0; /* below the normal numbers */
        if (!(fabs(y[1] - want) <= 4e-7 * want)) fail_msg("softmax of %.9g is %.9g, expected %.9g", x, y[1], want);
    }
}

/* x, y */
static void call_rows(const char *kernel, twi_isa isa, int64_t rows, int64_t classes, const float *x, float *y) {
    const impl_shape two = {2, {rows, classes}, false};
    twi_call call = {0};
    memcpy(y, x, (size_t)(rows * classes) * sizeof(float)); /* y in the place of x */
    impl_operand(&call, 0, TWI_REAL, &two, y);
    impl_operand(&call, 1, TWI_REAL, &two, y);
    impl_run(twi_cpu_point_impls, kernel, isa, &call);
}

static void check_softmax(int64_t rows, int64_t classes, twi_isa isa) {
    float *x = impl_floats(rows * classes), *y = impl_floats(rows * classes), *logp = impl_floats(rows * classes);
    for (int64_t i = 0; i < rows * classes; i++) x[i] *= 9;
    call_rows("softmax.forward", isa, rows, classes, x, y);
    call_rows("cross_entropy.log_softmax", isa, rows, classes, x, logp);
    for (int64_t i = 0; i < rows * classes; i++) {
        const float *row = x + i / classes * classes;
        double sum = 0;
        for (int64_t c = 0; c < classes; c++) sum += exp((double)row[c] - row[0]);
        const double want = (double)x[i] - row[0] - log(sum);
        if (!(fabs(y[i] - exp(want)) <= (5e-7 - want * 0x1p-24) * exp(want))) /* x - largest is rounded */
            fail_msg("softmax of %d classes: element %d is %.9g, expected %.9g", (int)classes, (int)i, y[i], exp(want));
        impl_close(want, logp[i], 1e-6, "log_softmax", i);
    }
    impl_release();
}
static void softmax_of_any_shape(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (int64_t classes = 1; classes <= 70; classes++) check_softmax(classes % 37 + 1, classes, (twi_isa)isa);
}

/* ---- a row and those beside it ---- */

enum { ROWS = 37 };
static const char *const kernels[] = {"softmax.forward", "cross_entropy.log_softmax", "cross_entropy.backward",
                                      "softmax_cross_entropy.both"};

static void run_rows(int kernel, twi_isa isa, int64_t rows, int64_t classes, const float *x, const int32_t *labels,
                     float *y) {
    loss_case t = {rows, classes, x, labels, 0.1f, 0.3f, 0, y, {0}};
    if (kernel < 2)
        call_rows(kernels[kernel], isa, rows, classes, x, y);
    else
        call_loss(&t, kernel == 3, isa, true);
}

static void check_cut(int kernel, twi_isa isa, int64_t classes, int64_t cut) {
    float *x = impl_floats(ROWS * classes), *whole = impl_floats(ROWS * classes), *parts = impl_floats(ROWS * classes);
    int32_t labels[ROWS];
    for (int64_t i = 0; i < ROWS * classes; i++) x[i] *= 7;
    for (int n = 0; n < ROWS; n++) labels[n] = n % 9 == 8 ? -1 : (int32_t)(n % classes);
    x[5 * classes] = NAN;
    x[20 * classes + classes / 2] = INFINITY;
    x[21 * classes + classes - 1] = -INFINITY;
    run_rows(kernel, isa, ROWS, classes, x, labels, whole);
    run_rows(kernel, isa, cut, classes, x, labels, parts);
    run_rows(kernel, isa, ROWS - cut, classes, x + cut * classes, labels + cut, parts + cut * classes);
    for (int64_t i = 0; i < ROWS * classes; i++) {
        const bool spoilt = i / classes == 5 || i / classes == 20 || (classes == 1 && i == 21);
        if (spoilt != !!isnan(whole[i]))
            fail_msg("%s, %d classes: element %d is %.9g", kernels[kernel], (int)classes, (int)i, whole[i]);
        if (!spoilt && memcmp(whole + i, parts + i, sizeof(float)) != 0)
            fail_msg("%s, %d classes, element %d: %.9g, but %.9g where rows are cut at %d", kernels[kernel],
                     (int)classes, (int)i, whole[i], parts[i], (int)cut);
    }
    impl_release();
}

/* The same row gives the same bits, wherever it lies and whoever lies beside it: infinite, undefined, without a label. */
static void rows_do_not_meet(void **state) {
    (void)state;
    static const int64_t classes[] = {1, 3, 4, 10, 18, 48, 60}, cuts[] = {1, 3, 8, 16, 23, 36};
    IMPL_EACH_ISA(isa)
    for (int kernel = 0; kernel < COUNT(kernels); kernel++)
        for (int k = 0; k < COUNT(classes); k++)
            for (int c = 0; c < COUNT(cuts); c++) check_cut(kernel, (twi_isa)isa, classes[k], cuts[c]);
}

/* Those without a label add nothing to the loss; of several the first is told. */
static void labels_missing_among_many(void **state) {
    (void)state;
    static const float smoothings[] = {0, 0.3f};
    static const int64_t classes[] = {2, 10, 48, 49};
    IMPL_EACH_ISA(isa)
    for (int k = 0; k < COUNT(classes); k++)
        for (int s = 0; s < 2; s++) {
            const int64_t width = classes[k];
            float *x = impl_floats(ROWS * width);
            int32_t labels[ROWS];
            double want = 0, gradient[64];
            x[18 * width] = NAN; /* of a sample that does not count */
            for (int n = 0; n < ROWS; n++) {
                labels[n] = n == 17 ? INT32_MAX : n == 18 ? (int32_t)width : n == 30 ? INT32_MIN : n % 2;
                if (labels[n] == n % 2) want += row_loss(x + n * width, width, labels[n], smoothings[s], gradient);
            }
            loss_case t = {ROWS, width, x, labels, smoothings[s], 1, 0, impl_floats(ROWS * width), {0}};
            call_loss(&t, true, (twi_isa)isa, true);
            impl_close(want, t.loss, 1e-6, "loss", 0);
            assert_int_equal(t.control.fault.sample, 10 + 17);
            assert_true(t.control.fault.value == INT32_MAX);
            for (int n = 0; n < ROWS; n++)
                for (int64_t c = 0; c < width; c++) assert_true((t.dx[n * width + c] != 0) == (labels[n] == n % 2));
            impl_release();
        }
}

/* ---- the logarithm ---- */

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Within a unit in the last place, from the least normal number to the largest. */
static void logarithm_is_accurate(void **state) {
    (void)state;
    enum { STEP = 997 };
    for (uint32_t bits = 0x00800000; bits < 0x7f800000 - STEP * VEC_WIDTH; bits += STEP * VEC_WIDTH) {
        vec x;
        for (int i = 0; i < VEC_WIDTH; i++) x[i] = float_of(bits + STEP * (uint32_t)i);
        const vec y = vec_log(x);
        for (int i = 0; i < VEC_WIDTH; i++) {
            const double want = log((double)x[i]);
            if (!(fabs(y[i] - want) <= ldexp(1, ilogb(want) - 23)))
                fail_msg("log of %.9g is %.9g, expected %.9g", x[i], y[i], want);
        }
    }
    const float ends[] = {0x1p-126f, 0x1.fffffep127f, 1, NAN, INFINITY, -NAN};
    for (int i = 0; i < COUNT(ends); i++) {
        const float y = vec_log(vec_splat(ends[i]))[0];
        if (isfinite(ends[i]))
            impl_close(log((double)ends[i]), y, 1e-7, "log", i);
        else
            assert_true(isnan(y));
    }
    assert_true(vec_log(vec_splat(1))[0] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(huge_logits),
        cmocka_unit_test(labels_outside),
        cmocka_unit_test(softmax_is_accurate),
        cmocka_unit_test(softmax_of_any_shape),
        cmocka_unit_test(rows_do_not_meet),
        cmocka_unit_test(labels_missing_among_many),
        cmocka_unit_test(logarithm_is_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

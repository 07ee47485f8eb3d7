/* gelu in both forms: the specification and the loops of every instruction set against PyTorch's numbers and against the
 * formulas in double, far out and on strange numbers; what fusion makes of dense layers around it, and that this changes no
 * training. */
#include "golden/gelu.h"
#include "backend/cpu/cpu.h"
#include "impl_call.h"
#include "program_net.h"
#include "spec_call.h"

#include <stdlib.h>

typedef struct form {
    const char *forward, *backward;
    const double *y, *slope; /* recorded, of gelu_x */
    double (*share)(double), (*share_slope)(double);
} form;

static double share_erf(double x) { return erfc(-x / sqrt(2)) / 2; }
static double share_slope_erf(double x) { return exp(-x * x / 2) / sqrt(8 * atan(1)); }

static double twice_u(double x) { return 2 * sqrt(0.5 / atan(1)) * (x + 0.044715 * x * x * x); }
static double share_tanh(double x) { return 1 / (1 + exp(-twice_u(x))); }
static double share_slope_tanh(double x) {
    return share_tanh(x) * share_tanh(-x) * 2 * sqrt(0.5 / atan(1)) * (1 + 3 * 0.044715 * x * x);
}

static const form forms[] = {
    {"gelu.forward", "gelu.backward", gelu_erf_y, gelu_erf_slope, share_erf, share_slope_erf},
    {"gelu.forward_tanh", "gelu.backward_tanh", gelu_tanh_y, gelu_tanh_slope, share_tanh, share_slope_tanh},
};
enum { FORMS = COUNT(forms), INPUTS = COUNT(gelu_x), ALL = 64 };

/* ISA TWI_ISA_NONE: the specification. dy is 2 everywhere. */
static void run(const form *f, twi_isa isa, int64_t count, const float *x, float *y, float *dx) {
    twi_call forward = {0}, backward = {0};
    float *dy = impl_floats(count);
    for (int64_t i = 0; i < count; i++) dy[i] = 2;
    OPERAND(&forward, x, 1, count), OPERAND(&forward, y, 1, count);
    OPERAND(&backward, dy, 1, count), OPERAND(&backward, x, 1, count), OPERAND(&backward, dx, 1, count);
    if (isa == TWI_ISA_NONE) {
        spec_run(f->forward, &forward);
        spec_run(f->backward, &backward);
    } else {
        impl_run(twi_cpu_point_impls, f->forward, isa, &forward);
        impl_run(twi_cpu_point_impls, f->backward, isa, &backward);
    }
}

static void both_forms_agree_with_pytorch(void **state) {
    (void)state;
    for (const form *f = forms; f < forms + FORMS; f++)
        for (int isa = TWI_ISA_NONE; isa <= TWI_ISA_AVX512_BF16; isa++) {
            if (isa > TWI_ISA_NONE && !impl_has_isa((twi_isa)isa)) continue;
            float x[INPUTS], y[INPUTS], dx[INPUTS];
            for (int i = 0; i < INPUTS; i++) x[i] = (float)gelu_x[i];
            run(f, (twi_isa)isa, INPUTS, x, y, dx);
            for (int i = 0; i < INPUTS; i++) {
                impl_close(f->y[i], y[i], 3e-7, f->forward, i);
                impl_close(2 * f->slope[i], dx[i], 6e-7, f->backward, i);
            }
            impl_release();
        }
}

/* From -13 on: further out the share falls below the normal numbers, or near them. The rounding of x^2 in f32 is what moves the
 * last digits of a tail: half of it, by 2^-24, for each of x^2/2, and the tanh form's power is the steeper one. */
static void tails_keep_their_digits(void **state) {
    (void)state;
    enum { STEPS = 26001 };
    static float x[STEPS], y[STEPS], dx[STEPS];
    for (int i = 0; i < STEPS; i++) x[i] = (float)(i - STEPS / 2) * 0x1p-10f;
    IMPL_EACH_ISA(isa)
    for (const form *f = forms; f < forms + FORMS; f++) {
        run(f, (twi_isa)isa, STEPS, x, y, dx);
        double worst = 0;
        for (int i = 0; i < STEPS; i++) {
            double share = f->share(x[i]), want = x[i] * share, slope = 2 * (share + x[i] * f->share_slope(x[i]));
            double power = -log(share), allowed = (4 + 2 * power) * 0x1p-23;
            if (share < 1e-36) continue;
            if (fabs(y[i] - want) > allowed * fabs(want))
                fail_msg("%s(%g): %.9g, expected %.9g", f->forward, x[i], y[i], want);
            /* The slope is a difference where it crosses 0. */
            double size = 2 * (share + fabs(x[i]) * f->share_slope(x[i]));
            if (fabs(dx[i] - slope) > allowed * size)
                fail_msg("%s(%g): %.9g, expected %.9g", f->backward, x[i], dx[i], slope);
            worst = fmax(worst, fabs(y[i] - want));
        }
        assert_true(worst < 1e-6);
        impl_release();
    }
}

static void strange_numbers_travel(void **state) {
    (void)state;
    const float x[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 1e-40f, -0.0f, 0, 1e19f, -1e19f, 3, NAN, 1, 1, 1, 1, 1};
    enum { STRANGE = COUNT(x) };
    for (const form *f = forms; f < forms + FORMS; f++)
        for (int isa = TWI_ISA_NONE; isa <= TWI_ISA_AVX512_BF16; isa++) {
            if (isa > TWI_ISA_NONE && !impl_has_isa((twi_isa)isa)) continue;
            float y[STRANGE], dx[STRANGE];
            run(f, (twi_isa)isa, STRANGE, x, y, dx);
            assert_true(isnan(y[0]) && isnan(dx[0]) && isnan(y[11]) && isnan(dx[11]));
            assert_true(y[1] == INFINITY && dx[1] == 2);
            assert_true(isnan(y[2]) && dx[2] == 0);
            assert_true(y[3] == 1e30f && dx[3] == 2 && y[4] == 0 && dx[4] == 0);
            assert_true(y[5] >= 0 && y[5] < 1e-40f && dx[5] == 1);
            assert_true(y[6] == 0 && signbit(y[6]) && y[7] == 0 && !signbit(y[7]));
            assert_true(y[8] == 1e19f && dx[8] == 2 && y[9] == 0 && dx[9] == 0);
            impl_close(f->share(3) * 3, y[10], 3e-7, f->forward, 10);
            impl_release();
        }
}

/* ---- a bias before it ---- */

static void the_bias_gets_the_sum_of_what_passes(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {7, 5}, {3, 16}, {9, 17}, {6, 100}};
    IMPL_EACH_ISA(isa)
    for (int s = 0; s < (int)COUNT(sizes); s++) {
        const int64_t rows = sizes[s][0], columns = sizes[s][1], count = rows * columns;
        float *dy = impl_floats(count), *z = impl_floats(count), *db = impl_floats(columns), *g = impl_floats(count);
        double *want = calloc((size_t)columns, sizeof *want);
        assert_non_null(want);
        memcpy(g, dy, (size_t)count * sizeof *g);
        twi_call call = {.first = true};
        OPERAND(&call, g, rows, columns); /* g in the place of dy */
        OPERAND(&call, z, rows, columns), OPERAND(&call, g, rows, columns), OPERAND(&call, db, columns);
        call.operand[3].store = TWI_ACC;
        for (int64_t i = 0; i < count; i++) {
            double d = dy[i] * (share_tanh(z[i]) + z[i] * share_slope_tanh(z[i]));
            want[i % columns] += d;
            dy[i] = (float)d;
        }
        impl_run(twi_cpu_point_impls, "bias_gelu.backward", (twi_isa)isa, &call);
        for (int64_t i = 0; i < count; i++) impl_close(dy[i], g[i], 1e-6, "bias_gelu.backward", i);
        for (int64_t i = 0; i < columns; i++) impl_close(want[i], db[i], 3e-6, "bias_gelu.backward", i);
        free(want);
        impl_release();
    }
}

/* ---- in a model ---- */

static bool tanh_form;
static tw_value *net_of_gelus(tw_model *model, tw_value *x) {
    const tw_gelu_options gelu = {.size = sizeof gelu, .tanh = tanh_form};
    x = tw_gelu(model, tw_dense(model, x, 16, NULL), &gelu);
    x = tw_gelu(model, tw_dense(model, x, 9, NULL), &gelu);
    return tw_dense(model, x, 4, NULL);
}

static int count_of(const char *dump, const char *kernel) {
    int found = 0;
    size_t length = strlen(kernel);
    for (const char *at = dump; (at = strstr(at, kernel)) != NULL; at += length) found += at[length] == ' ';
    return found;
}

static void dense_layers_take_gelus_of_the_tanh_form(void **state) {
    (void)state;
    static const struct {
        const char *kernel;
        int count[2]; /* erf, tanh */
    } expected[] = {
        {"dense.forward_bias_gelu", {0, 2}},
        {"dense.forward_bias", {3, 1}},
        {"gelu.forward", {2, 0}},
        {"gelu.forward_tanh", {0, 0}},
        {"dense.backward_data_gelu", {0, 2}},
        {"dense.backward_data", {2, 0}},
        {"gelu.backward", {2, 0}},
        {"gelu.backward_tanh", {0, 0}},
        {"bias.backward", {0, 0}},
        {"bias_gelu.backward", {0, 0}},
        {"dense.backward_weights", {0, 2}},
        {"dense.backward_weights_bias", {3, 1}},
    };
    for (int form = 0; form < 2; form++) {
        net n;
        tanh_form = form;
        open_net(&n, net_of_gelus, 2, 2);
        tw_program *program = make(&n, 8, false), *plain;
        for (int i = 0; i < (int)COUNT(expected); i++)
            assert_int_equal(count_of(tw_program_dump(program, TW_PASS_FUSE), expected[i].kernel),
                             expected[i].count[form]);
        /* What a gelu reads is kept for its backward, and not otherwise. */
        CHECK_OK(tw_program_create(
            &plain, n.model, 8, TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1, .record_passes = true)));
        const char *kept = strstr(tw_program_dump(program, TW_PASS_FUSE), "->z=");
        const char *dropped = strstr(tw_program_dump(plain, TW_PASS_FUSE), "->z=");
        assert_int_equal(kept != NULL, form);
        assert_null(dropped);
        tw_program_destroy(plain);
        tw_program_destroy(program);
        close_net(&n);
    }
}

static void fusion_changes_no_training(void **state) {
    (void)state;
    enum { BATCH = 8, STEPS = 12 };
    float images[BATCH * 8], loss[2][STEPS];
    int32_t labels[BATCH];
    for (int i = 0; i < BATCH * 8; i++) images[i] = (float)(i * 37 % 64 - 31) / 16;
    for (int i = 0; i < BATCH; i++) labels[i] = i * 3 % 4;
    for (int form = 0; form < 2; form++) {
        for (int fused = 0; fused < 2; fused++) {
            net n;
            tanh_form = form;
            open_net(&n, net_of_gelus, 2, 2);
            tw_program *program = make(&n, BATCH, !fused);
            for (int s = 0; s < STEPS; s++) {
                CHECK_OK(tw_program_write(program, n.x, TW_F32, images, BATCH * 8));
                CHECK_OK(tw_program_write(program, n.labels, TW_I32, labels, BATCH));
                CHECK_OK(tw_program_run(program));
                CHECK_OK(tw_program_read(program, n.loss.value, &loss[fused][s], 1));
            }
            tw_program_destroy(program);
            close_net(&n);
        }
        for (int s = 0; s < STEPS; s++) assert_true(fabs(loss[0][s] - loss[1][s]) < 1e-5);
        assert_true(loss[1][STEPS - 1] < loss[1][0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_agree_with_pytorch),
        cmocka_unit_test(tails_keep_their_digits),
        cmocka_unit_test(strange_numbers_travel),
        cmocka_unit_test(the_bias_gets_the_sum_of_what_passes),
        cmocka_unit_test(dense_layers_take_gelus_of_the_tanh_form),
        cmocka_unit_test(fusion_changes_no_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The CPU back end's batch-norm sweeps against plain loops in double: channel counts around the vector widths, images
 * and flat values, samples that end within a byte of mask, chunks that add up, results in the place of an input. */
#include "impl_call.h"
#include "backend/step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static const int64_t channel_counts[] = {1, 3, 5, 8, 10, 16, 17, 32, 64, 100};
/* Samples, height, width; height 0: [N, C]. */
static const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 5}, {3, 8, 8}, {5, 0, 0}, {1, 0, 0}};

/* What all kernels get to see of one size. */
typedef struct norm_case {
    impl_shape shape;
    int64_t samples, channels, pixels, elements; /* pixels of a sample; elements of all */
    int64_t mask_bytes;                          /* of one sample */
    float *x, *dy, *other, *out, *coef, *dcoef, *sums;
    uint8_t *mask, *mask_out;
} norm_case;

static norm_case make(int64_t channels, const int64_t size[3]) {
    norm_case t = {.shape = {size[1] ? 4 : 2, {size[0], channels, size[1], size[2]}, true}};
    t.samples = size[0];
    t.channels = channels;
    t.elements = impl_count(&t.shape);
    t.pixels = t.elements / size[0] / channels;
    t.mask_bytes = twi_bits_bytes(t.pixels * channels);
    t.x = impl_floats(t.elements);
    t.dy = impl_floats(t.elements);
    t.other = impl_floats(t.elements);
    t.out = impl_floats(t.elements);
    t.coef = impl_floats(4 * channels);
    t.dcoef = impl_floats(3 * channels);
    t.sums = impl_floats(3 * channels);
    t.mask = impl_bytes(t.samples * t.mask_bytes);
    t.mask_out = impl_bytes(t.samples * t.mask_bytes);
    return t;
}

/* Visits the elements: sample n, channel c, the offset i in memory and the mask's bit there. */
#define EACH_ELEMENT(t, n, c, i)                    \
    for (int64_t n = 0; n < (t)->samples; n++)      \
        for (int64_t c = 0; c < (t)->channels; c++) \
            for (int64_t p_ = 0, i; p_ < (t)->pixels && (i = offset(t, n, c, p_), true); p_++)
static int64_t offset(const norm_case *t, int64_t n, int64_t c, int64_t pixel) {
    int64_t width = t->shape.rank == 4 ? t->shape.dim[3] : 1;
    return impl_at(&t->shape, n, c, pixel / width, pixel % width);
}
static bool bit(const norm_case *t, const uint8_t *mask, int64_t n, int64_t i) {
    return twi_bit_get(mask + n * t->mask_bytes, i - n * t->pixels * t->channels);
}

/* Runs a test on every size and instruction set. */
static void each_case(void (*test)(norm_case *t, twi_isa isa)) {
    IMPL_EACH_ISA(isa)
    for (int c = 0; c < COUNT(channel_counts); c++)
        for (int s = 0; s < COUNT(sizes); s++) {
            norm_case t = make(channel_counts[c], sizes[s]);
            test(&t, (twi_isa)isa);
            impl_release();
        }
}

/* The call on samples from .. from+count-1 of the operands given so far, as the runner cuts it. */
static twi_call chunk(const norm_case *t, const twi_call *call, int64_t from, int64_t count) {
    twi_call part = *call;
    part.first = from == 0;
    part.sample = from;
    for (int o = 0; o < call->operand_count; o++) {
        twi_operand *operand = &part.operand[o];
        if (operand->store == TWI_ACC) continue;
        operand->shape.dim[0] = count;
        size_t bytes =
            operand->store == TWI_BITS ? (size_t)t->mask_bytes : (size_t)(t->pixels * t->channels) * sizeof(float);
        operand->data = (uint8_t *)operand->data + (size_t)from * bytes;
    }
    return part;
}

/* In one go, or in chunks of two samples. */
static void run(const norm_case *t, const char *kernel, twi_isa isa, const twi_call *call) {
    int64_t step = t->samples > 2 ? 2 : t->samples;
    for (int64_t from = 0; from < t->samples; from += step) {
        int64_t left = t->samples - from;
        twi_call part = chunk(t, call, from, left < step ? left : step);
        impl_run(twi_cpu_norm_impls, kernel, isa, &part);
    }
}

/* ---- forward ---- */

static void check_statistics(norm_case *t, twi_isa isa) {
    twi_call call = {0};
    impl_operand(&call, 0, TWI_REAL, &t->shape, t->x);
    impl_rows(&call, 1, TWI_ACC, 1, t->channels, t->coef);
    impl_rows(&call, 2, TWI_ACC, 3, t->channels, t->sums);
    run(t, "batch_norm.statistics", isa, &call);
    double want[3][128] = {{0}};
    EACH_ELEMENT(t, n, c, i) {
        double distance = (double)t->x[i] - t->coef[c];
        want[0][c] += distance;
        want[1][c] += distance * distance;
        want[2][c] += 1;
    }
    for (int k = 0; k < 3; k++)
        for (int64_t c = 0; c < t->channels; c++)
            impl_close(want[k][c], t->sums[k * t->channels + c], 1e-5, "statistics", k * t->channels + c);
}
static void statistics(void **state) { (void)state, each_case(check_statistics); }

static void check_apply(norm_case *t, twi_isa isa) {
    const float *scale = t->coef + 2 * t->channels, *shift = t->coef + 3 * t->channels;
    for (int relu = 0; relu < 2; relu++) {
        twi_call call = {0};
        impl_operand(&call, 0, TWI_REAL, &t->shape, t->x);
        impl_rows(&call, 1, TWI_ACC, 4, t->channels, t->coef);
        impl_operand(&call, 2, TWI_REAL, &t->shape, t->out);
        if (relu) impl_operand(&call, 3, TWI_BITS, &t->shape, t->mask_out);
        run(t, relu ? "batch_norm.apply_relu" : "batch_norm.apply", isa, &call);
        EACH_ELEMENT(t, n, c, i) {
            double want = (double)scale[c] * t->x[i] + shift[c];
            impl_close(relu && want < 0 ? 0 : want, t->out[i], 1e-6, "apply", i);
            if (relu && fabs(want) > 1e-6) assert_int_equal(bit(t, t->mask_out, n, i), want > 0);
        }
    }
}
static void apply(void **state) { (void)state, each_case(check_apply); }

static void check_apply_add_relu(norm_case *t, twi_isa isa) {
    const float *scale = t->coef + 2 * t->channels, *shift = t->coef + 3 * t->channels;
    memcpy(t->out, t->x, (size_t)t->elements * sizeof(float));
    twi_call call = {0};
    impl_operand(&call, 0, TWI_REAL, &t->shape, t->out); /* y in the place of x */
    impl_rows(&call, 1, TWI_ACC, 4, t->channels, t->coef);
    impl_operand(&call, 2, TWI_REAL, &t->shape, t->other);
    impl_operand(&call, 3, TWI_REAL, &t->shape, t->out);
    impl_operand(&call, 4, TWI_BITS, &t->shape, t->mask_out);
    run(t, "batch_norm.apply_add_relu", isa, &call);
    EACH_ELEMENT(t, n, c, i) {
        double want = (double)scale[c] * t->x[i] + shift[c] + t->other[i];
        impl_close(want < 0 ? 0 : want, t->out[i], 1e-6, "apply_add_relu", i);
        if (fabs(want) > 1e-6) assert_int_equal(bit(t, t->mask_out, n, i), want > 0);
    }
}
static void apply_add_relu(void **state) { (void)state, each_case(check_apply_add_relu); }

/* Not-a-number passes and lets its gradient through; an exact 0, and the bits behind the last element, are 0. */
static void relu_keeps_nan(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (int64_t samples = 1; samples <= 7; samples += 3) {
        const impl_shape shape = {2, {samples, 19}, true};
        float *x = impl_floats(samples * 19), *coef = impl_floats(4 * 19);
        uint8_t *mask = impl_bytes(samples * 3);
        for (int64_t i = 0; i < samples * 19; i++) x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? 0 : -1;
        for (int c = 0; c < 19; c++) coef[2 * 19 + c] = 1, coef[3 * 19 + c] = 0;
        twi_call call = {0};
        impl_operand(&call, 0, TWI_REAL, &shape, x);
        impl_rows(&call, 1, TWI_ACC, 4, 19, coef);
        impl_operand(&call, 2, TWI_REAL, &shape, x);
        impl_operand(&call, 3, TWI_BITS, &shape, mask);
        impl_run(twi_cpu_norm_impls, "batch_norm.apply_relu", (twi_isa)isa, &call);
        for (int64_t i = 0; i < samples * 19; i++) {
            assert_int_equal(isnan(x[i]), i % 3 == 0);
            if (i % 3) assert_true(x[i] == 0);
            assert_int_equal(twi_bit_get(mask + i / 19 * 3, i % 19), i % 3 == 0);
        }
        for (int64_t n = 0; n < samples; n++) assert_int_equal(mask[n * 3 + 2] >> 3, 0);
        impl_release();
    }
}

/* ---- backward ---- */

static void check_backward(norm_case *t, twi_isa isa) {
    for (int masked = 0; masked < 2; masked++) {
        twi_call sums = {0}, apply_call = {0};
        for (int k = 0; k < 2; k++) {
            twi_call *call = k ? &apply_call : &sums;
            impl_operand(call, 0, TWI_REAL, &t->shape, k ? t->out : t->dy);
            if (masked) impl_operand(call, 1, TWI_BITS, &t->shape, t->mask);
            impl_operand(call, 1 + masked, TWI_REAL, &t->shape, t->x);
            impl_rows(call, 2 + masked, TWI_ACC, k ? 3 : 4, t->channels, k ? t->dcoef : t->coef);
        }
        impl_rows(&sums, 3 + masked, TWI_ACC, 3, t->channels, t->sums);
        run(t, masked ? "batch_norm.backward_sums_masked" : "batch_norm.backward_sums", isa, &sums);
        memcpy(t->out, t->dy, (size_t)t->elements * sizeof(float));
        impl_operand(&apply_call, 3 + masked, TWI_REAL, &t->shape, t->out); /* dx in the place of dy */
        run(t, masked ? "batch_norm.backward_apply_masked" : "batch_norm.backward_apply", isa, &apply_call);

        double want[3][128] = {{0}};
        EACH_ELEMENT(t, n, c, i) {
            double g = masked && !bit(t, t->mask, n, i) ? 0 : t->dy[i];
            want[0][c] += g;
            want[1][c] += g * ((double)t->x[i] - t->coef[c]);
            want[2][c] += 1;
            const float *k = t->dcoef + c;
            impl_close(k[0] * g + (double)k[t->channels] * t->x[i] + k[2 * t->channels], t->out[i], 1e-6,
                       "backward_apply", i);
        }
        for (int k = 0; k < 3; k++)
            for (int64_t c = 0; c < t->channels; c++)
                impl_close(want[k][c], t->sums[k * t->channels + c], 1e-5, "backward_sums", k * t->channels + c);
    }
}
static void backward(void **state) { (void)state, each_case(check_backward); }

static void check_masks(norm_case *t, twi_isa isa) {
    twi_call mask = {0}, add = {0};
    impl_operand(&mask, 0, TWI_REAL, &t->shape, t->dy);
    impl_operand(&mask, 1, TWI_BITS, &t->shape, t->mask);
    impl_operand(&mask, 2, TWI_REAL, &t->shape, t->out);
    run(t, "relu.backward_masked", isa, &mask);
    EACH_ELEMENT(t, n, c, i) assert_true(t->out[i] == (bit(t, t->mask, n, i) ? t->dy[i] : 0));
    memcpy(t->out, t->other, (size_t)t->elements * sizeof(float));
    impl_operand(&add, 0, TWI_REAL, &t->shape, t->dy);
    impl_operand(&add, 1, TWI_BITS, &t->shape, t->mask);
    impl_operand(&add, 2, TWI_REAL, &t->shape, t->out); /* y in the place of b */
    impl_operand(&add, 3, TWI_REAL, &t->shape, t->out);
    run(t, "add.masked", isa, &add);
    EACH_ELEMENT(t, n, c, i) assert_true(t->out[i] == (bit(t, t->mask, n, i) ? t->dy[i] : 0) + t->other[i]);
}
static void masks_alone(void **state) { (void)state, each_case(check_masks); }

/* ---- order of sums, refusals ---- */

/* The same samples give the same bits whatever was in the scratch and whoever ran before. */
static void sums_are_reproducible(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa) {
        norm_case t = make(17, sizes[2]);
        float first[3 * 17];
        for (int again = 0; again < 2; again++) {
            check_statistics(&t, (twi_isa)isa);
            if (again) assert_memory_equal(first, t.sums, sizeof first);
            memcpy(first, t.sums, sizeof first);
        }
        impl_release();
    }
}

static void other_layouts_are_refused(void **state) {
    (void)state;
    impl_shape image = {4, {2, 3, 4, 5}, true}, row_major = image;
    row_major.channels_last = false;
    twi_call call = {0};
    impl_operand(&call, 0, TWI_REAL, &image, NULL);
    impl_rows(&call, 1, TWI_ACC, 4, 3, NULL);
    impl_operand(&call, 2, TWI_REAL, &image, NULL);
    assert_null(impl_refusal(twi_cpu_norm_impls, "batch_norm.apply", &call));
    impl_operand(&call, 2, TWI_REAL, &row_major, NULL);
    assert_non_null(impl_refusal(twi_cpu_norm_impls, "batch_norm.apply", &call));
    impl_operand(&call, 2, TWI_REAL, &image, NULL);
    call.operand[0].dtype = TW_BF16;
    assert_non_null(impl_refusal(twi_cpu_norm_impls, "batch_norm.apply", &call));
    /* One channel, or one pixel: both orders are the same. */
    image.dim[1] = row_major.dim[1] = 1;
    impl_operand(&call, 0, TWI_REAL, &image, NULL);
    impl_operand(&call, 2, TWI_REAL, &row_major, NULL);
    assert_null(impl_refusal(twi_cpu_norm_impls, "batch_norm.apply", &call));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics),
        cmocka_unit_test(apply),
        cmocka_unit_test(apply_add_relu),
        cmocka_unit_test(relu_keeps_nan),
        cmocka_unit_test(backward),
        cmocka_unit_test(masks_alone),
        cmocka_unit_test(sums_are_reproducible),
        cmocka_unit_test(other_layouts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

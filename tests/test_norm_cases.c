/* The specification of batch norm and of its fused forms on small recorded numbers: conventions where implementations
 * differ. Values marked PyTorch come from version 1.13.1, the others from the formulas by hand. */
#include "spec_call.h"
#include "backend/attrs.h"

/* One batch through statistics, finalize and apply; x of any 4-D layout, y in the same. */
typedef struct norm {
    twi_batch_norm_attrs attrs;
    float gamma[2], beta[2], mean[2], var[2], batches[1];
    float sums[6], centers[4], refined[6], coef[8], mean_new[2], var_new[2], batches_new[1];
} norm;

static void norm_statistics(norm *s, const twi_operand *x) {
    int64_t channels = x->shape.dim[1];
    twi_call sums = {.operand = {*x}, .operand_count = 1};
    OPERAND(&sums, s->mean, channels);
    OPERAND(&sums, s->sums, 3, channels);
    spec_run("batch_norm.statistics", &sums);
    twi_call center = {.operand_count = 0};
    OPERAND(&center, s->sums, 3, channels);
    OPERAND(&center, s->mean, channels);
    OPERAND(&center, s->centers, 2, channels);
    spec_run("batch_norm.center", &center);
    twi_call refine = {.operand = {*x}, .operand_count = 1};
    OPERAND(&refine, s->centers, 2, channels);
    OPERAND(&refine, s->refined, 3, channels);
    spec_run("batch_norm.refine", &refine);
    twi_call finalize = {.attrs = &s->attrs};
    OPERAND(&finalize, s->sums, 3, channels);
    OPERAND(&finalize, s->gamma, channels);
    OPERAND(&finalize, s->beta, channels);
    OPERAND(&finalize, s->mean, channels);
    OPERAND(&finalize, s->var, channels);
    OPERAND(&finalize, s->batches, 1);
    OPERAND(&finalize, s->coef, 4, channels);
    OPERAND(&finalize, s->mean_new, channels);
    OPERAND(&finalize, s->var_new, channels);
    OPERAND(&finalize, s->batches_new, 1);
    OPERAND(&finalize, s->centers, 2, channels);
    OPERAND(&finalize, s->refined, 3, channels);
    spec_run("batch_norm.finalize", &finalize);
}

static void norm_apply(norm *s, const twi_operand *x, const twi_operand *y) {
    twi_call apply = {.operand = {*x}, .operand_count = 1};
    OPERAND(&apply, s->coef, 4, x->shape.dim[1]);
    apply.operand[apply.operand_count++] = *y;
    spec_run("batch_norm.apply", &apply);
}

/* The output divides by n, the running variance by n - 1, and momentum is the weight of the new batch: 2.1666667, not
 * 1.85 or 11.5. */
static void batch_norm_statistics_convention(void **state) {
    (void)state;
    const float x[] = {1, 2, 4, 9}, four[] = {4};
    float y[4];
    norm s = {{.epsilon = 1e-5f, .momentum = 0.1f}, .gamma = {1}, .var = {1}, .batches = {41}};
    twi_call shapes = {0};
    twi_operand *xo = OPERAND(&shapes, x, 4, 1, 1, 1), *yo = OPERAND(&shapes, y, 4, 1, 1, 1);
    norm_statistics(&s, xo);
    norm_apply(&s, xo, yo);
    CHECK(y, 1e-6, -0.973328, -0.648885, 0, 1.622213);
    CHECK(s.mean_new, 1e-6, 0.4);
    CHECK(s.var_new, 1e-6, 2.1666667);
    CHECK(s.batches_new, 0, 42);

    twi_call from_running = {.attrs = &s.attrs};
    OPERAND(&from_running, s.gamma, 1);
    OPERAND(&from_running, s.beta, 1);
    OPERAND(&from_running, s.mean_new, 1);
    OPERAND(&from_running, s.var_new, 1);
    OPERAND(&from_running, s.coef, 4, 1);
    spec_run("batch_norm.from_running", &from_running);
    norm_apply(&s, OPERAND(&shapes, four, 1, 1), OPERAND(&shapes, y, 1, 1));
    CHECK(y, 1e-6, 2.445713);
}

/* A mean of a thousand deviations, new to the running mean: squares around 0 would leave no digit of the variance, 2.5. */
static void batch_norm_far_from_zero(void **state) {
    (void)state;
    const float x[] = {1580.3f, 1581.3f, 1583.3f, 1584.3f};
    norm s = {.attrs = {.epsilon = 1e-5f, .momentum = 0.1f}, .gamma = {1}, .var = {1}};
    twi_call call = {0};
    norm_statistics(&s, OPERAND(&call, x, 4, 1, 1, 1));
    CHECK(s.coef, 1e-5, 1582.3, 0.6324543);
    CHECK(s.mean_new, 1e-6, 158.23);
    CHECK(s.var_new, 1e-5, 0.9 + 0.1 * 10 / 3);
    assert_true(s.centers[1] == 1);
    s.mean[0] = 1582; /* once the running mean is near, one pass does */
    memset(s.sums, 0, sizeof s.sums);
    memset(s.refined, 0, sizeof s.refined);
    norm_statistics(&s, OPERAND(&(twi_call){0}, x, 4, 1, 1, 1));
    CHECK(s.coef, 1e-5, 1582.3, 0.6324543);
    assert_true(s.centers[1] == 0 && s.refined[2] == 0);
}

/* One element a channel: the output is beta, and the running variance takes in 0 instead of 0/0. */
static void batch_norm_takes_a_batch_of_one(void **state) {
    (void)state;
    const float x[] = {7, -3};
    float y[2];
    norm s = {{.epsilon = 1e-5f, .momentum = 0.1f}, .gamma = {2, 3}, .beta = {0.5f, -1}, .mean = {1, 0}, .var = {1, 4}};
    twi_call shapes = {0};
    twi_operand *xo = OPERAND(&shapes, x, 1, 2), *yo = OPERAND(&shapes, y, 1, 2);
    norm_statistics(&s, xo);
    norm_apply(&s, xo, yo);
    CHECK(y, 1e-4, 0.5, -1);
    CHECK(s.mean_new, 1e-6, 1.6, -0.3);
    CHECK(s.var_new, 1e-6, 0.9, 3.6);
}

/* Data far from 0 keep their variance, once the running mean is near them. */
static void batch_norm_shifts_by_the_running_mean(void **state) {
    (void)state;
    const float x[] = {4001, 4002, 4004, 4009};
    norm s = {{.epsilon = 1e-5f, .momentum = 0.1f}, .gamma = {1}, .mean = {4000}, .var = {1}};
    twi_call shapes = {0};
    norm_statistics(&s, OPERAND(&shapes, x, 4, 1));
    CHECK(s.mean_new, 1e-7, 4000.4);
    CHECK(s.var_new, 1e-6, 2.1666667);
}

/* A reordering of [2,2,2,2] from row-major to channels last, or none. */
static void to_layout(float out[16], const float in[16], bool last) {
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 2; c++)
            for (int p = 0; p < 4; p++) out[n * 8 + (last ? p * 2 + c : c * 4 + p)] = in[n * 8 + c * 4 + p];
}
static void from_layout(float out[16], const float in[16], bool last) {
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 2; c++)
            for (int p = 0; p < 4; p++) out[n * 8 + c * 4 + p] = in[n * 8 + (last ? p * 2 + c : c * 4 + p)];
}
static twi_operand *image_operand(twi_call *call, const float *data, bool last) {
    twi_operand *o = OPERAND(call, data, 2, 2, 2, 2);
    if (last) spec_channels_last(o);
    return o;
}

static const float image_x[16] = {0.5f,   -1.25f, 2.0f,  3.5f,  10.5f, 12.0f, 9.25f, 11.0f,
                                  -0.75f, 1.5f,   0.25f, -2.0f, 8.5f,  13.0f, 10.0f, 10.75f};
static const float image_dy[16] = {1.0f,  -2.0f, 0.5f,  0.25f, -1.5f, 2.0f,   1.0f,  -0.5f,
                                   0.75f, 1.25f, -1.0f, 0.5f,  3.0f,  -0.25f, -2.0f, 1.5f};

/* Forward and backward, PyTorch; gamma (1.5, -0.5), beta (0.25, 1), running (0.2, 9), (1.5, 2), epsilon 1e-3. */
static void batch_norm_agrees_with_pytorch(void **state) {
    (void)state;
    for (int last = 0; last < 2; last++) {
        float x[16], dy[16], dx[16], y[16], plain[16], sums[6] = {0}, dcoef[6], dgamma[2], dbeta[2];
        norm s = {{.epsilon = 1e-3f, .momentum = 0.1f},
                  .gamma = {1.5f, -0.5f},
                  .beta = {0.25f, 1},
                  .mean = {0.2f, 9},
                  .var = {1.5f, 2}};
        to_layout(x, image_x, last);
        to_layout(dy, image_dy, last);
        twi_call shapes = {0};
        twi_operand *xo = image_operand(&shapes, x, last), *yo = image_operand(&shapes, y, last);
        norm_statistics(&s, xo);
        norm_apply(&s, xo, yo);
        from_layout(plain, y, last);
        CHECK(plain, 1e-6, 0.2775333, -1.2643291, 1.5991296, 2.9207258, 1.0464109, 0.4894785, 1.5105212, 0.8607668,
              -0.823797, 1.1585975, 0.0572672, -1.9251271, 1.7889874, 0.1181902, 1.2320549, 0.9535888);
        CHECK(s.mean_new, 1e-6, 0.226875, 9.1624994);
        CHECK(s.var_new, 1e-6, 1.6811383, 2.0071428);

        twi_call backward_sums = {0};
        image_operand(&backward_sums, dy, last);
        image_operand(&backward_sums, x, last);
        OPERAND(&backward_sums, s.coef, 4, 2);
        OPERAND(&backward_sums, sums, 3, 2);
        spec_run("batch_norm.backward_sums", &backward_sums);
        twi_call finalize = {0};
        OPERAND(&finalize, sums, 3, 2);
        OPERAND(&finalize, s.coef, 4, 2);
        OPERAND(&finalize, s.gamma, 2);
        OPERAND(&finalize, dgamma, 2);
        OPERAND(&finalize, dbeta, 2);
        OPERAND(&finalize, dcoef, 3, 2);
        spec_run("batch_norm.backward_finalize", &finalize);
        twi_call apply = {0};
        image_operand(&apply, dy, last);
        image_operand(&apply, x, last);
        OPERAND(&apply, dcoef, 3, 2);
        image_operand(&apply, dx, last);
        spec_run("batch_norm.backward_apply", &apply);
        from_layout(plain, dx, last);
        CHECK(plain, 2e-6, 0.7382308, -1.6156051, 0.0496788, -0.4186072, 0.7210641, -0.7379948, -0.0741983, 0.2965925,
              0.7246481, 0.7931502, -0.9825609, 0.7110653, -0.7369999, -0.0089628, 0.9598916, -0.4193924);
        CHECK(dgamma, 1e-6, 2.5560038, -3.0863338);
        CHECK(dbeta, 1e-6, 1.25, 3.25);
    }
}

/* The same batch through the end of a residual block, relu(norm(x) + r), PyTorch: all kernels that know its mask. */
static void residual_end_agrees_with_pytorch(void **state) {
    (void)state;
    const float image_r[16] = {0.5f, 0, -3, 0.1f, -0.2f, -1, 2, 0, 0.3f, -0.4f, -0.5f, 1, 0, -0.75f, -1, 0.2f};
    for (int last = 0; last < 2; last++) {
        float x[16], r[16], dy[16], y[16], dx[16], dr[16], plain[16], sums[6] = {0}, dcoef[6], dgamma[2], dbeta[2];
        uint8_t mask[2] = {0xff, 0};
        norm s = {{.epsilon = 1e-3f, .momentum = 0.1f}, .gamma = {1.5f, -0.5f}, .beta = {0.25f, 1}, .var = {1, 1}};
        to_layout(x, image_x, last);
        to_layout(r, image_r, last);
        to_layout(dy, image_dy, last);
        twi_call shapes = {0};
        norm_statistics(&s, image_operand(&shapes, x, last));
        twi_call apply = {0};
        image_operand(&apply, x, last);
        OPERAND(&apply, s.coef, 4, 2);
        image_operand(&apply, r, last);
        image_operand(&apply, y, last);
        image_operand(&apply, (float *)(void *)mask, last);
        spec_run("batch_norm.apply_add_relu", &apply);
        from_layout(plain, y, last);
        CHECK(plain, 1e-6, 0.7775333, 0, 0, 3.0207257, 0.8464109, 0, 3.5105212, 0.8607668, 0, 0.7585975, 0, 0,
              1.7889874, 0, 0.2320549, 1.1535888);
        /* Bits follow memory: channel by channel, or pixel by pixel. */
        assert_int_equal(mask[0], last ? 0xe3 : 0xd9);
        assert_int_equal(mask[1], last ? 0xa6 : 0xd2);

        twi_call shortcut = {0};
        image_operand(&shortcut, dy, last);
        image_operand(&shortcut, (float *)(void *)mask, last);
        image_operand(&shortcut, dr, last);
        spec_run("relu.backward_masked", &shortcut);
        from_layout(plain, dr, last);
        CHECK(plain, 0, 1, 0, 0, 0.25, -1.5, 0, 1, -0.5, 0, 1.25, 0, 0, 3, 0, -2, 1.5);
        twi_call sum = {0};
        image_operand(&sum, dy, last);
        image_operand(&sum, (float *)(void *)mask, last);
        image_operand(&sum, dr, last);
        image_operand(&sum, dr, last);
        spec_run("add.masked", &sum);
        from_layout(plain, dr, last);
        CHECK(plain, 0, 2, 0, 0, 0.5, -3, 0, 2, -1, 0, 2.5, 0, 0, 6, 0, -4, 3);

        twi_call backward_sums = {0};
        image_operand(&backward_sums, dy, last);
        image_operand(&backward_sums, (float *)(void *)mask, last);
        image_operand(&backward_sums, x, last);
        OPERAND(&backward_sums, s.coef, 4, 2);
        OPERAND(&backward_sums, sums, 3, 2);
        spec_run("batch_norm.backward_sums_masked", &backward_sums);
        twi_call finalize = {0};
        OPERAND(&finalize, sums, 3, 2);
        OPERAND(&finalize, s.coef, 4, 2);
        OPERAND(&finalize, s.gamma, 2);
        OPERAND(&finalize, dgamma, 2);
        OPERAND(&finalize, dbeta, 2);
        OPERAND(&finalize, dcoef, 3, 2);
        spec_run("batch_norm.backward_finalize", &finalize);
        twi_call backward = {0};
        image_operand(&backward, dy, last);
        image_operand(&backward, (float *)(void *)mask, last);
        image_operand(&backward, x, last);
        OPERAND(&backward, dcoef, 3, 2);
        image_operand(&backward, dx, last);
        spec_run("batch_norm.backward_apply_masked", &backward);
        from_layout(plain, dx, last);
        CHECK(plain, 2e-6, 0.603264, -0.1396155, -0.3962442, -0.2944221, 0.6467426, -0.1525137, -0.0795414, 0.1946797,
              -0.1790968, 0.7445674, -0.2580595, -0.0803935, -0.700956, -0.314063, 0.9131614, -0.5075095);
        CHECK(dgamma, 1e-6, 1.220641, -4.6875143);
        CHECK(dbeta, 1e-6, 2.5, 1.5);
    }
}

/* Not-a-number goes through the relu and keeps its gradient; an exact 0 has none. */
static void fused_relu_keeps_nan(void **state) {
    (void)state;
    const float x[] = {NAN, -1, 0, 2}, coef[] = {0, 1, 1, 0};
    float y[4];
    uint8_t mask = 0xff;
    twi_call apply = {0};
    OPERAND(&apply, x, 1, 1, 2, 2);
    OPERAND(&apply, coef, 4, 1);
    OPERAND(&apply, y, 1, 1, 2, 2);
    OPERAND(&apply, &mask, 1, 1, 2, 2);
    spec_run("batch_norm.apply_relu", &apply);
    assert_true(isnan(y[0]) && y[1] == 0 && y[2] == 0 && y[3] == 2);
    assert_int_equal(mask & 15, 9);
    apply.operand[3].data = NULL; /* no backward follows */
    y[3] = 0;
    spec_run("batch_norm.apply_relu", &apply);
    assert_true(y[3] == 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norm_statistics_convention),
        cmocka_unit_test(batch_norm_far_from_zero),
        cmocka_unit_test(batch_norm_takes_a_batch_of_one),
        cmocka_unit_test(batch_norm_shifts_by_the_running_mean),
        cmocka_unit_test(batch_norm_agrees_with_pytorch),
        cmocka_unit_test(residual_end_agrees_with_pytorch),
        cmocka_unit_test(fused_relu_keeps_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

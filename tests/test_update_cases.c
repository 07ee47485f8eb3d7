/* The specification of the optimizers, the seed and the commit on small recorded numbers: conventions where
 * implementations differ. Values marked PyTorch come from version 1.13.1, the others from the formulas by hand. */
#include "spec_call.h"
#include "backend/attrs.h"

static void sgd(twi_control *control, const twi_update_attrs *attrs, int64_t count, float *param, const float *grad,
                float *momentum) {
    twi_call call = {.attrs = attrs, .control = control, .end = 1};
    OPERAND(&call, param, count);
    OPERAND(&call, grad, count);
    OPERAND(&call, momentum, count);
    spec_run("sgd.update", &call);
}

/* The buffer holds gradients: after the rate drops from 0.1 to 0.01 the next step is short at once. */
static void sgd_momentum_convention(void **state) {
    (void)state;
    static const double rates[] = {0.1, 0.1, 0.01, 0.01};
    static const double expected[2][4] = {{-0.1, -0.29, -0.3171, -0.35149}, {-0.19, -0.461, -0.49539, -0.536341}};
    const twi_update_segment all = {0, 1, 0, false, 0};
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        const twi_update_attrs attrs = {.segment_count = 1, .segment = &all, .momentum = 0.9f, .nesterov = nesterov};
        float w = 0, buffer = 0;
        const float g = 1;
        for (int i = 0; i < 4; i++) {
            twi_control control = {.learning_rate = rates[i], .guard.factor = 1};
            sgd(&control, &attrs, 1, &w, &g, &buffer);
            spec_check(__LINE__, &w, 1, &expected[nesterov][i], 1e-6);
        }
    }
}

/* PyTorch: rate 0.1, momentum 0.9, Nesterov, decay 0.05. */
static void sgd_agrees_with_pytorch(void **state) {
    (void)state;
    const twi_update_segment all = {0, 2, 0.05f, false, 0};
    const twi_update_attrs attrs = {.segment_count = 1, .segment = &all, .momentum = 0.9f, .nesterov = true};
    const float g[3][2] = {{0.5f, 1}, {-0.25f, 2}, {1, 0}};
    static const double expected[3][2] = {{0.8955, -2.171}, {0.8899428, -2.6032755}, {0.6680166, -2.7973619}};
    float w[2] = {1, -2}, buffer[2] = {0};
    twi_control control = {.learning_rate = 0.1, .guard.factor = 1};
    for (int i = 0; i < 3; i++) {
        sgd(&control, &attrs, 2, w, g[i], buffer);
        spec_check(__LINE__, w, 2, expected[i], 1e-6);
    }
}

/* With no gradient, only decay moves a weight, and only where a segment asks for it; what no segment covers stays. */
static void segments_have_their_own_decay(void **state) {
    (void)state;
    const twi_update_segment segments[] = {{0, 2, 0.1f, false, 0}, {2, 3, 0, false, 0}, {4, 6, 0.05f, false, 0}};
    const twi_update_attrs attrs = {.segment_count = 3, .segment = segments};
    const float g[6] = {0};
    float w[6] = {2, 1, 1, 0.5f, 2, 2};
    twi_control control = {.learning_rate = 0.1, .guard.factor = 1};
    twi_call call = {.attrs = &attrs, .control = &control, .end = 1};
    OPERAND(&call, w, 6);
    OPERAND(&call, g, 6);
    OPERAND(&call, NULL, 6); /* momentum 0 needs no buffer */
    spec_run("sgd.update", &call);
    CHECK(w, 1e-7, 1.98, 0.99, 1, 0.5, 1.99, 1.99);
    assert_true(w[2] == 1 && w[3] == 0.5f);
}

/* Few elements are one part, 4096 in each of some are few: then 64. */
static void shares_are_worth_handing_out(void **state) {
    (void)state;
    assert_int_equal(twi_update_shares(0), 1);
    assert_int_equal(twi_update_shares(8191), 1);
    assert_int_equal(twi_update_shares(8192), 2);
    assert_int_equal(twi_update_shares(65535), 15);
    assert_int_equal(twi_update_shares(65536), TWI_UPDATE_SHARES);
}

/* Every element is in one share, and as many shares of a weight as of its rows hold just those. */
static void shares_are_parts_of_every_segment(void **state) {
    (void)state;
    enum { ROWS = 128, ROW = 784, COUNT = ROWS * ROW + 1 + 47 };
    static float w[COUNT], g[COUNT];
    const twi_update_segment segments[] = {
        {0, ROWS * ROW, 0, false, 0}, {ROWS * ROW, ROWS * ROW + 1, 0, false, 0}, {ROWS * ROW + 1, COUNT, 0, false, 0}};
    const twi_update_attrs attrs = {.segment_count = 3, .segment = segments};
    const twi_kernel *kernel = twi_registry_find_kernel(&twi_registry_builtin, "sgd.update");
    twi_control control = {.learning_rate = 1, .guard.factor = 1};
    twi_call call = {.attrs = &attrs, .control = &control};
    OPERAND(&call, w, COUNT);
    OPERAND(&call, g, COUNT);
    OPERAND(&call, NULL, COUNT);
    assert_int_equal(kernel->range(&call), TWI_UPDATE_SHARES);
    for (int i = 0; i < COUNT; i++) g[i] = 1;
    for (call.begin = 0; call.begin < TWI_UPDATE_SHARES; call.begin = call.end) {
        call.end = call.begin + 1;
        spec_run("sgd.update", &call);
        const int64_t rows = call.end * ROWS / TWI_UPDATE_SHARES;
        assert_true(w[rows * ROW - 1] == -1 && (rows == ROWS || w[rows * ROW] == 0));
    }
    for (int i = 0; i < COUNT; i++) assert_true(w[i] == -1);
}

/* Decay times the rate, on the weight and not through the moments: 0.89, not 0.8 and not 0.9. */
static void adamw_is_not_adam_with_decay_in_the_gradient(void **state) {
    (void)state;
    const float g[] = {1, -0.2f, 0.4f};
    static const double expected[2][3] = {{0.89, 0.8299974, 0.7615814}, {0.9, 0.8488974, 0.7887814}};
    for (int plain = 0; plain < 2; plain++) {
        const twi_update_segment all = {0, 1, plain ? 0 : 0.1f, false, 0};
        const twi_update_attrs attrs = {1, &all, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f};
        float w = 1, m = 0, v = 0;
        for (uint64_t i = 0; i < 3; i++) {
            twi_control control = {.learning_rate = 0.1, .update = i, .guard.factor = 1};
            twi_call call = {.attrs = &attrs, .control = &control, .end = 1};
            OPERAND(&call, &w, 1);
            OPERAND(&call, &g[i], 1);
            OPERAND(&call, &m, 1);
            OPERAND(&call, &v, 1);
            spec_run("adamw.update", &call);
            spec_check(__LINE__, &w, 1, &expected[plain][i], 1e-6);
        }
    }
}

static void run_end_of_step(twi_control *control, float state[3], float target[1]) {
    const twi_update_segment all = {0, 1, 0, false, 0};
    const twi_update_attrs attrs = {1, &all, .momentum = 0.9f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f};
    const float g = 1, shadow = 5;
    sgd(control, &attrs, 1, &state[0], &g, &state[1]);
    twi_call adamw = {.attrs = &attrs, .control = control, .end = 1}, copy = {.control = control};
    OPERAND(&adamw, &state[0], 1);
    OPERAND(&adamw, &g, 1);
    OPERAND(&adamw, &state[1], 1);
    OPERAND(&adamw, &state[2], 1);
    spec_run("adamw.update", &adamw);
    OPERAND(&copy, &shadow, 1);
    OPERAND(&copy, target, 1);
    spec_run("commit.copy", &copy);
    const twi_guard_attrs guard = {.patience = 1};
    const twi_call advance = {.control = control, .attrs = &guard};
    spec_run("commit.advance", &advance);
}

/* After a fault nothing that persists changes; without one everything does. */
static void a_fault_keeps_state_as_it_was(void **state) {
    (void)state;
    for (int faulty = 0; faulty < 2; faulty++) {
        twi_control control = {.update = 10, .learning_rate = 0.1, .guard.factor = 1};
        const float before[3] = {1, 2, 3};
        float now[3] = {1, 2, 3}, target[1] = {4};
        if (faulty) twi_fault_raise(&control, TW_ERROR_LABEL, 0, 0, 9);
        run_end_of_step(&control, now, target);
        for (int i = 0; i < 3; i++) assert_true((now[i] == before[i]) == faulty);
        assert_true(target[0] == (faulty ? 4 : 5));
        assert_int_equal(control.update, faulty ? 10 : 11);
    }
}

/* A loss that is not finite is a fault of the run as a whole, which a sample's own fault goes before. */
static void a_loss_that_is_not_finite_is_a_fault(void **state) {
    (void)state;
    const float losses[] = {3, NAN, INFINITY, -INFINITY};
    for (int64_t i = 0; i < COUNT(losses); i++) {
        twi_control control = {0};
        twi_call call = {.control = &control, .node = 4};
        OPERAND(&call, &losses[i], 1);
        spec_run("commit.check", &call);
        assert_int_equal(control.fault.code, i ? TW_ERROR_NUMERIC : TW_OK);
        assert_int_equal(control.fault.node, i ? 4 : 0);
        twi_fault_raise(&control, TW_ERROR_LABEL, 5, 1000, 9);
        spec_run("commit.check", &call);
        assert_int_equal(control.fault.code, TW_ERROR_LABEL);
    }
}

static void the_seed_is_scale_times_weight(void **state) {
    (void)state;
    const twi_loss_seed_attrs attrs = {0.3f, false};
    twi_control control = {.sample_weight = 1.0 / 128};
    float seed = NAN;
    twi_call call = {.attrs = &attrs, .control = &control};
    OPERAND(&call, &seed, 1);
    spec_run("loss_seed.write", &call);
    CHECK(&seed, 1e-7, 0.3 / 128);
}

/* A sum begins with the window, also that of a gradient which only another program of the window makes. */
static void sums_begin_with_the_window(void **state) {
    (void)state;
    const float gradient[] = {1, 2, 3, 4, 5, 6}, nothing[1] = {0};
    const uint16_t half[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600}; /* the same in f16 */
    float sum[] = {NAN, 70, 80, 90, INFINITY, 11};
    for (int micro = 0; micro < 3; micro++) {
        twi_control control = {.micro = (uint64_t)micro};
        twi_call call = {.control = &control};
        OPERAND(&call, sum, 6);
        OPERAND(&call, gradient, 6);
        OPERAND(&call, nothing, 1);
        call.operand[2].data = NULL;
        if (micro == 1) {
            call.operand[1].data = NULL;
            call.operand[2] = call.operand[0];
            call.operand[2].data = (void *)half;
            call.operand[2].dtype = TW_F16;
        }
        if (micro == 2) call.operand[1].data = NULL;
        for (int part = 0; part < 2; part++) { /* in two parts, as workers might */
            call.begin = part ? 2 : 0;
            call.end = part ? 6 : 2;
            spec_run("accumulate.gradient", &call);
        }
    }
    CHECK(sum, 0, 2, 4, 6, 8, 10, 12);
    twi_control control = {.micro = 0};
    twi_call call = {.control = &control, .end = 6};
    OPERAND(&call, sum, 6);
    OPERAND(&call, nothing, 1);
    OPERAND(&call, nothing, 1);
    call.operand[1].data = call.operand[2].data = NULL;
    spec_run("accumulate.gradient", &call);
    CHECK(sum, 0, 0, 0, 0, 0, 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_momentum_convention),
        cmocka_unit_test(sgd_agrees_with_pytorch),
        cmocka_unit_test(segments_have_their_own_decay),
        cmocka_unit_test(shares_are_worth_handing_out),
        cmocka_unit_test(shares_are_parts_of_every_segment),
        cmocka_unit_test(adamw_is_not_adam_with_decay_in_the_gradient),
        cmocka_unit_test(a_fault_keeps_state_as_it_was),
        cmocka_unit_test(a_loss_that_is_not_finite_is_a_fault),
        cmocka_unit_test(the_seed_is_scale_times_weight),
        cmocka_unit_test(sums_begin_with_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

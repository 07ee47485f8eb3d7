/* The learning rate of every update: joints, edges and beyond the end. */
#include "backend/attrs.h"
#include <talweg/optim.h>
#include "ops/op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

enum { CONSTANT, STEP, COSINE };

static double rate(const twi_schedule_attrs *attrs, uint64_t update) {
    twi_control control = {.update = update};
    twi_call call = {.attrs = attrs, .control = &control};
    const twi_kernel *kernel = twi_registry_find_kernel(&twi_registry_builtin, "schedule.learning_rate");
    assert_non_null(kernel);
    kernel->run(&call);
    return control.learning_rate;
}

static void check_rates(const twi_schedule_attrs *attrs, const double *expected, uint64_t count) {
    for (uint64_t u = 0; u < count; u++) {
        double found = rate(attrs, u);
        if (!(fabs(found - expected[u]) <= 5e-8))
            fail_msg("update %d: %.9g, expected %.9g", (int)u, found, expected[u]);
    }
}

/* Five updates up, five down: no update wasted at 0, the peak once, the end at the minimum. */
static void warmup_and_cosine_join(void **state) {
    (void)state;
    const twi_schedule_attrs attrs = {.kind = COSINE, .base = 0.1, .warmup = 5, .total = 10};
    const double expected[] = {0.02, 0.04, 0.06, 0.08, 0.1, 0.0904508, 0.0654508, 0.0345492, 0.0095492, 0, 0, 0};
    check_rates(&attrs, expected, sizeof expected / sizeof *expected);
    assert_true(rate(&attrs, 4) == 0.1);
    assert_true(rate(&attrs, 1000000) == rate(&attrs, 9));
}

/* Half of 0.1 * (1 + cos(pi u / 4)): the first update has the peak. */
static void cosine_without_warmup_starts_at_the_peak(void **state) {
    (void)state;
    const twi_schedule_attrs attrs = {.kind = COSINE, .base = 0.1, .total = 4};
    const double expected[] = {0.1, 0.0853553, 0.05, 0.0146447, 0.0146447};
    check_rates(&attrs, expected, 5);
    assert_true(rate(&attrs, 0) == 0.1);
}

static void cosine_ends_at_its_minimum(void **state) {
    (void)state;
    const twi_schedule_attrs attrs = {.kind = COSINE, .base = 0.3, .minimum = 0.1, .warmup = 1, .total = 3};
    const double expected[] = {0.3, 0.2, 0.1, 0.1};
    check_rates(&attrs, expected, 4);
}

static void a_schedule_may_be_all_warmup(void **state) {
    (void)state;
    const twi_schedule_attrs attrs = {.kind = COSINE, .base = 0.3, .warmup = 3, .total = 3};
    const double expected[] = {0.1, 0.2, 0.3, 0.3, 0.3};
    check_rates(&attrs, expected, 5);
    assert_true(rate(&attrs, 2) == 0.3);
}

static void one_update_uses_the_base(void **state) {
    (void)state;
    const twi_schedule_attrs plain = {.kind = COSINE, .base = 0.1, .total = 1};
    const twi_schedule_attrs warm = {.kind = COSINE, .base = 0.1, .warmup = 1, .total = 1};
    assert_true(rate(&plain, 0) == 0.1 && rate(&plain, 7) == 0.1);
    assert_true(rate(&warm, 0) == 0.1 && rate(&warm, 7) == 0.1);
}

static void steps_drop_after_whole_periods(void **state) {
    (void)state;
    const twi_schedule_attrs attrs = {.kind = STEP, .base = 0.1, .every = 3, .factor = 0.1};
    const double expected[] = {0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001};
    check_rates(&attrs, expected, 7);
    const twi_schedule_attrs warm = {.kind = STEP, .base = 0.1, .warmup = 2, .every = 3, .factor = 0.5};
    const double warm_expected[] = {0.05, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025};
    check_rates(&warm, warm_expected, 7);
    const twi_schedule_attrs never = {.kind = STEP, .base = 0.1, .factor = 0.5};
    assert_true(rate(&never, 1000) == 0.1);
}

static void constant_stays(void **state) {
    (void)state;
    const twi_schedule_attrs attrs = {.kind = CONSTANT, .base = 0.1, .warmup = 2, .every = 1, .factor = 0.5};
    const double expected[] = {0.05, 0.1, 0.1, 0.1, 0.1};
    check_rates(&attrs, expected, 5);
}

/* Over many lengths: never 0 at the start, never above the base, exactly the base at the peak, and no rise after it. */
static void rates_rise_once_and_fall_once(void **state) {
    (void)state;
    for (int64_t total = 1; total <= 24; total++)
        for (int64_t warmup = 0; warmup <= total; warmup++) {
            const twi_schedule_attrs attrs = {COSINE, 0.1, 0.003, warmup, total, 0, 0};
            int64_t peak = warmup > 0 ? warmup - 1 : 0;
            assert_true(rate(&attrs, 0) > 0);
            assert_true(rate(&attrs, (uint64_t)peak) == attrs.base);
            for (int64_t u = 1; u < total + 3; u++) {
                double before = rate(&attrs, (uint64_t)u - 1), now = rate(&attrs, (uint64_t)u);
                assert_true(now <= attrs.base);
                assert_true(u <= peak ? now > before : now <= before);
            }
        }
}

static void assert_refused(const tw_optimizer_options *options, const char *says) {
    tw_optimizer_options bad = *options;
    double found;
    bad.size = sizeof bad;
    if (tw_schedule_rate(&bad, 0, &found) != TW_ERROR_ARGUMENT) fail_msg("taken, but should say \"%s\"", says);
    if (!strstr(tw_last_error(), says)) fail_msg("\"%s\" does not say \"%s\"", tw_last_error(), says);
}

/* The same from options, with defaults filled in; and every number that makes no schedule is refused by its name. */
static void options_make_the_same_rates(void **state) {
    (void)state;
    tw_optimizer_options o = TW_OPTIMIZER_OPTIONS_INIT;
    double found;
    o.learning_rate = 0.1;
    o.schedule = (tw_schedule){.kind = TW_SCHEDULE_COSINE, .warmup = 5, .total = 10};
    const double expected[] = {0.02, 0.04, 0.06, 0.08, 0.1, 0.0904508, 0.0654508, 0.0345492, 0.0095492, 0};
    for (int u = 0; u < 10; u++) {
        assert_int_equal(tw_schedule_rate(&o, u, &found), TW_OK);
        assert_true(fabs(found - expected[u]) < 1e-7);
    }
    assert_int_equal(tw_schedule_rate(NULL, 3, &found), TW_OK); /* SGD, constant */
    assert_true(found == 0.01);
    assert_int_equal(tw_schedule_rate(&o, -1, &found), TW_ERROR_ARGUMENT);

    const struct {
        tw_optimizer_options options;
        const char *says;
    } rows[] = {
        {{.schedule = {.minimum = NAN}}, "schedule.minimum is nan"},
        {{.schedule = {.minimum = 0.2}, .learning_rate = 0.1}, "a number from 0 to the learning rate, 0.1"},
        {{.schedule = {.minimum = 0.2}}, "a number from 0 to the learning rate, 0.01"},
        {{.schedule = {.minimum = -1}}, "schedule.minimum is -1"},
        {{.schedule = {.kind = TW_SCHEDULE_STEP, .every = 2, .factor = 1e300}}, "schedule.factor"},
        {{.schedule = {.kind = TW_SCHEDULE_STEP, .every = 2, .factor = -3}}, "schedule.factor is -3"},
        {{.schedule = {.kind = TW_SCHEDULE_STEP}}, "every"},
        {{.schedule = {.kind = TW_SCHEDULE_COSINE}}, "total"},
        {{.schedule = {.kind = TW_SCHEDULE_COSINE, .warmup = 5, .total = 4}}, "warmup 5"},
        {{.schedule = {.kind = (tw_schedule_kind)7}}, "schedule kind 7"},
        {{.schedule = {.warmup = -1}}, "negative"},
        {{.learning_rate = NAN}, "learning_rate is nan; it must be a finite float, 0 or more"},
        {{.learning_rate = 1e308}, "learning_rate is 1e+308; it must be a finite float"},
        {{.weight_decay = INFINITY}, "weight_decay is inf; it must be a finite float, 0 or more"},
        {{.clip_norm = -1}, "clip_norm is -1; it must be a finite float, 0 or more"},
        {{.momentum = 1}, "momentum is 1; it must be 0 or more and below 1"},
        {{.kind = TW_ADAMW, .beta1 = -1}, "beta1 is -1; it must be 0 or more and below 1"},
        {{.epsilon = INFINITY}, "epsilon is inf; it must be a number from 0 to 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) assert_refused(&rows[i].options, rows[i].says);
}

/* What the kind chosen does not use can only be a mistake; what the library would take for it anyway is none. */
static void refuses_what_would_have_no_effect(void **state) {
    (void)state;
    static const struct {
        tw_optimizer_options options;
        const char *says;
    } rows[] = {
        {{.kind = TW_ADAMW, .momentum = 0.9f}, "momentum is for TW_SGD, but kind is TW_ADAMW"},
        {{.kind = TW_ADAMW, .nesterov = true}, "nesterov is for TW_SGD, but kind is TW_ADAMW"},
        {{.beta1 = 0.8f}, "beta1 is for TW_ADAMW, but kind is TW_SGD"},
        {{.beta2 = 0.99f}, "beta2 is for TW_ADAMW, but kind is TW_SGD"},
        {{.epsilon = 1e-6f}, "epsilon is for TW_ADAMW, but kind is TW_SGD"},
        {{.nesterov = true}, "nesterov needs momentum above 0"},
        {{.schedule = {.minimum = 1e-3}}, "schedule.minimum is for TW_SCHEDULE_COSINE"},
        {{.schedule = {.kind = TW_SCHEDULE_STEP, .every = 2, .minimum = 1e-3}}, "schedule.minimum"},
        {{.schedule = {.every = 2}}, "schedule.every is for TW_SCHEDULE_STEP"},
        {{.schedule = {.kind = TW_SCHEDULE_COSINE, .total = 9, .factor = 0.5}}, "schedule.factor"},
    };
    static const tw_optimizer_options good[] = {
        {.momentum = 0.9f, .nesterov = true, .weight_decay = 1e-4f, .schedule = {.total = 9}},
        {.kind = TW_ADAMW, .beta1 = 0.8f, .beta2 = 0.99f, .epsilon = 1e-6f, .decay_all = true},
        {.schedule = {.kind = TW_SCHEDULE_COSINE, .total = 9, .minimum = 1e-3}},
        {.schedule = {.kind = TW_SCHEDULE_STEP, .total = 9, .every = 2, .factor = 0.5}},
    };
    double found;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) assert_refused(&rows[i].options, rows[i].says);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        tw_optimizer_options o = good[i];
        o.size = sizeof o;
        if (tw_schedule_rate(&o, 0, &found)) fail_msg("options %zu: %s", i, tw_last_error());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_and_cosine_join),
        cmocka_unit_test(cosine_without_warmup_starts_at_the_peak),
        cmocka_unit_test(cosine_ends_at_its_minimum),
        cmocka_unit_test(a_schedule_may_be_all_warmup),
        cmocka_unit_test(one_update_uses_the_base),
        cmocka_unit_test(steps_drop_after_whole_periods),
        cmocka_unit_test(constant_stays),
        cmocka_unit_test(rates_rise_once_and_fall_once),
        cmocka_unit_test(options_make_the_same_rates),
        cmocka_unit_test(refuses_what_would_have_no_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

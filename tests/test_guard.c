/* The guard of an update: clipping, loss scaling, updates left out. Gradients are planted exactly: the loss is the dot product of
 * a dense layer of one input, fed 1, with a vector g, so g is the gradient of its weights. */
#include "check.h"
#include "golden/guarded.h"
#include "program/model.h"
#include <talweg/talweg.h>

#include <math.h>

enum { MOST = 10000 };

typedef struct planted {
    tw_context *context;
    tw_model *model;
    tw_value *x, *g;
    tw_loss loss;
    int64_t count;
    tw_program *program;
} planted;

typedef struct ways {
    int threads;
    bool plain, adamw, accumulate; /* plain: no momentum */
    float clip, rate;
    const tw_loss_scaling *scaling;
    tw_non_finite on_non_finite;
} ways;

static void open_planted(planted *p, int64_t count, const ways *w) {
    *p = (planted){.count = count};
    const int64_t one = 1;
    CHECK_OK(tw_context_create(&p->context, check_device_or_cpu(),
                               TW_OPTIONS(context, .threads = w->threads ? w->threads : 2)));
    CHECK_OK(tw_model_create(&p->model, p->context));
    p->x = tw_input_shaped(p->model, "x", 1, &one);
    p->g = tw_input_shaped(p->model, "g", 1, &count);
    tw_value *y = tw_dense(p->model, p->x, count, TW_OPTIONS(dense, .name = "fc", .no_bias = true));
    p->loss = (tw_loss){twi_graph_node(&p->model->graph, "dot", "loss", 2, (tw_value *[]){y, p->g}, NULL), 1};
    CHECK_OK(tw_model_build(p->model, y, NULL));
    tw_optimizer_options optimizer = TW_OPTIMIZER_OPTIONS_INIT;
    optimizer.kind = w->adamw ? TW_ADAMW : TW_SGD;
    optimizer.learning_rate = (double)(w->rate > 0 ? w->rate : 1);
    optimizer.momentum = w->plain || w->adamw ? 0 : 0.9f;
    optimizer.clip_norm = w->clip;
    CHECK_OK(tw_program_create(&p->program, p->model, 1,
                               TW_OPTIONS(program, .train = true, .losses = &p->loss, .loss_count = 1,
                                          .optimizer = &optimizer, .accumulate = w->accumulate,
                                          .loss_scaling = w->scaling, .on_non_finite = w->on_non_finite)));
    float *zeros = calloc((size_t)count, sizeof *zeros);
    CHECK_OK(tw_parameter_write(p->model, "fc.weight", zeros, count));
    free(zeros);
}

static void close_planted(planted *p) {
    tw_program_destroy(p->program);
    tw_model_destroy(p->model);
    tw_context_destroy(p->context);
}

static void feed(planted *p, const float *g) {
    const float one = 1;
    CHECK_OK(tw_program_write(p->program, p->x, TW_F32, &one, 1));
    CHECK_OK(tw_program_write(p->program, p->g, TW_F32, g, p->count));
}

static tw_status step(planted *p, const float *g) {
    feed(p, g);
    return tw_program_run(p->program);
}

static void check_weights(const planted *p, const double *expected, double tolerance) {
    static float w[MOST];
    CHECK_OK(tw_parameter_read(p->model, "fc.weight", w, p->count));
    for (int64_t i = 0; i < p->count; i++)
        if (!(fabs((double)w[i] - expected[i]) <= tolerance * (fabs(expected[i]) + 0.01)))
            fail_msg("weight %lld is %.9g, expected %.9g", (long long)i, (double)w[i], expected[i]);
}

/* ---- the norm ---- */

static void gradients_are_clipped_after_the_scale_is_taken_out(void **state) {
    (void)state;
    const double scales[] = {0, 1024, 16777216};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        const tw_loss_scaling scaling = {.initial = scales[i]};
        planted p;
        open_planted(&p, 2, &(ways){.clip = 1, .scaling = i ? &scaling : NULL});
        CHECK_OK(step(&p, (const float[]){3, 4}));
        check_weights(&p, (const double[]){-0.6, -0.8}, 1e-6);
        assert_true(fabs(tw_model_get_guard(p.model).gradient_norm - 5) <= 1e-5);
        close_planted(&p);
    }
}

/* What is shorter stays as it is, to the bit. */
static void a_short_gradient_is_not_stretched(void **state) {
    (void)state;
    planted p;
    open_planted(&p, 2, &(ways){.clip = 6, .plain = true});
    CHECK_OK(step(&p, (const float[]){3, 4}));
    check_weights(&p, (const double[]){-3, -4}, 0);
    close_planted(&p);
}

static void squares_do_not_overflow(void **state) {
    (void)state;
    float g[100];
    double expected[100];
    for (int i = 0; i < 100; i++) g[i] = 1e20f, expected[i] = -0.1;
    for (int adamw = 0; adamw < 2; adamw++) {
        planted p;
        open_planted(&p, 100, &(ways){.clip = 1, .adamw = adamw});
        CHECK_OK(step(&p, g));
        if (!adamw) check_weights(&p, expected, 1e-5);
        assert_true(fabs(tw_model_get_guard(p.model).gradient_norm / 1e21 - 1) <= 1e-6);
        close_planted(&p);
    }
    planted p; /* the largest and the smallest that f32 has */
    open_planted(&p, 100, &(ways){.clip = 1});
    for (int i = 0; i < 100; i++) g[i] = i % 2 ? 3e38f : 1e-38f;
    CHECK_OK(step(&p, g));
    assert_true(fabs(tw_model_get_guard(p.model).gradient_norm / (3e38 * sqrt(50)) - 1) <= 1e-6);
    close_planted(&p);
}

static float pseudo(int64_t i) { return (float)((i * 7919) % 1009 - 504) / 64; }

static void the_norm_does_not_depend_on_threads(void **state) {
    (void)state;
    static float g[MOST];
    double squares = 0, found = 0;
    for (int64_t i = 0; i < MOST; i++) g[i] = pseudo(i), squares += (double)g[i] * (double)g[i];
    for (int threads = 1; threads <= 4; threads++) {
        planted p;
        open_planted(&p, MOST, &(ways){.threads = threads, .clip = 10});
        CHECK_OK(step(&p, g));
        const double norm = tw_model_get_guard(p.model).gradient_norm;
        assert_true(fabs(norm / sqrt(squares) - 1) <= 1e-6);
        if (threads > 1) assert_true(norm == found);
        found = norm;
        close_planted(&p);
    }
}

static void the_last_element_that_is_not_finite_is_found(void **state) {
    (void)state;
    static float g[MOST];
    const int64_t places[] = {0, 1, 4095, 4096, 9999};
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++) {
            planted p;
            open_planted(&p, MOST, &(ways){0});
            for (int64_t j = 0; j < MOST; j++) g[j] = pseudo(j);
            g[places[i]] = values[k];
            g[0] = values[k];
            feed(&p, g);
            tw_status status = tw_program_run(p.program);
            assert_int_equal(status, TW_ERROR_NUMERIC); /* the loss is not finite either */
            /* What the guard's steps found, where the fault of the loss is put aside. */
            close_planted(&p);
            open_planted(&p, MOST, &(ways){.on_non_finite = TW_NON_FINITE_SKIP});
            feed(&p, g);
            CHECK_OK(tw_program_run(p.program));
            const twi_guard *guard = &p.model->store.guard;
            assert_int_equal(guard->place, places[i]);
            assert_true(k ? guard->value == (double)values[k] : isnan(guard->value));
            assert_int_equal(guard->refused, 1);
            assert_string_equal(tw_model_get_guard(p.model).culprit, "loss");
            close_planted(&p);
        }
}

static void clipped_training_is_pytorchs(void **state) {
    (void)state;
    for (int adamw = 0; adamw < 2; adamw++)
        for (int scaled = 0; scaled < 2; scaled++) {
            const tw_loss_scaling scaling = {.initial = 512, .growth_interval = 3};
            planted p;
            open_planted(&p, GOLDEN_COUNT,
                         &(ways){.clip = (float)GOLDEN_CLIP,
                                 .rate = (float)GOLDEN_RATE,
                                 .adamw = adamw,
                                 .scaling = scaled ? &scaling : NULL});
            for (int s = 0; s < GOLDEN_STEPS; s++) {
                CHECK_OK(step(&p, golden_gradients[s]));
                check_weights(&p, (adamw ? golden_adamw : golden_sgd)[s], 2e-5);
                assert_true(fabs(tw_model_get_guard(p.model).gradient_norm / golden_norms[s] - 1) <= 1e-6);
            }
            close_planted(&p);
        }
}

/* ---- the scale ---- */

static void a_skip_changes_nothing_but_the_scale(void **state) {
    (void)state;
    const float bad[][2] = {{INFINITY, 1}, {1, -INFINITY}, {NAN, NAN}};
    for (int adamw = 0; adamw < 2; adamw++)
        for (int b = 0; b < 3; b++) {
            const tw_loss_scaling scaling = {.initial = 1024};
            planted p;
            open_planted(&p, 2, &(ways){.scaling = &scaling, .adamw = adamw, .rate = 0.1f});
            CHECK_OK(step(&p, (const float[]){3, 4}));
            twi_store *store = &p.model->store;
            float before[3][2], after[3][2];
            const int first = adamw ? 1 : 0, moments = adamw ? 2 : 1;
            const double rate = tw_model_get_learning_rate(p.model);
            for (int k = 0; k <= moments; k++)
                CHECK_OK(twi_store_read(store, k ? store->moment[first + k - 1] : store->weights, 0, before[k]));
            CHECK_OK(step(&p, bad[b]));
            for (int k = 0; k <= moments; k++) {
                CHECK_OK(twi_store_read(store, k ? store->moment[first + k - 1] : store->weights, 0, after[k]));
                assert_memory_equal(before[k], after[k], sizeof before[k]);
            }
            const tw_guard_stats guard = tw_model_get_guard(p.model);
            assert_true(guard.loss_scale == 512);
            assert_int_equal(guard.skipped, 1);
            assert_int_equal(guard.skipped_in_a_row, 1);
            assert_true(isinf(guard.gradient_norm));
            assert_int_equal(tw_model_get_updates(p.model), 1);
            assert_int_equal(tw_model_get_attempts(p.model), 2);
            assert_true(tw_model_get_learning_rate(p.model) == rate);
            CHECK_OK(step(&p, (const float[]){3, 4}));
            if (adamw) check_weights(&p, (const double[]){-0.2, -0.2}, 1e-5); /* t, too, counts no skipped update */
            assert_int_equal(tw_model_get_updates(p.model), 2);
            assert_int_equal(tw_model_get_guard(p.model).skipped_in_a_row, 0);
            assert_int_equal(tw_model_get_guard(p.model).skipped, 1);
            close_planted(&p);
        }
}

/* Alone the scaled gradient overflows: that is what the scale is lowered for. */
static void a_scale_that_is_too_high_comes_down(void **state) {
    (void)state;
    const tw_loss_scaling scaling = {.initial = 0x1p+20, .backoff = 0.25};
    planted p;
    open_planted(&p, 2, &(ways){.scaling = &scaling, .plain = true, .rate = 1e-30f});
    const float g[] = {1e33f, 1};
    for (int i = 0; i < 3; i++) CHECK_OK(step(&p, g));
    assert_int_equal(tw_model_get_updates(p.model), 2); /* 2^20, then 2^18: 1e33 * 2^18 = 2.6e38 is held */
    assert_true(tw_model_get_guard(p.model).loss_scale == 0x1p+18);
    assert_int_equal(tw_model_get_guard(p.model).skipped, 1);
    float read[2];
    CHECK_OK(tw_program_read_parameter_gradient(p.program, "fc.weight", read, 2));
    assert_true(fabsf(read[0] / 1e33f - 1) < 1e-6f && read[1] == 1); /* without the scale */
    close_planted(&p);
}

/* Three growths and a skip, as recorded of the rule in tests/golden/make_guard.py. */
static void the_scale_follows_the_recorded_rule(void **state) {
    (void)state;
    const tw_loss_scaling scaling = {.initial = GOLDEN_SCALE,
                                     .growth_interval = GOLDEN_INTERVAL,
                                     .maximum = GOLDEN_MAXIMUM,
                                     .minimum = GOLDEN_MINIMUM};
    planted p;
    open_planted(&p, 2, &(ways){.scaling = &scaling, .rate = 1e-3f});
    for (int s = 0; s < GOLDEN_SCALES; s++) {
        CHECK_OK(step(&p, (const float[]){golden_overflows[s] ? INFINITY : 1, 1}));
        if (tw_model_get_guard(p.model).loss_scale != golden_scales[s])
            fail_msg("step %d: scale %g, expected %g", s, tw_model_get_guard(p.model).loss_scale, golden_scales[s]);
        assert_int_equal(tw_model_get_updates(p.model), golden_updates[s]);
    }
    close_planted(&p);
}

static void the_scale_stays_finite(void **state) {
    (void)state;
    const tw_loss_scaling scaling = {.growth_interval = 10};
    planted p;
    open_planted(&p, 1, &(ways){.scaling = &scaling, .rate = 1e-6f});
    for (int s = 0; s < 3000; s++) {
        CHECK_OK(step(&p, (const float[]){1}));
        if (s == 9) assert_true(tw_model_get_guard(p.model).loss_scale == 131072);
    }
    assert_true(tw_model_get_guard(p.model).loss_scale == 16777216);
    assert_int_equal(tw_model_get_updates(p.model), 3000);
    close_planted(&p);
}

/* Every batch overflows: the scale falls to its floor, and the run ends with an error that says where. */
static void a_collapse_of_the_scale_stops(void **state) {
    (void)state;
    const tw_loss_scaling scaling = {.minimum = 256, .patience = 20};
    planted p;
    open_planted(&p, 1, &(ways){.scaling = &scaling});
    CHECK_OK(step(&p, (const float[]){1}));
    float before, after;
    CHECK_OK(tw_parameter_read(p.model, "fc.weight", &before, 1));
    double expected = 65536;
    for (int s = 1; s < 20; s++) {
        CHECK_OK(step(&p, (const float[]){INFINITY}));
        expected = expected / 2 < 256 ? 256 : expected / 2;
        assert_true(tw_model_get_guard(p.model).loss_scale == expected);
    }
    CHECK_FAILS(step(&p, (const float[]){INFINITY}), TW_ERROR_NUMERIC, "update 2 was left out 20 times in a row");
    assert_non_null(strstr(tw_last_error(), "256"));
    assert_non_null(strstr(tw_last_error(), "loss"));
    CHECK_OK(tw_parameter_read(p.model, "fc.weight", &after, 1));
    assert_true(before == after);
    assert_int_equal(tw_model_get_updates(p.model), 1);
    CHECK_OK(step(&p, (const float[]){1})); /* the model goes on working */
    assert_int_equal(tw_model_get_updates(p.model), 2);
    close_planted(&p);
}

/* ---- without a scale ---- */

static void updates_are_left_out_where_asked(void **state) {
    (void)state;
    planted p;
    open_planted(&p, 2, &(ways){.on_non_finite = TW_NON_FINITE_SKIP, .rate = 0.5f, .plain = true});
    CHECK_OK(step(&p, (const float[]){1, 2}));
    CHECK_OK(step(&p, (const float[]){NAN, 2}));
    CHECK_OK(step(&p, (const float[]){1, 2}));
    check_weights(&p, (const double[]){-1, -2}, 0);
    assert_int_equal(tw_model_get_guard(p.model).skipped, 1);
    assert_true(tw_model_get_guard(p.model).loss_scale == 1);
    assert_int_equal(tw_model_get_updates(p.model), 2);
    for (int s = 0; s < 49; s++) CHECK_OK(step(&p, (const float[]){NAN, 2}));
    CHECK_FAILS(step(&p, (const float[]){NAN, 2}), TW_ERROR_NUMERIC, "left out 50 times in a row, 51 in all");
    assert_non_null(strstr(tw_last_error(), "the loss 'loss' is not finite"));
    close_planted(&p);
}

static void overflow_in_any_batch_skips_the_window(void **state) {
    (void)state;
    for (int bad = 0; bad < 4; bad++) { /* 3: none */
        const tw_loss_scaling scaling = {.initial = 1024};
        planted p;
        open_planted(&p, 2, &(ways){.scaling = &scaling, .accumulate = true, .plain = true, .clip = 1});
        CHECK_OK(tw_window_open(p.model, 3));
        for (int micro = 0; micro < 3; micro++) {
            feed(&p, (const float[]){micro == bad ? INFINITY : 3, 4});
            CHECK_OK(tw_program_run_gradients(p.program));
        }
        CHECK_OK(tw_program_run_update(p.program));
        check_weights(&p, bad < 3 ? (const double[]){0, 0} : (const double[]){-0.6, -0.8}, 1e-6);
        assert_int_equal(tw_model_get_updates(p.model), bad == 3);
        assert_int_equal(tw_model_get_guard(p.model).skipped, bad < 3);
        assert_true(tw_model_get_guard(p.model).loss_scale == (bad < 3 ? 512 : 1024));
        CHECK_OK(tw_window_open(p.model, 1)); /* the next window knows nothing of it */
        feed(&p, (const float[]){1, 1});
        CHECK_OK(tw_program_run_gradients(p.program));
        CHECK_OK(tw_program_run_update(p.program));
        assert_int_equal(tw_model_get_updates(p.model), 1 + (bad == 3));
        close_planted(&p);
    }
}

/* Nor does a loss that was not finite get forgotten where the gradients are. */
static void a_bad_loss_in_any_batch_skips_the_window(void **state) {
    (void)state;
    const tw_loss_scaling scaling = {.initial = 2};
    const float far = 1e30f;
    planted p;
    open_planted(&p, 1, &(ways){.scaling = &scaling, .accumulate = true});
    CHECK_OK(tw_parameter_write(p.model, "fc.weight", &far, 1));
    CHECK_OK(tw_window_open(p.model, 2));
    for (int micro = 0; micro < 2; micro++) {
        feed(&p, (const float[]){micro ? 1 : 1e30f});
        CHECK_OK(tw_program_run_gradients(p.program));
    }
    assert_true(isfinite(tw_model_get_guard(p.model).gradient_norm));
    CHECK_OK(tw_program_run_update(p.program));
    check_weights(&p, (const double[]){(double)far}, 0);
    assert_int_equal(tw_model_get_guard(p.model).skipped, 1);
    assert_string_equal(tw_model_get_guard(p.model).culprit, "loss");
    close_planted(&p);
}

/* ---- windows whose right steps are known ---- */

/* y = w x, loss mean((y - 1)^2) / 2 of x = 1 .. 10. */
typedef struct line {
    tw_context *context;
    tw_model *model;
    tw_value *x;
    tw_program *program[5]; /* by batch */
} line;

static void open_line(line *l) {
    const int64_t one = 1;
    const float start[] = {0, -1};
    *l = (line){0};
    CHECK_OK(tw_context_create(&l->context, check_device_or_cpu(), NULL));
    CHECK_OK(tw_model_create(&l->model, l->context));
    l->x = tw_input_shaped(l->model, "x", 1, &one);
    tw_value *rest = tw_dense(l->model, l->x, 1, TW_OPTIONS(dense, .name = "fc"));
    tw_loss loss = {twi_graph_node(&l->model->graph, "dot", "loss", 2, (tw_value *[]){rest, rest}, NULL), 0.5f};
    CHECK_OK(tw_model_build(l->model, rest, NULL));
    CHECK_OK(tw_model_set_trainable(l->model, "fc.bias", false));
    CHECK_OK(tw_parameter_write(l->model, "fc.weight", &start[0], 1));
    CHECK_OK(tw_parameter_write(l->model, "fc.bias", &start[1], 1));
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.learning_rate = 0.01;
    for (int batch = 2; batch <= 4; batch += 2)
        CHECK_OK(tw_program_create(&l->program[batch], l->model, batch,
                                   TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1,
                                              .optimizer = &sgd, .accumulate = true)));
}

/* A window of batches, which end with 0, from x on; returns the weight after its update. */
static double window(line *l, float x, const int *batches, float *gradient) {
    int64_t samples = 0;
    float w;
    tw_program *last = NULL;
    for (int i = 0; batches[i]; i++) samples += batches[i];
    CHECK_OK(tw_window_open(l->model, samples));
    for (int i = 0; batches[i]; i++) {
        float xs[4];
        for (int k = 0; k < batches[i]; k++) xs[k] = x++;
        last = l->program[batches[i]];
        CHECK_OK(tw_program_write(last, l->x, TW_F32, xs, batches[i]));
        CHECK_OK(tw_program_run_gradients(last));
    }
    CHECK_OK(tw_program_read_parameter_gradient(last, "fc.weight", gradient, 1));
    CHECK_OK(tw_program_run_update(last));
    CHECK_OK(tw_parameter_read(l->model, "fc.weight", &w, 1));
    return (double)w;
}

static void a_last_window_that_is_shorter_counts_its_own_samples(void **state) {
    (void)state;
    for (int uneven = 0; uneven < 2; uneven++) {
        line l;
        float gradient;
        open_line(&l);
        if (uneven) {
            window(&l, 1, (const int[]){4, 4, 2, 0}, &gradient);
            assert_true(fabs((double)gradient + 5.5) <= 1e-6);
        } else {
            assert_true(fabs(window(&l, 1, (const int[]){2, 2, 2, 2, 0}, &gradient) - 0.045) <= 1e-7);
            assert_true(fabs(window(&l, 9, (const int[]){2, 0}, &gradient) - 0.099275) <= 1e-7);
        }
        tw_program_destroy(l.program[2]);
        tw_program_destroy(l.program[4]);
        tw_model_destroy(l.model);
        tw_context_destroy(l.context);
    }
}

/* ---- options ---- */

static void refuse(const tw_program_options *wanted, const char *says) {
    planted p;
    open_planted(&p, 1, &(ways){0});
    tw_program *program;
    tw_program_options options = *wanted;
    options.train = true;
    options.losses = &p.loss;
    options.loss_count = 1;
    CHECK_FAILS(tw_program_create(&program, p.model, 1, &options), TW_ERROR_ARGUMENT, says);
    close_planted(&p);
}

static void bad_options_are_named(void **state) {
    (void)state;
    static const struct {
        tw_loss_scaling scaling;
        const char *says;
    } rows[] = {
        {{.initial = -1}, "initial"},          {{.initial = INFINITY}, "initial"}, {{.initial = 0x1p25}, "initial"},
        {{.growth = 0.5}, "growth"},           {{.backoff = 1.5}, "backoff"},      {{.backoff = NAN}, "backoff"},
        {{.growth_interval = -1}, "interval"}, {{.minimum = -2}, "minimum"},       {{.maximum = 0.5}, "maximum"},
        {{.maximum = 1e40}, "maximum"},        {{.patience = -1}, "patience"},     {{.minimum = 0x1p-127}, "minimum"},
        {{.maximum = 0x1p127}, "maximum"}};
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuse(TW_OPTIONS(program, .optimizer = &sgd, .loss_scaling = &rows[i].scaling), rows[i].says);
    refuse(TW_OPTIONS(program, .loss_scaling = &rows[0].scaling), "optimizer");
    refuse(TW_OPTIONS(program, .on_non_finite = TW_NON_FINITE_SKIP), "optimizer");
    refuse(TW_OPTIONS(program, .optimizer = &sgd, .on_non_finite = TW_NON_FINITE_ROLL_BACK), "trainer");
    sgd.clip_norm = -1;
    refuse(TW_OPTIONS(program, .optimizer = &sgd), "clip_norm");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_clipped_after_the_scale_is_taken_out),
        cmocka_unit_test(a_short_gradient_is_not_stretched),
        cmocka_unit_test(squares_do_not_overflow),
        cmocka_unit_test(the_norm_does_not_depend_on_threads),
        cmocka_unit_test(the_last_element_that_is_not_finite_is_found),
        cmocka_unit_test(clipped_training_is_pytorchs),
        cmocka_unit_test(a_skip_changes_nothing_but_the_scale),
        cmocka_unit_test(a_scale_that_is_too_high_comes_down),
        cmocka_unit_test(the_scale_follows_the_recorded_rule),
        cmocka_unit_test(the_scale_stays_finite),
        cmocka_unit_test(a_collapse_of_the_scale_stops),
        cmocka_unit_test(updates_are_left_out_where_asked),
        cmocka_unit_test(overflow_in_any_batch_skips_the_window),
        cmocka_unit_test(a_bad_loss_in_any_batch_skips_the_window),
        cmocka_unit_test(a_last_window_that_is_shorter_counts_its_own_samples),
        cmocka_unit_test(bad_options_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

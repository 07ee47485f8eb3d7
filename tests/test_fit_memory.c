/* Fits that keep within memory: by smaller workspaces, recomputation and batches in parts, each of which leaves what is learned as it
 * was; and fits that run out of it. More of parts is in test_fit_parts.c. */
#include "limited_fit.h"
#include "backend/cpu/cpu.h"
#include "program/program.h"

#include <math.h>
#include <stdio.h>

/* ---- limits ---- */

static void three_networks_finish_within_less(void **state) {
    (void)state;
    if (check_device()) skip(); /* an emulated device takes minutes: full_fit_networks */
    for (int i = 0; i < NETWORKS; i++)
        for (int k = 0; k < SHARES; k++) fit_within(&networks[i], limited_share(i, k), true);
}

/* What the context's cap leaves of the host's memory is planned with, whatever is to be done when memory runs out: without a cap, and
 * under a share of what that took beside the data and the model. Of LeNet-5's, much is records that no plan counts. */
static void fit_within_the_host(const setting *s, double share) {
    size_t cap = 0;
    for (int run = 0; run < 3; run++) {
        tw_context *context;
        tw_trainer *trainer;
        CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 2)));
        tw_dataset *data = open_data(context, s);
        tw_model *model = open_model(context, s);
        const size_t before = tw_context_get_memory(context).bytes;
        tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
        options.batch = s->batch;
        options.on_out_of_memory = run == 1 ? TW_OUT_OF_MEMORY_STOP : TW_OUT_OF_MEMORY_FIT;
        tw_context_set_memory_limit(context, cap);
        CHECK_OK(tw_trainer_create(&trainer, model, &options));
        CHECK_OK(tw_trainer_fit(trainer, data, data));
        const size_t peak = tw_context_get_memory(context).peak;
        assert_true(!cap || peak <= cap);
        if (!run) cap = before + (size_t)(share * (double)(peak - before));
        tw_trainer_destroy(trainer);
        tw_dataset_destroy(data);
        tw_model_destroy(model);
        tw_context_destroy(context);
    }
}

static void less_of_the_host_is_enough(void **state) {
    (void)state;
    static const setting nets[] = {{"ResNet-20", resnet20, 3, 16, 64, 70}, {"LeNet-5", lenet, 1, 28, 64, 150}};
    if (check_device()) skip(); /* its memory is its own */
    fit_within_the_host(&nets[0], 0.5);
    fit_within_the_host(&nets[1], 0.7);
}

static tw_value *residuals(tw_model *model, tw_value *x) {
    for (int i = 0; i < 3; i++)
        x = tw_residual(model, x, i < 2 ? 16 : 24, TW_OPTIONS(residual, .stride = i < 2 ? 1 : 2));
    return tw_dense(model, x, 10, NULL);
}

/* A last batch that is nearly as large as the others does not lead to parts: it has to do with what the whole one leaves. */
static void a_shorter_last_batch_fits_beside_a_whole_one(void **state) {
    (void)state;
    const setting s = {"residuals", residuals, 3, 12, 12, 47};
    if (check_device()) skip(); /* workspaces there are others */
    for (int percent = 94; percent >= 70; percent -= 4) {
        tw_context *context;
        tw_trainer *trainer;
        size_t fixed, planned;
        CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 2)));
        tw_model *model = open_model(context, &s);
        tw_dataset *data = open_data(context, &s);
        tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
        options.batch = s.batch;
        plan_plain(model, data, &options, &fixed, &planned);
        options.memory_limit = fixed + planned * (size_t)percent / 100;
        CHECK_OK(tw_trainer_create(&trainer, model, &options));
        CHECK_OK(tw_trainer_fit(trainer, data, NULL));
        assert_int_equal(trainer->parts, 1);
        assert_true(twi_model_bytes(model) <= options.memory_limit);
        tw_trainer_destroy(trainer);
        tw_dataset_destroy(data);
        tw_model_destroy(model);
        tw_context_destroy(context);
    }
}

/* ---- what is learned ---- */

/* The last batch, of one sample, is counted right; dropout's masks are those of the whole batch. */
static void parts_learn_what_the_batch_does(void **state) {
    (void)state;
    tw_trainer_options off = {.recompute = TW_RECOMPUTE_OFF};
    learned whole = learn(task(), off, 0, NULL), parts = learn(task(), off, 0.4, NULL);
    assert_int_equal(whole.parts, 1);
    assert_true(parts.parts > 1 && task()->batch % parts.parts == 0);
    assert_near(&whole, &parts);
    assert_int_equal(whole.calls, epochs() * (task()->samples / task()->batch + 1)); /* callbacks tell batches */
    assert_int_equal(whole.steps[1], 2);
    drop(&parts);
    off.accumulate = 2;
    learned windows = learn(task(), off, 0, NULL), more = learn(task(), off, 0.4, NULL);
    assert_true(more.parts > 1);
    assert_near(&windows, &more);
    off.accumulate = 1;
    off.workers = 2; /* batches made by a loader */
    learned loaded = learn(task(), off, 0.4, NULL);
    assert_near(&whole, &loaded);
    off.drop_last = true;
    learned dropped = learn(task(), off, 0, NULL), fewer = learn(task(), off, 0.4, NULL);
    assert_int_equal(dropped.calls, epochs() * (task()->samples / task()->batch));
    assert_near(&dropped, &fewer);
    drop(&whole);
    drop(&windows);
    drop(&more);
    drop(&loaded);
    drop(&dropped);
    drop(&fewer);
}

static void recomputing_learns_the_same_bits(void **state) {
    (void)state;
    static const setting small = {"ResNet-20", resnet20, 3, 16, 16, 34};
    if (check_device()) skip();
    learned plain = learn(&small, (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, 0, NULL),
            blocks = learn(&small, (tw_trainer_options){.recompute = TW_RECOMPUTE_BLOCKS}, 0, NULL);
    assert_int_equal(blocks.parts, 1);
    assert_int_equal(plain.count, blocks.count);
    assert_memory_equal(plain.parameters, blocks.parameters, plain.count * sizeof(float));
    drop(&plain);
    drop(&blocks);
}

/* ---- too little ---- */

static void too_little_is_refused_with_the_floor(void **state) {
    (void)state;
    tw_trainer *trainer;
    tw_dataset *data = open_data(task_context, task());
    tw_model *model = open_model(task_context, task());
    size_t count;
    float *before = task_parameters(model, &count);
    tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
    for (int fits = 0; fits < 2; fits++) {
        options.memory_limit = 1000;
        options.on_out_of_memory = fits ? TW_OUT_OF_MEMORY_FIT : TW_OUT_OF_MEMORY_STOP;
        CHECK_OK(tw_trainer_create(&trainer, model, &options));
        CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, "the least that batch 1 was planned");
        assert_non_null(strstr(tw_last_error(), "optimizer"));
        tw_trainer_destroy(trainer);
    }
    assert_true(task_unchanged(model, before));
    options.memory_limit = 0;
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    CHECK_OK(tw_trainer_fit(trainer, data, NULL)); /* all still works */
    tw_trainer_destroy(trainer);
    free(before);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* ---- memory that is gone ---- */

static twi_backend failing;
static const twi_backend *real;
static int runs_left, runs_failed;

static tw_status run_or_fail(tw_context *context, void *prepared, int first, int count) {
    if (runs_left > 0 && --runs_left == 0) {
        runs_failed++;
        return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY, "run: the device has no memory left");
    }
    return real->run(context, prepared, first, count);
}

static int fail_at;
static void fail_a_run(tw_context *context) {
    real = context->backend;
    failing = *real;
    failing.run = run_or_fail;
    context->backend = &failing;
    runs_left = fail_at;
    runs_failed = 0;
}

/* In training, in the middle of an epoch and at its beginning, and in an evaluation: nothing is lost, nothing done twice. */
static void a_fit_goes_on_from_where_memory_ran_out(void **state) {
    (void)state;
    tw_trainer_options options = {.on_out_of_memory = TW_OUT_OF_MEMORY_FIT, .accumulate = 1};
    learned whole = learn(task(), options, 0, NULL);
    /* Of the whole batch, and of the second batch of a window. */
    static const int runs[][2] = {{1, 1}, {3, 1}, {5, 1}, {8, 1}, {2, 2}};
    for (size_t i = check_device() ? 3 : 0; i < sizeof runs / sizeof *runs; i++) {
        fail_at = check_device() && runs[i][1] == 1 ? 3 : runs[i][0];
        if (options.accumulate != runs[i][1]) {
            drop(&whole);
            options.accumulate = runs[i][1];
            whole = learn(task(), options, 0, NULL);
        }
        learned broken = learn(task(), options, 0, fail_a_run);
        assert_int_equal(runs_failed, 1);
        assert_near(&whole, &broken);
        drop(&broken);
    }
    drop(&whole);
}

static void or_stops_and_the_context_works(void **state) {
    (void)state;
    tw_trainer *trainer;
    tw_dataset *data = open_data(task_context, task());
    tw_model *model = open_model(task_context, task());
    tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
    options.batch = task()->batch;
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    fail_at = 2;
    fail_a_run(task_context);
    CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, "no memory left");
    assert_int_equal(tw_model_get_updates(model), 1);
    CHECK_OK(tw_trainer_fit(trainer, data, NULL));
    task_context->backend = real;
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* Every request for memory fails once: the fit goes on with less, or says what it needed; nothing else happens. */
static size_t refused_bytes;
static int refusals;
static bool refuse_large(void *user, uint64_t index, size_t bytes) {
    (void)user, (void)index;
    return bytes >= refused_bytes && refusals++ == 0;
}

static void memory_that_is_refused_is_done_without(void **state) {
    (void)state;
    tw_trainer *trainer;
    if (check_device()) skip(); /* the hook is of the host's memory */
    for (int fits = 0; fits < 2; fits++) {
        tw_dataset *data = open_data(task_context, task());
        tw_model *model = open_model(task_context, task());
        tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
        size_t fixed, planned;
        options.batch = task()->batch;
        options.on_out_of_memory = fits ? TW_OUT_OF_MEMORY_FIT : TW_OUT_OF_MEMORY_STOP;
        plan_plain(model, data, &options, &fixed, &planned);
        CHECK_OK(tw_trainer_create(&trainer, model, &options));
        refused_bytes = planned / 4;
        refusals = 0;
        tw_context_set_memory_hook(task_context, refuse_large, NULL);
        if (fits) {
            CHECK_OK(tw_trainer_fit(trainer, data, NULL));
            assert_true(model->arena_bytes + model->scratch_bytes < planned);
            if (twi_cpu_isa() >= TWI_ISA_AVX2) assert_true(trainer->parts > 1); /* others do with smaller workspaces */
        } else {
            CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, " takes parameters ");
            assert_non_null(strstr(tw_last_error(), "workspaces"));
        }
        assert_true(refusals > 0);
        tw_context_set_memory_hook(task_context, NULL, NULL);
        CHECK_OK(tw_trainer_fit(trainer, data, NULL));
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
        tw_dataset_destroy(data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_learn_what_the_batch_does),
        cmocka_unit_test(recomputing_learns_the_same_bits),
        with_context(too_little_is_refused_with_the_floor),
        cmocka_unit_test(a_fit_goes_on_from_where_memory_ran_out),
        with_context(or_stops_and_the_context_works),
        with_context(memory_that_is_refused_is_done_without),
        cmocka_unit_test(less_of_the_host_is_enough),
        cmocka_unit_test(a_shorter_last_batch_fits_beside_a_whole_one),
        cmocka_unit_test(three_networks_finish_within_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What tw_plan says before a fit is what the allocator measures during it: bytes to the last one, on any device; what it says of work and
 * time follows from shapes and from a card's figures by hand. */
#include "check.h"
#include "check_device.h"
#include <talweg/talweg.h>

#include <math.h>
#include <stdio.h>

enum { SIDE = 12, CHANNELS = 3, PIXELS = CHANNELS * SIDE * SIDE, CLASSES = 4, SAMPLES = 27 };

static tw_model *network(tw_context *context) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_conv2d(model, tw_input(model, CHANNELS, SIDE, SIDE), 8, 3,
                            TW_OPTIONS(conv2d, .padding = 1, .no_bias = true));
    x = tw_max_pool(model, tw_relu(model, tw_batch_norm(model, x, NULL)), 2, NULL);
    x = tw_relu(model, tw_conv2d(model, x, 8, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_relu(model, tw_dense(model, tw_dropout(model, x, 0.2f), 16, NULL));
    CHECK_OK(tw_model_build(model, tw_dense(model, x, CLASSES, NULL), TW_OPTIONS(model, .seed = 5)));
    return model;
}

static tw_context *planning(size_t cap) {
    tw_context *context;
    char name[64];
    snprintf(name, sizeof name, "plan:%s", check_device_or_cpu());
    CHECK_OK(tw_context_create(&context, name, TW_OPTIONS(context, .threads = 2, .device_memory_limit = cap)));
    assert_string_equal(tw_context_get_device(context), name);
    return context;
}

static tw_dataset *data_of(tw_context *context, int64_t count, bool floats) {
    static float values[SAMPLES * PIXELS];
    static uint8_t bytes[SAMPLES * PIXELS];
    int32_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES * PIXELS; i++) values[i] = (float)(bytes[i] = (uint8_t)(i * 37 % 251)) / 255;
    for (int i = 0; i < SAMPLES; i++) labels[i] = i % CLASSES;
    tw_dataset *data;
    CHECK_OK(tw_dataset_create_from(&data, context, floats ? TW_F32 : TW_U8, floats ? (void *)values : (void *)bytes,
                                    count, CHANNELS, SIDE, SIDE, labels, NULL));
    return data;
}

typedef struct scenario {
    const char *name;
    tw_trainer_options trainer;
    int64_t samples, tested;
    bool floats;
} scenario;

#define TRAINER(...) \
    { .size = sizeof(tw_trainer_options), .epochs = 1, __VA_ARGS__ }
static const scenario scenarios[] = {
    {"whole batches, resident", TRAINER(.batch = 9), 27, 0, false},
    {"a shorter last batch", TRAINER(.batch = 8), 27, 0, false},
    {"it is left out", TRAINER(.batch = 8, .drop_last = true), 27, 0, false},
    {"no whole batch", TRAINER(.batch = 64), 27, 0, false},
    {"floats, flips, crops", TRAINER(.batch = 8, .flip = true, .crop_padding = 2), 27, 0, true},
    {"streamed", TRAINER(.batch = 8, .workers = 1), 27, 0, false},
    {"a test set, in larger batches than training", TRAINER(.batch = 4, .evaluation_batch = 13), 27, 26, false},
    {"a test set, streamed", TRAINER(.batch = 8, .evaluation_batch = 8, .workers = 1), 27, 15, false},
    {"accumulated", TRAINER(.batch = 4, .accumulate = 3), 27, 0, false},
    {"momentum", TRAINER(.batch = 8, .optimizer = {.momentum = 0.9f}), 27, 5, false},
    {"adamw", TRAINER(.batch = 8, .optimizer = {.kind = TW_ADAMW}), 27, 5, false},
    {"no normalisation", TRAINER(.batch = 8, .no_normalization = true), 27, 0, false},
    {"with a snapshot to go back to", TRAINER(.batch = 8, .on_non_finite = TW_NON_FINITE_ROLL_BACK), 27, 0, false},
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* What the allocator measures in a real fit. */
static size_t measured(const scenario *s) {
    tw_context *context;
    tw_trainer *trainer;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    tw_dataset *train = data_of(context, s->samples, s->floats),
               *test = s->tested ? data_of(context, s->tested, s->floats) : NULL;
    tw_model *model = network(context);
    CHECK_OK(tw_trainer_create(&trainer, model, &s->trainer));
    CHECK_OK(tw_trainer_fit(trainer, train, test));
    const size_t peak = tw_context_get_device_memory(context).peak;
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    assert_int_equal(tw_context_get_device_memory(context).bytes, 0);
    assert_int_equal(tw_context_get_device_memory(context).blocks, 0);
    tw_context_destroy(context);
    return peak;
}

static tw_plan *plan_of(tw_model *model, const scenario *s) {
    tw_plan *plan;
    CHECK_OK(tw_plan_create(&plan, model,
                            TW_OPTIONS(plan, .trainer = &s->trainer, .samples = s->samples, .test_samples = s->tested,
                                       .floats = s->floats)));
    return plan;
}

static size_t sum_of_parts(const tw_plan_memory *m) {
    return m->parameter_bytes + m->copy_bytes + m->gradient_bytes + m->optimizer_bytes + m->activation_bytes +
           m->activation_gradient_bytes + m->workspace_bytes + m->data_bytes + m->other_bytes + m->unused_bytes;
}

static void the_planned_peak_is_what_is_measured(void **state) {
    (void)state;
    for (int i = 0; i < SCENARIOS; i++) {
        tw_context *context = planning(0);
        tw_model *model = network(context);
        tw_plan *plan = plan_of(model, &scenarios[i]);
        tw_plan_memory memory = TW_PLAN_MEMORY_INIT;
        CHECK_OK(tw_plan_get_memory(plan, &memory));
        const size_t peak = measured(&scenarios[i]);
        if (memory.peak_bytes != peak)
            fail_msg("%s: %zu bytes planned, %zu measured", scenarios[i].name, memory.peak_bytes, peak);
        assert_int_equal(tw_context_get_device_memory(context).peak, peak);
        assert_int_equal(sum_of_parts(&memory), peak);
        assert_true(memory.activation_bytes > 0 || memory.workspace_bytes > 0);
        const size_t weights = (size_t)tw_model_count_weights(model) * sizeof(float);
        assert_true(memory.gradient_bytes >= weights && memory.gradient_bytes < 2 * weights); /* or their sums */
        const bool adamw = scenarios[i].trainer.optimizer.kind == TW_ADAMW;
        assert_true(memory.optimizer_bytes >= (adamw ? 2 * weights : 0) && memory.optimizer_bytes < 4 * weights);
        assert_true(memory.other_bytes < 16384); /* control block, normalisation: all else has its part, by name */
        if (i == 0) assert_true(memory.data_bytes >= (size_t)scenarios[i].samples * sizeof(int32_t));
        tw_plan_destroy(plan);
        tw_model_destroy(model);
        assert_int_equal(tw_context_get_device_memory(context).bytes, 0);
        tw_context_destroy(context);
    }
}

/* Of a fit on the device with a cap, or 0 where it does not fit. On the CPU only a plan heeds it: memory is the host's there. */
static size_t capped(const scenario *s, size_t cap, bool plan_it) {
    tw_context *context;
    tw_trainer *trainer = NULL;
    tw_plan *plan = NULL;
    if (plan_it)
        context = planning(cap);
    else
        CHECK_OK(tw_context_create(&context, check_device_or_cpu(),
                                   TW_OPTIONS(context, .threads = 2, .device_memory_limit = cap)));
    tw_dataset *train = data_of(context, s->samples, s->floats),
               *test = s->tested ? data_of(context, s->tested, s->floats) : NULL;
    tw_model *model = network(context);
    tw_status status = plan_it ? tw_plan_create(&plan, model,
                                                TW_OPTIONS(plan, .trainer = &s->trainer, .samples = s->samples,
                                                           .test_samples = s->tested, .floats = s->floats))
                               : tw_trainer_create(&trainer, model, &s->trainer);
    if (!plan_it && status == TW_OK) status = tw_trainer_fit(trainer, train, test);
    assert_true(status == TW_OK || status == TW_ERROR_OUT_OF_MEMORY);
    const size_t peak = status ? 0 : tw_context_get_device_memory(context).peak;
    tw_plan_destroy(plan);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    tw_context_destroy(context);
    return peak;
}

/* Of a fit under a memory limit: what is held at the peak, or 0 where it is refused; and what the context holds before. */
static size_t limited(const scenario *s, size_t limit, bool plan_it, size_t *before, size_t *peak) {
    tw_trainer_options options = s->trainer;
    tw_context *context;
    tw_trainer *trainer = NULL;
    tw_plan *plan = NULL;
    options.memory_limit = limit;
    if (plan_it)
        context = planning(0);
    else
        CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    tw_dataset *train = data_of(context, s->samples, s->floats),
               *test = s->tested ? data_of(context, s->tested, s->floats) : NULL;
    tw_model *model = network(context);
    *before = tw_context_get_device_memory(context).bytes;
    tw_status status = plan_it ? tw_plan_create(&plan, model,
                                                TW_OPTIONS(plan, .trainer = &options, .samples = s->samples,
                                                           .test_samples = s->tested, .floats = s->floats))
                               : tw_trainer_create(&trainer, model, &options);
    if (!plan_it && status == TW_OK) status = tw_trainer_fit(trainer, train, test);
    if (status) CHECK_FAILS(status, TW_ERROR_OUT_OF_MEMORY, "cannot be kept: the least that batch");
    *peak = tw_context_get_device_memory(context).peak;
    tw_plan_destroy(plan);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    tw_context_destroy(context);
    return status ? 0 : *peak;
}

/* Whatever the cap, also where the set has to be streamed because of it. On the CPU, where nothing is kept free for libraries,
 * what it takes is cap enough, and at most what it takes without any, where some is for speed alone; and a fit under a limit of as
 * many bytes is what is planned under the cap: nothing else of the context lies there. */
static void under_a_cap_the_plan_is_that_of_the_fit(void **state) {
    (void)state;
    const bool cpu = strcmp(check_device_or_cpu(), "cpu") == 0;
    for (int k = cpu ? 0 : 6; k < (cpu ? SCENARIOS : 7); k++) {
        const scenario *s = &scenarios[k];
        size_t before, most;
        const size_t alone = measured(s), peak = cpu ? limited(s, 2 * alone, false, &before, &most) : alone;
        const size_t caps[] = {peak, peak - 1, peak - peak / 16, peak - peak / 4, peak / 2};
        assert_true(peak > 0 && peak <= alone);
        for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
            const size_t planned = capped(s, caps[i], true),
                         held = cpu ? limited(s, caps[i], false, &before, &most) : capped(s, caps[i], false);
            if (planned != held || planned > caps[i] || (cpu && i == 0 && planned != peak))
                fail_msg("%s under %zu bytes: %zu planned, %zu held", s->name, caps[i], planned, held);
        }
    }
}

/* Resident sets, snapshots and slots included: nothing is taken beyond the limit, at no moment, whether the fit finishes or is refused. */
static void a_memory_limit_holds_for_all_that_is_held(void **state) {
    (void)state;
    for (int i = 0; i < SCENARIOS; i++) {
        const scenario *s = &scenarios[i];
        const size_t peak = measured(s),
                     limits[] = {peak, peak - 1, peak - peak / 8, peak - peak / 4, peak / 2, peak / 3};
        for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
            size_t before, most, planned_most;
            const size_t held = limited(s, limits[k], false, &before, &most);
            if (held > limits[k] || most > (limits[k] > before ? limits[k] : before))
                fail_msg("%s under %zu bytes: %zu held, %zu at most", s->name, limits[k], held, most);
            if (k == 0 && !held) fail_msg("%s under what it takes, %zu bytes", s->name, peak);
            const size_t planned = limited(s, limits[k], true, &before, &planned_most);
            if (planned != held)
                fail_msg("%s under %zu bytes: %zu planned, %zu held", s->name, limits[k], planned, held);
        }
    }
}

static void a_model_can_be_planned_again(void **state) {
    (void)state;
    tw_context *context = planning(0);
    tw_model *model = network(context);
    const int order[] = {10, 0, 5, 10};
    size_t peak[4];
    for (int i = 0; i < 4; i++) {
        tw_plan *plan = plan_of(model, &scenarios[order[i]]);
        tw_plan_memory memory = TW_PLAN_MEMORY_INIT;
        CHECK_OK(tw_plan_get_memory(plan, &memory));
        peak[i] = memory.peak_bytes;
        tw_plan_destroy(plan);
    }
    assert_int_equal(peak[0], peak[3]);
    assert_int_equal(peak[1], measured(&scenarios[0]));
    tw_model_destroy(model);
    tw_context_destroy(context);
}

/* ---- nothing is taken ---- */

static void a_model_that_is_planned_has_no_weights(void **state) {
    (void)state;
    tw_context *context = planning(0);
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    CHECK_OK(tw_model_build(model, tw_zoo_resnet50(model, tw_input(model, 3, 224, 224), 1000, NULL), NULL));
    tw_plan *plan;
    CHECK_OK(tw_plan_create(&plan, model,
                            TW_OPTIONS(plan, .samples = 1000000, .trainer = TW_OPTIONS(trainer, .batch = 256))));
    tw_plan_memory memory = TW_PLAN_MEMORY_INIT;
    CHECK_OK(tw_plan_get_memory(plan, &memory));
    const size_t gigabyte = (size_t)1 << 30;
    assert_true(memory.peak_bytes > 10 * gigabyte);
    assert_true(tw_context_get_memory(context).peak < gigabyte / 16);
    float bias[1000] = {0};
    CHECK_FAILS(tw_parameter_read(model, "fc.bias", bias, 1000), TW_ERROR_STATE, "to plan only");
    CHECK_FAILS(tw_model_save(model, "/tmp/talweg-never-written"), TW_ERROR_STATE, "to plan only");
    CHECK_OK(tw_parameter_write(model, "fc.bias", bias, 1000)); /* goes nowhere, so that models can be opened */
    tw_plan_destroy(plan);
    tw_model_destroy(model);
    tw_context_destroy(context);
}

static void what_cannot_be_planned_says_so(void **state) {
    (void)state;
    tw_context *runs, *plans = planning(0);
    tw_plan *plan;
    CHECK_OK(tw_context_create(&runs, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    tw_model *model = network(runs), *unbuilt, *planned = network(plans);
    CHECK_FAILS(tw_plan_create(&plan, model, NULL), TW_ERROR_STATE, "runs; plan in one that was opened on \"plan:");
    assert_null(plan);
    CHECK_OK(tw_model_create(&unbuilt, plans));
    CHECK_FAILS(tw_plan_create(&plan, unbuilt, NULL), TW_ERROR_STATE, "build the model first");
    CHECK_FAILS(tw_plan_create(&plan, planned, TW_OPTIONS(plan, .samples = -1)), TW_ERROR_ARGUMENT, "samples is -1");
    CHECK_FAILS(tw_plan_create(&plan, planned, TW_OPTIONS(plan, .trainer = TW_OPTIONS(trainer, .batch = -3))),
                TW_ERROR_ARGUMENT, "batch is -3");
    CHECK_FAILS(tw_plan_create(&plan, NULL, NULL), TW_ERROR_ARGUMENT, "model is NULL");
    tw_model_destroy(unbuilt);
    tw_model_destroy(planned);
    tw_model_destroy(model);
    tw_context_destroy(plans);
    tw_context_destroy(runs);
}

/* ---- work and time, by hand ---- */

static tw_plan_work kind_of(const tw_plan *plan, const char *name) {
    for (int i = 0; i < tw_plan_count_kinds(plan); i++) {
        tw_plan_work work = TW_PLAN_WORK_INIT;
        CHECK_OK(tw_plan_get_kind(plan, i, &work));
        if (strcmp(work.name, name) == 0) return work;
    }
    fail_msg("there is no kind '%s'", name);
    return (tw_plan_work)TW_PLAN_WORK_INIT;
}

/* LeNet-5: a multiply-add is 2 FLOPs; forward, gradient of the weights, and, but for the first layer, gradient of the input. */
static void flops_and_seconds_follow_from_shapes(void **state) {
    (void)state;
    enum { BATCH = 32 };
    const double conv1 = 2.0 * 28 * 28 * 6 * 25, conv2 = 2.0 * 10 * 10 * 16 * 150,
                 dense = 2.0 * (400 * 120 + 120 * 84 + 84 * 10);
    tw_context *context = planning(0);
    tw_model *model;
    tw_plan *plan;
    CHECK_OK(tw_model_create(&model, context));
    CHECK_OK(tw_model_build(model, tw_zoo_lenet5(model, tw_input(model, 1, 28, 28), 10), NULL));
    tw_card slow_memory = TW_CARD_INIT, slow_arithmetic = TW_CARD_INIT;
    slow_memory.bandwidth = 1e3, slow_memory.f32 = 1e30;
    slow_arithmetic.bandwidth = 1e30, slow_arithmetic.f32 = 1e3;
    CHECK_OK(tw_plan_create(&plan, model,
                            TW_OPTIONS(plan, .samples = 80, .card = &slow_arithmetic,
                                       .trainer = TW_OPTIONS(trainer, .batch = BATCH, .accumulate = 2))));
    tw_plan_work work = kind_of(plan, "conv2d");
    assert_true(work.flops == 2 * BATCH * (2 * conv1 + 3 * conv2)); /* two batches an update */
    assert_true(fabs(work.seconds - work.flops / 1e3) < 1e-6 * work.seconds);
    assert_true(kind_of(plan, "dense").flops == 2 * BATCH * 3 * dense);
    tw_plan_time time = TW_PLAN_TIME_INIT;
    CHECK_OK(tw_plan_get_time(plan, NULL, &time));
    assert_int_equal(time.batches, 2);
    assert_true(time.flops == 2 * BATCH * (2 * conv1 + 3 * conv2 + 3 * dense));
    assert_true(fabs(time.update_seconds - time.flops / 1e3) < 1e-6 * time.update_seconds);
    assert_true(time.byte_share < 1e-6);
    assert_true(fabs(time.epoch_seconds - time.update_seconds * 80 / (2 * BATCH)) < 1e-6 * time.epoch_seconds);
    assert_true(fabs(time.images_per_second - 2 * BATCH / time.update_seconds) < 1e-6 * time.images_per_second);
    CHECK_OK(tw_plan_get_time(plan, &slow_memory, &time));
    assert_true(fabs(time.update_seconds - time.bytes / 1e3) < 1e-6 * time.update_seconds);
    assert_true(time.byte_share > 1 - 1e-6);
    const tw_program_stats stats = tw_program_get_stats(tw_plan_get_program(plan));
    assert_true(time.bytes > stats.bytes && time.bytes < 2 * stats.bytes); /* the update is done once */
    const tw_card unknown = TW_CARD_INIT;
    CHECK_OK(tw_plan_get_time(plan, &unknown, &time));
    assert_true(isnan(time.update_seconds) && isnan(time.epoch_seconds));
    const double whole = time.flops;
    tw_plan_destroy(plan);
    CHECK_OK(tw_plan_create(&plan, model,
                            TW_OPTIONS(plan, .samples = 80, .card = &slow_arithmetic,
                                       .trainer = TW_OPTIONS(trainer, .batch = BATCH, .accumulate = 2,
                                                             .memory_limit = 1000000, .recompute = TW_RECOMPUTE_OFF))));
    CHECK_OK(tw_plan_get_time(plan, NULL, &time)); /* in parts an update does the same, and the update itself once */
    assert_true(time.parts > 1 && time.batches == 2);
    assert_true(time.flops == whole);
    assert_true(fabs(time.update_seconds - time.flops / 1e3) < 1e-6 * time.update_seconds);
    assert_true(fabs(time.images_per_second - 2 * BATCH / time.update_seconds) < 1e-6 * time.images_per_second);
    assert_true(fabs(time.epoch_seconds - time.update_seconds * 80 / (2 * BATCH)) < 1e-6 * time.epoch_seconds);
    tw_plan_destroy(plan);
    tw_model_destroy(model);
    tw_context_destroy(context);
}

/* Whether a layer of LeNet-5, asked for in TF32 but for conv2, is planned at the rate of f32 or of TF32. */
static bool is_planned_in_tf32(const char *device, const char *layer) {
    static const tw_precision_rule rule = {"conv2", TW_PRECISION_F32};
    tw_context *context;
    tw_model *model;
    tw_plan *plan;
    tw_card figures = TW_CARD_INIT;
    tw_plan_work work = TW_PLAN_WORK_INIT;
    figures.bandwidth = 1e30, figures.f32 = 1e3, figures.tf32 = 1e6;
    CHECK_OK(tw_context_create(&context, device, NULL));
    CHECK_OK(tw_model_create(&model, context));
    CHECK_OK(tw_model_build(model, tw_zoo_lenet5(model, tw_input(model, 1, 28, 28), 10), NULL));
    CHECK_OK(tw_plan_create(&plan, model,
                            TW_OPTIONS(plan, .card = &figures,
                                       .trainer = TW_OPTIONS(trainer, .batch = 8, .precision = TW_PRECISION_TF32,
                                                             .precision_rules = &rule, .precision_rule_count = 1))));
    for (int i = 0; i < tw_plan_count_layers(plan) && (!work.name || strcmp(work.name, layer) != 0); i++)
        CHECK_OK(tw_plan_get_layer(plan, i, &work));
    assert_string_equal(work.name, layer);
    const double rate = work.flops / work.seconds;
    tw_plan_destroy(plan);
    tw_model_destroy(model);
    tw_context_destroy(context);
    assert_true(fabs(rate - 1e3) < 1 || fabs(rate - 1e6) < 1);
    return rate > 1e5;
}

static void tf32_is_planned_where_it_is_computed_in(void **state) {
    (void)state;
    assert_true(is_planned_in_tf32("plan:h200", "conv1"));
    assert_false(is_planned_in_tf32("plan:h200", "conv2")); /* by its rule */
    assert_false(is_planned_in_tf32("plan:t4", "conv1"));   /* capability 7.5 has none */
}

static void note_smaller(void *user, tw_log_level level, const char *line) {
    (void)level;
    if (strstr(line, "measured in batches of 64")) *(bool *)user = true;
}

/* The slots of training are there while the evaluation is planned: with them it does not keep a limit that it would keep alone. */
static void a_limit_is_kept_by_all_programs_together(void **state) {
    (void)state;
    tw_trainer_options trainer = {.size = sizeof trainer, .batch = 64, .evaluation_batch = 128, .workers = 1};
    tw_context *context;
    bool smaller = false;
    CHECK_OK(
        tw_context_create(&context, "plan:h200",
                          TW_OPTIONS(context, .log = note_smaller, .log_user = &smaller, .log_level = TW_LOG_INFO)));
    tw_model *model = network(context);
    for (int limited = 0; limited < 2; limited++) {
        tw_plan *plan;
        tw_plan_memory memory = TW_PLAN_MEMORY_INIT;
        CHECK_OK(
            tw_plan_create(&plan, model, TW_OPTIONS(plan, .trainer = &trainer, .samples = 64, .test_samples = 128)));
        CHECK_OK(tw_plan_get_memory(plan, &memory));
        tw_plan_destroy(plan);
        assert_int_equal(smaller, limited);
        trainer.memory_limit = memory.peak_bytes - memory.other_bytes - 1;
    }
    tw_model_destroy(model);
    tw_context_destroy(context);
}

static void the_parts_of_an_arena_add_up(void **state) {
    (void)state;
    for (int i = 0; i < SCENARIOS; i++) {
        tw_context *context = planning(0);
        tw_model *model = network(context);
        tw_plan *plan = plan_of(model, &scenarios[i]);
        const tw_program_stats s = tw_program_get_stats(tw_plan_get_program(plan));
        assert_int_equal(s.input_bytes + s.activation_bytes + s.activation_gradient_bytes + s.workspace_bytes +
                             s.unused_bytes,
                         s.arena_bytes);
        assert_true(s.unused_bytes < s.arena_bytes / 2);
        size_t memory = SIZE_MAX;
        for (int k = 0; k < tw_plan_count_layers(plan); k++) {
            tw_plan_work layer = TW_PLAN_WORK_INIT;
            CHECK_OK(tw_plan_get_layer(plan, k, &layer));
            assert_true(layer.memory_bytes <= memory); /* the largest first */
            memory = layer.memory_bytes;
        }
        tw_plan_work none = TW_PLAN_WORK_INIT;
        CHECK_FAILS(tw_plan_get_layer(plan, tw_plan_count_layers(plan), &none), TW_ERROR_ARGUMENT, "is outside");
        tw_plan_destroy(plan);
        tw_model_destroy(model);
        tw_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_planned_peak_is_what_is_measured),
        cmocka_unit_test(under_a_cap_the_plan_is_that_of_the_fit),
        cmocka_unit_test(a_memory_limit_holds_for_all_that_is_held),
        cmocka_unit_test(a_model_can_be_planned_again),
        cmocka_unit_test(a_model_that_is_planned_has_no_weights),
        cmocka_unit_test(what_cannot_be_planned_says_so),
        cmocka_unit_test(flops_and_seconds_follow_from_shapes),
        cmocka_unit_test(tf32_is_planned_where_it_is_computed_in),
        cmocka_unit_test(a_limit_is_kept_by_all_programs_together),
        cmocka_unit_test(the_parts_of_an_arena_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A fit that comes to nothing leaves nothing: no memory of the device, no snapshot that later plans count, nothing that was measured of its data.
 * What a limit has to be is in test_fit_floor. */
#include "fit_floor.h"
#include "program/program.h"

#include <stdio.h>
#include <string.h>

static const setting shape = {"LeNet-5", lenet, 1, 28, 8, 19};

/* What programs keep beside what is planned is most of what it takes. */
static tw_value *narrow(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    return tw_dense(model, x, 10, NULL);
}
static const setting records = {"a narrow net", narrow, 1, 8, 64, 130};

static size_t held(void) { return tw_context_get_device_memory(task_context).bytes; }

static void nothing_of_it_is_kept(void **state) {
    (void)state;
    static const tw_trainer_options ways[] = {
        {.on_non_finite = TW_NON_FINITE_ROLL_BACK, .optimizer = {.kind = TW_ADAMW}},
        {.accumulate = 2, .optimizer = {.momentum = 0.9f}},
        {.precision = TW_PRECISION_BF16, .workers = 1},
    };
    tw_model *model = open_model(task_context, &shape);
    tw_dataset *data = open_data(task_context, &shape);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const size_t before = held();
        size_t floor = 0;
        for (int less = 0; less < 4;
             less++) { /* far too little, and a little less than enough for the programs of training */
            tw_trainer_options options = ways[i];
            tw_trainer *trainer;
            options.size = sizeof options;
            options.batch = shape.batch;
            options.memory_limit = less ? floor - (size_t)less : 1000;
            CHECK_OK(tw_trainer_create(&trainer, model, &options));
            CHECK_FAILS(tw_trainer_fit(trainer, data, data), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
            if (!less) floor = floor_named(tw_last_error());
            assert_int_equal(held(), before);
            assert_int_equal(twi_model_bytes(model), before);
            assert_false(model->store.snapshot.wanted);
            assert_int_equal(trainer->normalization.channels, 0);
            assert_int_equal(model->normalization.channels, 0);
            assert_int_equal(tw_model_count_class_names(model), 0);
            tw_trainer_destroy(trainer);
        }
    }
    tw_dataset_destroy(data);
    tw_model_destroy(model);
}

/* A cap that leaves too little for what is beside the plan names itself: the least of a limit is named only where it is more
 * than there was. */
static void a_cap_is_named_as_such(void **state) {
    (void)state;
    if (check_device()) skip(); /* whose memory is not under the context's cap */
    tw_model *model = open_model(task_context, &records);
    tw_dataset *data = open_data(task_context, &records);
    const size_t before = tw_context_get_memory(task_context).bytes;
    int fitted = 0, by_cap = 0;
    for (size_t more = (size_t)100 << 10; fitted < 2; more += (size_t)20 << 10) {
        tw_trainer *trainer;
        CHECK_OK(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .batch = records.batch)));
        tw_context_set_memory_limit(task_context, before + more);
        const tw_status status = tw_trainer_fit(trainer, data, data);
        tw_context_set_memory_limit(task_context, 0);
        if (status == TW_OK) {
            fitted++;
        } else {
            size_t limit = 0;
            const char *given = strstr(tw_last_error(), "the memory limit of ");
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
            if (given)
                assert_int_equal(sscanf(strchr(given, '('), "(%zu", &limit), 1);
            else
                assert_non_null(strstr(tw_last_error(), "raise it with tw_context_set_memory_limit"));
            assert_true(!given || floor_named(tw_last_error()) > limit);
            by_cap += !given;
        }
        tw_trainer_destroy(trainer);
    }
    assert_true(by_cap > 0);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
}

/* One that rolls back, and one that does not: what they count is theirs alone, also where a program is made by hand. */
static void a_later_plan_counts_no_snapshot(void **state) {
    (void)state;
    tw_model *model = open_model(task_context, &shape);
    tw_dataset *data = open_data(task_context, &shape);
    tw_program *program;
    tw_value *output = tw_model_get_output(model);
    size_t floor[2];
    for (int after = 0; after < 2; after++) {
        CHECK_FAILS(tw_program_create(&program, model, 4,
                                      TW_OPTIONS(program, .outputs = &output, .output_count = 1, .memory_limit = 1)),
                    TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
        floor[after] = floor_named(tw_last_error());
        if (after) break;
        tw_trainer *trainer;
        CHECK_OK(tw_trainer_create(
            &trainer, model,
            TW_OPTIONS(trainer, .batch = 8, .memory_limit = 1000, .on_non_finite = TW_NON_FINITE_ROLL_BACK)));
        CHECK_FAILS(tw_trainer_fit(trainer, data, NULL), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
        tw_trainer_destroy(trainer);
    }
    assert_int_equal(floor[0], floor[1]);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
}

/* Every request for memory fails once, whatever for. */
static uint64_t refused, requests;
static bool refuse_one(void *user, uint64_t index, size_t bytes) {
    (void)user, (void)index, (void)bytes;
    return requests++ == refused;
}

static void where_memory_is_refused_all_of_it_is_given_back(void **state) {
    (void)state;
    if (check_device()) skip(); /* the hook is of the host's memory */
    tw_dataset *data = open_data(task_context, &shape);
    for (refused = 0;; refused++) {
        tw_model *model = open_model(task_context, &shape);
        tw_trainer *trainer;
        const size_t before = held();
        CHECK_OK(tw_trainer_create(&trainer, model,
                                   TW_OPTIONS(trainer, .batch = shape.batch, .on_non_finite = TW_NON_FINITE_ROLL_BACK,
                                              .optimizer = {.kind = TW_ADAMW})));
        requests = 0;
        tw_context_set_memory_hook(task_context, refuse_one, NULL);
        tw_status status = tw_trainer_fit(trainer, data, NULL);
        tw_context_set_memory_hook(task_context, NULL, NULL);
        if (status) {
            CHECK_FAILS(status, TW_ERROR_OUT_OF_MEMORY, "");
            assert_int_equal(tw_model_get_updates(model), 0);
            if (held() != before) fail_msg("request %d: %zu bytes are kept", (int)refused, held() - before);
            assert_false(model->store.snapshot.at.taken);
            CHECK_OK(tw_trainer_fit(trainer, data, NULL)); /* nothing is missing */
        }
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
        if (requests <= refused) break; /* there are not so many */
    }
    assert_true(refused > 50);
    tw_dataset_destroy(data);
}

static void data_that_taught_nothing_are_not_remembered(void **state) {
    (void)state;
    setting other = shape;
    other.samples = 60;
    tw_model *model = open_model(task_context, &shape);
    tw_dataset *first = open_data(task_context, &shape), *second = open_data(task_context, &other);
    tw_trainer *trainer;
    tw_normalization wanted = {.channels = 1};
    CHECK_OK(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .batch = 8)));
    trainer->options.memory_limit = 1000;
    CHECK_FAILS(tw_trainer_fit(trainer, first, NULL), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
    trainer->options.memory_limit = 0;
    CHECK_OK(tw_trainer_fit(trainer, second, NULL));
    CHECK_OK(tw_dataset_measure(second, wanted.mean, wanted.deviation));
    assert_memory_equal(&trainer->normalization, &wanted, sizeof wanted);
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(second);
    tw_dataset_destroy(first);
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(nothing_of_it_is_kept),
        with_context(a_cap_is_named_as_such),
        with_context(a_later_plan_counts_no_snapshot),
        with_context(where_memory_is_refused_all_of_it_is_given_back),
        with_context(data_that_taught_nothing_are_not_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Data sets over arrays: copies, subsets, classes and names, statistics. Files are tested in test_idx.c and
 * test_cifar.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/context.h"
#include <talweg/data.h>

#define assert_ok(call)                                 \
    do {                                                \
        tw_status got_ = (call);                        \
        if (got_) print_error("%s\n", tw_last_error()); \
        assert_int_equal(got_, TW_OK);                  \
    } while (0)

/* The call fails with this status, the message holds this text, and *out is NULL. */
#define assert_fails(out, call, status, text)                                                       \
    do {                                                                                            \
        out = (void *)1;                                                                            \
        assert_int_equal((call), (status));                                                         \
        if (!strstr(tw_last_error(), (text))) fail_msg("'%s' lacks '%s'", tw_last_error(), (text)); \
        assert_null(out);                                                                           \
    } while (0)

enum { COUNT = 4, CHANNELS = 2, HEIGHT = 5, WIDTH = 3, SAMPLE = CHANNELS * HEIGHT * WIDTH };

static uint8_t bytes[COUNT * SAMPLE];
static float floats[COUNT * SAMPLE];
static const int32_t labels[COUNT] = {2, 0, 1, 2};
static uint64_t blocks_at_open;

static int open_context(void **state) {
    for (int i = 0; i < COUNT * SAMPLE; i++) {
        bytes[i] = (uint8_t)((i * 37 + 11) % 256);
        floats[i] = (float)bytes[i] * 0.25f - 7;
    }
    tw_context_options options = TW_CONTEXT_OPTIONS_INIT;
    options.threads = 1;
    tw_context *context;
    if (twi_context_open(&context, &options)) return -1;
    blocks_at_open = twi_memory_get_stats(context->memory).blocks;
    *state = context;
    return 0;
}

/* Every block must have come back. */
static int close_context(void **state) {
    tw_context *context = *state;
    const uint64_t blocks = twi_memory_get_stats(context->memory).blocks;
    twi_context_close(context);
    return blocks == blocks_at_open ? 0 : -1;
}

static tw_status create(tw_dataset **out, tw_context *context, const tw_dataset_options *options) {
    return tw_dataset_create_from(out, context, TW_U8, bytes, COUNT, CHANNELS, HEIGHT, WIDTH, labels, options);
}

static void arrays_are_copied(void **state) {
    tw_dataset *dataset;
    assert_ok(create(&dataset, *state, NULL));
    assert_int_equal(tw_dataset_count(dataset), COUNT);
    assert_int_equal(tw_dataset_get_channels(dataset), CHANNELS);
    assert_int_equal(tw_dataset_get_height(dataset), HEIGHT);
    assert_int_equal(tw_dataset_get_width(dataset), WIDTH);
    assert_int_equal(tw_dataset_get_dtype(dataset), TW_U8);
    assert_ptr_not_equal(tw_dataset_get_images(dataset), bytes);
    assert_memory_equal(tw_dataset_get_images(dataset), bytes, sizeof bytes);
    assert_memory_equal(tw_dataset_get_labels(dataset), labels, sizeof labels);
    tw_dataset_destroy(dataset);

    assert_ok(tw_dataset_create_from(&dataset, *state, TW_F32, floats, COUNT, CHANNELS, HEIGHT, WIDTH, labels, NULL));
    assert_memory_equal(tw_dataset_get_images(dataset), floats, sizeof floats);
    tw_dataset_destroy(dataset);
    tw_dataset_destroy(NULL);
}

static void classes_and_names(void **state) {
    static const char *const names[] = {"cat", "dog", "", "gnu"};
    tw_dataset *dataset;
    assert_ok(create(&dataset, *state, NULL));
    assert_int_equal(tw_dataset_get_classes(dataset), 3); /* largest label + 1 */
    assert_string_equal(tw_dataset_get_class_name(dataset, 2), "2");
    assert_string_equal(tw_dataset_get_class_name(dataset, 3), "");
    assert_string_equal(tw_dataset_get_class_name(dataset, -1), "");
    tw_dataset_destroy(dataset);

    assert_ok(create(&dataset, *state, TW_OPTIONS(dataset, .classes = 4, .class_names = names)));
    assert_int_equal(tw_dataset_get_classes(dataset), 4);
    assert_string_equal(tw_dataset_get_class_name(dataset, 0), "cat");
    assert_string_equal(tw_dataset_get_class_name(dataset, 2), "");
    assert_string_equal(tw_dataset_get_class_name(dataset, 3), "gnu");
    tw_dataset_destroy(dataset);

    assert_ok(create(&dataset, *state, TW_OPTIONS(dataset, .classes = 1000)));
    assert_string_equal(tw_dataset_get_class_name(dataset, 999), "999");
    tw_dataset_destroy(dataset);

    static const char *const holed[] = {"cat", NULL, "dog"};
    assert_fails(dataset, create(&dataset, *state, TW_OPTIONS(dataset, .class_names = names)), TW_ERROR_ARGUMENT,
                 "class_names without classes");
    assert_fails(dataset, create(&dataset, *state, TW_OPTIONS(dataset, .classes = 3, .class_names = holed)),
                 TW_ERROR_ARGUMENT, "class_names[1]");
    assert_fails(dataset, create(&dataset, *state, TW_OPTIONS(dataset, .classes = -1)), TW_ERROR_ARGUMENT, "-1");
    assert_fails(dataset, create(&dataset, *state, TW_OPTIONS(dataset, .classes = TW_MAX_CLASSES + 1)),
                 TW_ERROR_ARGUMENT, "1048577");
}

static void labels_outside_the_range(void **state) {
    static const struct {
        int32_t label;
        int classes;
        const char *text;
    } cases[] = {
        {3, 3,
         "tw_dataset_create_from: labels: record 1 has label 3, outside 0 .. 2 of 3 classes: correct the label, or "
         "give the right number of classes"},
        {-1, 3, "record 1 has label -1, outside 0 .. 2 of 3 classes: correct the label, since classes count from 0"},
        {-1, 0, "record 1 has label -1, outside 0 .. 2 of 3 classes: correct the label, since classes count from 0"},
        {INT32_MAX, 0, "record 1 has label 2147483647"},
        {INT32_MIN, 0, "record 1 has label -2147483648"},
    };
    tw_dataset *dataset;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int32_t wrong[COUNT] = {0, cases[i].label, 1, 2};
        assert_fails(dataset,
                     tw_dataset_create_from(&dataset, *state, TW_U8, bytes, COUNT, CHANNELS, HEIGHT, WIDTH, wrong,
                                            TW_OPTIONS(dataset, .classes = cases[i].classes)),
                     TW_ERROR_LABEL, cases[i].text);
    }
    assert_ok(create(&dataset, *state, NULL)); /* the context works on */
    tw_dataset_destroy(dataset);
}

static void wrong_arguments(void **state) {
    tw_dataset *dataset;
    assert_fails(dataset, tw_dataset_create_from(&dataset, *state, TW_F16, bytes, 1, 1, 1, 1, labels, NULL),
                 TW_ERROR_ARGUMENT, "f16");
    assert_fails(dataset, tw_dataset_create_from(&dataset, *state, TW_U8, bytes, 0, 1, 1, 1, labels, NULL),
                 TW_ERROR_ARGUMENT, "0 samples of 1 x 1 x 1");
    assert_fails(dataset, tw_dataset_create_from(&dataset, *state, TW_U8, bytes, 1, 1, -5, 1, labels, NULL),
                 TW_ERROR_ARGUMENT, "1 x -5 x 1");
    assert_fails(dataset, tw_dataset_create_from(&dataset, *state, TW_U8, NULL, 1, 1, 1, 1, labels, NULL),
                 TW_ERROR_ARGUMENT, "images is NULL");
    assert_fails(dataset, tw_dataset_create_from(&dataset, *state, TW_U8, bytes, 1, 1, 1, 1, NULL, NULL),
                 TW_ERROR_ARGUMENT, "labels is NULL");
    assert_fails(dataset,
                 tw_dataset_create_from(&dataset, *state, TW_F32, floats, INT64_MAX, INT32_MAX, INT32_MAX, INT32_MAX,
                                        labels, NULL),
                 TW_ERROR_OVERFLOW, "images");
    assert_int_equal(tw_dataset_create_from(NULL, *state, TW_U8, bytes, 1, 1, 1, 1, labels, NULL), TW_ERROR_ARGUMENT);
    assert_int_equal(tw_dataset_count(NULL), 0);
    assert_string_equal(tw_dataset_get_class_name(NULL, 0), "");
}

static void subsets(void **state) {
    static const char *const names[] = {"cat", "dog", "gnu"};
    static const int64_t chosen[] = {3, 1, 1};
    tw_dataset *dataset, *subset;
    assert_ok(create(&dataset, *state, TW_OPTIONS(dataset, .classes = 3, .class_names = names)));
    assert_ok(tw_dataset_create_subset(&subset, dataset, chosen, 3));
    const int64_t outside[] = {0, 4}, negative[] = {-1};
    tw_dataset *wrong;
    assert_fails(wrong, tw_dataset_create_subset(&wrong, dataset, outside, 2), TW_ERROR_ARGUMENT,
                 "indices[1] is 4, outside 0 .. 3");
    assert_fails(wrong, tw_dataset_create_subset(&wrong, dataset, negative, 1), TW_ERROR_ARGUMENT, "indices[0] is -1");
    assert_fails(wrong, tw_dataset_create_subset(&wrong, dataset, chosen, 0), TW_ERROR_ARGUMENT, "0 indices");
    tw_dataset_destroy(dataset); /* the subset is a copy */

    assert_int_equal(tw_dataset_count(subset), 3);
    assert_int_equal(tw_dataset_get_classes(subset), 3);
    assert_string_equal(tw_dataset_get_class_name(subset, 1), "dog");
    const uint8_t *images = tw_dataset_get_images(subset);
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(images + i * SAMPLE, bytes + chosen[i] * SAMPLE, SAMPLE);
        assert_int_equal(tw_dataset_get_labels(subset)[i], labels[chosen[i]]);
    }
    tw_dataset_destroy(subset);
}

/* Expected: numpy's x.mean((0, 2, 3)) and x.std((0, 2, 3)) in float64, bytes divided by 255. */
static void measures(void **state) {
    float mean[CHANNELS], deviation[CHANNELS];
    tw_dataset *dataset;
    assert_ok(create(&dataset, *state, NULL));
    assert_ok(tw_dataset_measure(dataset, mean, deviation));
    assert_float_equal(mean[0], 0.477124183f, 1e-7f);
    assert_float_equal(mean[1], 0.511895425f, 1e-7f);
    assert_float_equal(deviation[0], 0.292231571f, 1e-7f);
    assert_float_equal(deviation[1], 0.288343732f, 1e-7f);
    tw_dataset_destroy(dataset);

    assert_ok(tw_dataset_create_from(&dataset, *state, TW_F32, floats, COUNT, CHANNELS, HEIGHT, WIDTH, labels, NULL));
    assert_ok(tw_dataset_measure(dataset, mean, deviation));
    assert_float_equal(mean[0], 23.416666667f, 1e-5f);
    assert_float_equal(mean[1], 25.633333333f, 1e-5f);
    assert_float_equal(deviation[0], 18.629762627f, 1e-5f);
    assert_float_equal(deviation[1], 18.381912910f, 1e-5f);
    assert_int_equal(tw_dataset_measure(dataset, NULL, deviation), TW_ERROR_ARGUMENT);
    tw_dataset_destroy(dataset);
}

static void constant_and_broken_channels(void **state) {
    float pixels[COUNT * SAMPLE], mean[CHANNELS], deviation[CHANNELS];
    tw_dataset *dataset;
    for (int i = 0; i < COUNT * SAMPLE; i++) pixels[i] = 0.1f;
    assert_ok(tw_dataset_create_from(&dataset, *state, TW_F32, pixels, COUNT, CHANNELS, HEIGHT, WIDTH, labels, NULL));
    assert_ok(tw_dataset_measure(dataset, mean, deviation));
    assert_true(mean[1] == 0.1f && deviation[1] == 0);
    tw_dataset_destroy(dataset);

    const uint32_t quiet_nan = 0x7FC00000;
    memcpy(&pixels[2 * SAMPLE + SAMPLE / 2], &quiet_nan, sizeof quiet_nan);
    assert_ok(tw_dataset_create_from(&dataset, *state, TW_F32, pixels, COUNT, CHANNELS, HEIGHT, WIDTH, labels, NULL));
    assert_int_equal(tw_dataset_measure(dataset, mean, deviation), TW_ERROR_NUMERIC);
    assert_non_null(strstr(tw_last_error(), "channel 1 of sample 2"));
    tw_dataset_destroy(dataset);
}

static bool fail_one(void *user, uint64_t index, size_t size) {
    (void)size;
    return index == *(const uint64_t *)user;
}

static void failing_allocations(void **state) {
    tw_context *context = *state;
    static const int64_t chosen[] = {0, 2};
    tw_dataset *dataset, *subset;
    assert_ok(create(&dataset, context, NULL));
    const uint64_t blocks = twi_memory_get_stats(context->memory).blocks;
    tw_status status = TW_ERROR_OUT_OF_MEMORY;
    uint64_t failing = 0;
    for (; status; failing++) {
        assert_true(failing < 100);
        twi_memory_set_hook(context->memory, fail_one, &failing);
        status = tw_dataset_create_subset(&subset, dataset, chosen, 2);
        twi_memory_set_hook(context->memory, NULL, NULL);
        assert_true(status == TW_OK || (status == TW_ERROR_OUT_OF_MEMORY && !subset));
        if (status) assert_int_equal(twi_memory_get_stats(context->memory).blocks, blocks);
    }
    assert_true(failing > 4);
    tw_dataset_destroy(subset);
    tw_dataset_destroy(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_copied),
        cmocka_unit_test(classes_and_names),
        cmocka_unit_test(labels_outside_the_range),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(subsets),
        cmocka_unit_test(measures),
        cmocka_unit_test(constant_and_broken_channels),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests_name("dataset", tests, open_context, close_context);
}

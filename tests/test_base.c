/* The base module: failures, options, context, memory, shapes, text. Numbers are in test_half.c and test_philox.c, the
 * worker pool in test_threads.c. */
#include "base/context.h"
#include "base/options.h"
#include "base/shape.h"
#include "base/text.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void assert_error_says(const char *part) {
    if (!strstr(tw_last_error(), part)) fail_msg("\"%s\" does not say \"%s\"", tw_last_error(), part);
}

/* --- status --- */

static void test_status_names(void **state) {
    (void)state;
    assert_string_equal(tw_status_name(TW_OK), "TW_OK");
    assert_string_equal(tw_status_name(TW_ERROR_SHAPE), "TW_ERROR_SHAPE");
    assert_string_equal(tw_status_name(TW_STOPPED), "TW_STOPPED");
    assert_string_equal(tw_status_name(TW_ERROR_INTERNAL), "TW_ERROR_INTERNAL");
    assert_string_equal(tw_status_name((tw_status)15), "unknown tw_status");
    assert_string_equal(tw_status_name((tw_status)-1), "unknown tw_status");
    assert_string_equal(tw_version(), "0.1.0");
}

static tw_status fails(int value) { return TWI_FAIL(TW_ERROR_LABEL, "sample %d: label %s", 3, value ? "7" : "0"); }

static tw_status passes_on(int value) {
    TWI_TRY(fails(value));
    return TW_OK;
}

static void *error_of_another_thread(void *argument) {
    (void)argument;
    bool clean = !*tw_last_error();
    fails(0);
    return clean ? NULL : "not clean";
}

static void test_error_text(void **state) {
    (void)state;
    tw_clear_error();
    assert_string_equal(tw_last_error(), "");
    assert_int_equal(passes_on(7), TW_ERROR_LABEL);
    assert_string_equal(tw_last_error(), "sample 3: label 7");
    assert_int_equal(twi_fail_within(TW_ERROR_LABEL, "%s", "mnist.idx"), TW_ERROR_LABEL);
    assert_string_equal(tw_last_error(), "mnist.idx: sample 3: label 7");
    assert_int_equal(TWI_FAIL(TW_ERROR_FILE, "again: %s", tw_last_error()), TW_ERROR_FILE);
    assert_string_equal(tw_last_error(), "again: mnist.idx: sample 3: label 7");

    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, error_of_another_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_null(result);
    assert_string_equal(tw_last_error(), "again: mnist.idx: sample 3: label 7");
    tw_clear_error();
    assert_string_equal(tw_last_error(), "");
}

static void test_long_error_texts_are_cut(void **state) {
    (void)state;
    char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(TWI_FAIL(TW_ERROR_FILE, "%s", longer), TW_ERROR_FILE);
    assert_int_equal(strlen(tw_last_error()), 2047);
    twi_fail_within(TW_ERROR_FILE, "here");
    assert_int_equal(strlen(tw_last_error()), 2047);
    assert_memory_equal(tw_last_error(), "here: xxx", 9);
    twi_fail_within(TW_ERROR_FILE, "%s", longer);
    assert_int_equal(strlen(tw_last_error()), 2047);
}

/* --- options and context --- */

typedef struct old_options {
    size_t size;
    int threads;
    int padding;
} old_options;

static void test_options_of_other_versions(void **state) {
    (void)state;
    tw_context_options o;
    memset(&o, 0xFF, sizeof o);
    assert_int_equal(twi_options_read(&o, sizeof o, NULL, "test"), TW_OK);
    assert_true(o.size == sizeof o && o.threads == 0 && o.memory_limit == 0 && !o.log);

    memset(&o, 0xFF, sizeof o);
    const old_options old = {.size = sizeof old, .threads = 3};
    assert_int_equal(twi_options_read(&o, sizeof o, &old, "test"), TW_OK);
    assert_true(o.size == sizeof o && o.threads == 3 && o.memory_limit == 0 && !o.memory_hook_user);

    struct {
        tw_context_options known;
        int later[8];
    } newer = {.known = {.size = sizeof newer, .threads = 5, .memory_limit = 77}, .later = {1, 2}};
    struct {
        tw_context_options o;
        char guard;
    } room = {.guard = 'g'};
    assert_int_equal(twi_options_read(&room.o, sizeof room.o, &newer, "test"), TW_OK);
    assert_true(room.o.size == sizeof room.o && room.o.threads == 5 && room.o.memory_limit == 77 && room.guard == 'g');

    const size_t absurd[] = {0, 7, SIZE_MAX, (size_t)1 << 30};
    for (size_t i = 0; i < COUNT(absurd); i++) {
        tw_context_options bad = {.size = absurd[i], .threads = 2};
        assert_int_equal(twi_options_read(&o, sizeof o, &bad, "tw_thing_create"), TW_ERROR_ARGUMENT);
        assert_error_says("tw_thing_create");
        assert_error_says("TW_OPTIONS");
    }
}

static void test_context_without_a_device(void **state) {
    (void)state;
    tw_context *context;
    assert_int_equal(twi_context_open(&context, NULL), TW_OK);
    assert_int_equal(tw_context_get_threads(context), twi_processor_count());
    assert_string_equal(tw_context_get_device(context), "");
    twi_context_close(context);

    assert_int_equal(twi_context_open(&context, TW_OPTIONS(context, .threads = 3, .memory_limit = 1 << 20)), TW_OK);
    assert_int_equal(tw_context_get_threads(context), 3);
    assert_int_equal(tw_context_get_memory(context).limit, 1 << 20);
    tw_context_set_memory_limit(context, 1 << 19);
    assert_int_equal(tw_context_get_memory(context).limit, 1 << 19);
    assert_true(tw_context_get_memory(context).blocks > 0);
    twi_context_close(context);
    twi_context_close(NULL);

    const int threads[] = {-1, 1025};
    for (size_t i = 0; i < COUNT(threads); i++) {
        assert_int_equal(twi_context_open(&context, TW_OPTIONS(context, .threads = threads[i])), TW_ERROR_ARGUMENT);
        assert_null(context);
    }
    assert_int_equal(twi_context_open(&context, &(tw_context_options){.threads = 1}), TW_ERROR_ARGUMENT);
    assert_int_equal(twi_context_open(&context, TW_OPTIONS(context, .memory_limit = 16)), TW_ERROR_OUT_OF_MEMORY);
    assert_null(context);
}

typedef struct log_record {
    int lines;
    tw_log_level level;
    char text[64];
} log_record;

static void note_line(void *user, tw_log_level level, const char *message) {
    log_record *r = user;
    r->lines++;
    r->level = level;
    snprintf(r->text, sizeof r->text, "%s", message);
}

static void test_log_levels(void **state) {
    (void)state;
    log_record r = {0};
    twi_log log = {.fn = note_line, .user = &r, .level = TW_LOG_INFO};
    twi_log_line(&log, TW_LOG_INFO, "epoch %d", 4);
    assert_int_equal(r.lines, 1);
    assert_int_equal(r.level, TW_LOG_INFO);
    assert_string_equal(r.text, "epoch 4");
    twi_log_line(&log, TW_LOG_DEBUG, "no");
    twi_log_line(NULL, TW_LOG_ERROR, "no");
    twi_log_line(&(twi_log){.level = TW_LOG_DEBUG}, TW_LOG_ERROR, "no");
    assert_int_equal(r.lines, 1);
}

/* --- memory --- */

static int setup_memory(void **state) { return twi_memory_create((twi_memory **)state, 0, NULL, NULL) != TW_OK; }

static int teardown_memory(void **state) {
    tw_memory_stats left = twi_memory_get_stats(*state);
    twi_memory_destroy(*state);
    return left.blocks || left.bytes;
}

static bool all_zero(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

static void test_blocks_are_zeroed_aligned_and_counted(void **state) {
    twi_memory *memory = *state;
    const size_t sizes[] = {1, 63, 64, 4097, ((size_t)2 << 20) - 1, (size_t)2 << 20, ((size_t)5 << 20) + 3};
    for (int round = 0; round < 2; round++) { /* the second round gets used memory back */
        unsigned char *blocks[COUNT(sizes)];
        size_t total = 0;
        for (size_t i = 0; i < COUNT(sizes); i++) {
            assert_int_equal(twi_get(memory, &blocks[i], sizes[i], 1, "test"), TW_OK);
            assert_int_equal((uintptr_t)blocks[i] % (sizes[i] < ((size_t)2 << 20) ? 64 : (size_t)2 << 20), 0);
            assert_true(all_zero(blocks[i], sizes[i]));
            memset(blocks[i], 0xAA, sizes[i]);
            total += sizes[i];
            tw_memory_stats stats = twi_memory_get_stats(memory);
            assert_int_equal(stats.bytes, total);
            assert_int_equal(stats.blocks, i + 1);
            assert_int_equal(stats.allocations, COUNT(sizes) * (size_t)round + i + 1);
        }
        for (size_t i = 0; i < COUNT(sizes); i++) twi_put(memory, blocks[i]);
        tw_memory_stats stats = twi_memory_get_stats(memory);
        assert_int_equal(stats.peak, total);
        assert_true(stats.bytes == 0 && stats.blocks == 0);
    }
    twi_put(memory, NULL);
}

static void test_empty_and_overflowing_requests(void **state) {
    char *block;
    assert_int_equal(twi_get(*state, &block, 0, 8, "test"), TW_OK);
    assert_non_null(block);
    assert_int_equal(twi_memory_get_stats(*state).bytes, 1);
    twi_put(*state, block);
    assert_int_equal(twi_get(*state, &block, SIZE_MAX / 4, 5, "weights"), TW_ERROR_OVERFLOW);
    assert_null(block);
    assert_error_says("weights");

    size_t size;
    assert_int_equal(twi_mul_size(&size, SIZE_MAX / 3, 3, "test"), TW_OK);
    assert_int_equal(size, SIZE_MAX);
    assert_int_equal(twi_mul_size(&size, SIZE_MAX / 3 + 1, 3, "test"), TW_ERROR_OVERFLOW);
    assert_int_equal(twi_mul_size(&size, SIZE_MAX, 0, "test"), TW_OK);
    assert_int_equal(size, 0);
    assert_int_equal(twi_add_size(&size, SIZE_MAX - 2, 2, "test"), TW_OK);
    assert_int_equal(twi_add_size(&size, SIZE_MAX - 2, 3, "test"), TW_ERROR_OVERFLOW);
}

static void test_cap(void **state) {
    char *a, *b = (char *)1;
    twi_memory_set_limit(*state, 12000);
    assert_int_equal(twi_get(*state, &a, 3, 3000, "test"), TW_OK);
    assert_int_equal(twi_get(*state, &b, 3001, 1, "activation arena"), TW_ERROR_OUT_OF_MEMORY);
    assert_null(b);
    assert_error_says("activation arena");
    assert_error_says("3001 bytes (3.00 kB) asked, 9000 held, cap 12000");
    assert_error_says("tw_context_set_memory_limit");
    assert_int_equal(twi_get(*state, &b, 3000, 1, "test"), TW_OK);
    assert_int_equal(twi_memory_get_stats(*state).peak, 12000);
    twi_put(*state, b);
    twi_memory_set_limit(*state, 5000); /* below what is held, which stays */
    a[8999] = 1;
    assert_int_equal(twi_get(*state, &b, 1, 1, "test"), TW_ERROR_OUT_OF_MEMORY);
    twi_memory_set_limit(*state, 0);
    assert_int_equal(twi_get(*state, &b, 1, 1, "test"), TW_OK);
    twi_put(*state, b);
    twi_put(*state, a);
    assert_int_equal(twi_memory_get_stats(*state).peak, 12000);
}

/* Sanitizers by default end the program where the system would only refuse. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }

static void test_the_systems_refusal(void **state) {
    char *block = (char *)1;
    assert_int_equal(twi_get(*state, &block, (size_t)1 << 50, 1, "weights"), TW_ERROR_OUT_OF_MEMORY);
    assert_null(block);
    assert_error_says("refused by the system");
    assert_int_equal(twi_get(*state, &block, SIZE_MAX, 1, "weights"), TW_ERROR_OUT_OF_MEMORY);
    assert_int_equal(twi_memory_get_stats(*state).peak, 0);
}

static bool fail_the_third(void *user, uint64_t index, size_t bytes) {
    *(size_t *)user += bytes;
    return index == 2;
}

static void test_hook(void **state) {
    char *blocks[3];
    for (int round = 0; round < 2; round++) { /* setting the hook starts the index again */
        size_t asked = 0;
        twi_memory_set_hook(*state, fail_the_third, &asked);
        assert_int_equal(twi_get(*state, &blocks[0], 10, 1, "test"), TW_OK);
        assert_int_equal(twi_get(*state, &blocks[1], 20, 1, "test"), TW_OK);
        assert_int_equal(twi_get(*state, &blocks[2], 30, 1, "momentum"), TW_ERROR_OUT_OF_MEMORY);
        assert_error_says("momentum");
        assert_error_says("memory hook");
        assert_int_equal(asked, 60);
        assert_int_equal(twi_memory_get_stats(*state).bytes, 30);
        twi_put(*state, blocks[0]);
        twi_put(*state, blocks[1]);
    }
    twi_memory_set_hook(*state, NULL, NULL);
}

static void test_grow(void **state) {
    unsigned char *block = NULL;
    assert_int_equal(twi_grow(*state, &block, 10, 1, "test"), TW_OK);
    memset(block, 7, 10);
    assert_int_equal(twi_grow(*state, &block, 1000, 4, "test"), TW_OK);
    for (int i = 0; i < 10; i++) assert_int_equal(block[i], 7);
    assert_true(all_zero(block + 10, 3990));
    assert_int_equal(twi_memory_get_stats(*state).bytes, 4000);
    unsigned char *same = block;
    assert_int_equal(twi_grow(*state, &block, 3000, 1, "test"), TW_OK); /* large enough already */
    assert_ptr_equal(block, same);
    twi_memory_set_limit(*state, 5000);
    assert_int_equal(twi_grow(*state, &block, 4001, 1, "test"), TW_ERROR_OUT_OF_MEMORY);
    assert_ptr_equal(block, same);
    assert_int_equal(block[9], 7);
    twi_memory_set_limit(*state, 0);
    twi_put(*state, block);

    char *copy;
    assert_int_equal(twi_get_text(*state, &copy, "conv1"), TW_OK);
    assert_string_equal(copy, "conv1");
    twi_put(*state, copy);
}

/* --- shapes, element types, text --- */

static void test_shapes(void **state) {
    (void)state;
    char text[TWI_SHAPE_TEXT];
    twi_shape s = {4, {64, 3, 32, 16}};
    assert_int_equal(twi_shape_check(&s, "test"), TW_OK);
    assert_int_equal(twi_shape_count(&s), 98304);
    assert_int_equal(twi_shape_count_from(&s, 2), 512);
    assert_int_equal(twi_shape_count_from(&s, 4), 1);
    assert_string_equal(twi_shape_text(&s, text), "[64, 3, 32, 16]");
    assert_string_equal(twi_shape_text(&(twi_shape){0, {0}}, text), "[]");
    assert_int_equal(twi_shape_count(&(twi_shape){0, {0}}), 1);
    const twi_shape widest = {6, {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}};
    assert_int_equal(strlen(twi_shape_text(&widest, text)), 6 * 20 + 5 * 2 + 2);

    assert_true(twi_shape_equal(&s, &(twi_shape){4, {64, 3, 32, 16}}));
    assert_false(twi_shape_equal(&s, &(twi_shape){3, {64, 3, 32}}));
    assert_false(twi_shape_equal(&s, &(twi_shape){4, {64, 3, 32, 17}}));
}

static void test_shape_check(void **state) {
    (void)state;
    const int64_t big = (int64_t)1 << 30;
    const struct {
        twi_shape shape;
        tw_status status;
    } rows[] = {
        {{7, {1}}, TW_ERROR_ARGUMENT},
        {{-1, {1}}, TW_ERROR_ARGUMENT},
        {{2, {3, -1}}, TW_ERROR_ARGUMENT},
        {{2, {big, big}}, TW_ERROR_OVERFLOW},
        {{2, {big, big / 2}}, TW_OK},            /* 2^62 bytes of i64 */
        {{3, {big, 0, big}}, TW_ERROR_OVERFLOW}, /* empty, but its strides would not fit */
        {{3, {1 << 20, 1 << 20, 1 << 20}}, TW_ERROR_OVERFLOW},
        {{1, {INT64_MAX}}, TW_ERROR_OVERFLOW},
        {{1, {INT64_MAX / 8}}, TW_OK},
        {{2, {0, 5}}, TW_OK},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(twi_shape_check(&rows[i].shape, "conv1.weight"), rows[i].status);
        if (rows[i].status) assert_error_says("conv1.weight");
    }
}

static void test_dtypes(void **state) {
    (void)state;
    const struct {
        size_t size;
        const char *name;
    } rows[] = {{4, "f32"}, {2, "f16"}, {2, "bf16"}, {4, "i32"}, {8, "i64"}, {1, "u8"}, {0, "?"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(tw_dtype_size((tw_dtype)i), rows[i].size);
        assert_string_equal(tw_dtype_name((tw_dtype)i), rows[i].name);
    }
    assert_int_equal(tw_dtype_size((tw_dtype)-1), 0);
}

static void test_text(void **state) {
    twi_text text;
    char *result;
    twi_text_init(&text, *state);
    for (int i = 0; i < 1000; i++) twi_text_add(&text, "%d,", i % 10);
    assert_int_equal(twi_text_take(&text, &result), TW_OK);
    assert_int_equal(strlen(result), 2000);
    assert_string_equal(result + 1994, "7,8,9,");
    assert_in_range(twi_memory_get_stats(*state).allocations, 1, 10); /* it grows by doubling */
    twi_put(*state, result);

    assert_int_equal(twi_text_take(&text, &result), TW_OK); /* taken: starts empty again */
    assert_string_equal(result, "");
    twi_put(*state, result);

    twi_memory_set_limit(*state, 1000);
    for (int i = 0; i < 1000; i++) twi_text_add(&text, "%d,", i % 10);
    twi_memory_set_limit(*state, 0);
    twi_text_add(&text, "after a gap");
    assert_int_equal(twi_text_take(&text, &result), TW_ERROR_OUT_OF_MEMORY);
    assert_null(result);
    twi_text_add(&text, "left behind");
    twi_text_free(&text);
}

static void test_quantities(void **state) {
    (void)state;
    const struct {
        double value;
        const char *unit, *text;
    } rows[] = {
        {0, "B", "0 B"},          {12, "B", "12 B"},       {999, "B", "999 B"},        {999.6, "B", "1.00 kB"},
        {1000, "B", "1.00 kB"},   {9996, "B", "10.0 kB"},  {12345678, "B", "12.3 MB"}, {1.21e9, "FLOP", "1.21 GFLOP"},
        {123e15, "B", "123 PB"},  {1.5, "s", "1.50 s"},    {0.0125, "s", "12.5 ms"},   {3e-6, "s", "3.00 us"},
        {-2500, "B", "-2.50 kB"}, {0.9999, "s", "1.00 s"}, {INFINITY, "B", "inf EB"},
    };
    char text[TWI_QUANTITY_TEXT];
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(twi_quantity(rows[i].value, rows[i].unit, text), rows[i].text);
}

#define TEST_MEMORY(name) cmocka_unit_test_setup_teardown(name, setup_memory, teardown_memory)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_error_text),
        cmocka_unit_test(test_long_error_texts_are_cut),
        cmocka_unit_test(test_options_of_other_versions),
        cmocka_unit_test(test_context_without_a_device),
        cmocka_unit_test(test_log_levels),
        TEST_MEMORY(test_blocks_are_zeroed_aligned_and_counted),
        TEST_MEMORY(test_empty_and_overflowing_requests),
        TEST_MEMORY(test_cap),
        TEST_MEMORY(test_the_systems_refusal),
        TEST_MEMORY(test_hook),
        TEST_MEMORY(test_grow),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_shape_check),
        cmocka_unit_test(test_dtypes),
        TEST_MEMORY(test_text),
        cmocka_unit_test(test_quantities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

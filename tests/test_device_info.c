/* What a context tells of its device, on whichever there is. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "check_device.h"

#include <stdio.h>
#include <talweg/device.h>
#include <unistd.h>

static tw_context *context;

static int set_up(void **state) {
    (void)state;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 3)));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    tw_context_destroy(context);
    return 0;
}

static void test_the_cpu(void **state) {
    (void)state;
    tw_device_info info = TW_DEVICE_INFO_INIT;
    CHECK_OK(tw_context_get_device_info(context, &info));
    assert_string_equal(info.backend, "cpu");
    assert_int_equal(info.size, sizeof info);
    assert_int_equal(info.processors, 3);
    assert_int_equal(info.ordinal + info.capability_major + info.capability_minor, 0);
    assert_int_equal(info.driver_version + info.runtime_version + info.cublaslt_version + info.cudnn_version, 0);
    assert_non_null(strstr(info.code, "oneDNN"));
    assert_true(info.name[0] != ' ' && strlen(info.name) < sizeof info.name);
    assert_true(info.free_bytes > 0 && info.free_bytes <= info.memory_bytes);
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    assert_true(info.memory_bytes <= memory && info.memory_bytes > memory / 100); /* a container may show less */
}

/* No figure is right or wrong on a machine that others use too: only that they are there, and go together. */
static void test_the_ceilings_of_the_cpu(void **state) {
    (void)state;
    tw_ceilings ceilings = TW_CEILINGS_INIT;
    CHECK_OK(tw_context_measure(context, 1, &ceilings));
    assert_int_equal(ceilings.size, sizeof ceilings);
    assert_int_equal(ceilings.threads, 1);
    assert_true(ceilings.flops > 1e7 && ceilings.flops < 1e13 && ceilings.bf16_flops >= 0);
    assert_true(ceilings.cache_bandwidth > 1e7 && ceilings.memory_bandwidth > 1e6);
    CHECK_OK(tw_context_measure(context, 0, &ceilings));
    assert_int_equal(ceilings.threads, 3);
}

static void test_what_is_not_measured(void **state) {
    (void)state;
    tw_ceilings ceilings = TW_CEILINGS_INIT;
    const size_t held = tw_context_get_memory(context).bytes;
    CHECK_FAILS(tw_context_measure(NULL, 1, &ceilings), TW_ERROR_ARGUMENT, "context is NULL");
    CHECK_FAILS(tw_context_measure(context, 1, NULL), TW_ERROR_ARGUMENT, "out is NULL");
    CHECK_FAILS(tw_context_measure(context, 4, &ceilings), TW_ERROR_ARGUMENT, "threads is 4");
    CHECK_FAILS(tw_context_measure(context, -1, &ceilings), TW_ERROR_ARGUMENT, "threads is -1");
    tw_context_set_memory_limit(context, held + ((size_t)16 << 20));
    CHECK_FAILS(tw_context_measure(context, 1, &ceilings), TW_ERROR_OUT_OF_MEMORY, "memory to measure");
    assert_int_equal(tw_context_get_memory(context).bytes, held);
    tw_context_set_memory_limit(context, 0);
    if (check_device() && strcmp(check_device(), "cpu") != 0) {
        tw_context *gpu;
        CHECK_OK(tw_context_create(&gpu, check_device(), NULL));
        CHECK_FAILS(tw_context_measure(gpu, 1, &ceilings), TW_ERROR_UNSUPPORTED, "is not measured");
        tw_context_destroy(gpu);
    }
}

static void test_a_gpu(void **state) {
    (void)state;
    if (!check_device()) skip();
    tw_context *gpu;
    tw_device_info info = TW_DEVICE_INFO_INIT;
    CHECK_OK(tw_context_create(&gpu, check_device(), NULL));
    CHECK_OK(tw_context_get_device_info(gpu, &info));
    assert_string_equal(info.backend, "cuda");
    assert_string_equal(tw_context_get_device(gpu), "cuda:0");
    assert_int_equal(info.ordinal, 0);
    assert_true(*info.name && info.capability_major >= 5 && info.capability_minor <= 9 && info.processors > 0);
    assert_true(info.free_bytes <= info.memory_bytes && info.memory_bytes > (size_t)1 << 20);
    assert_true(info.driver_version >= 12000 && info.runtime_version >= 12000);
    assert_int_equal(info.cublaslt_version / 10000, info.runtime_version / 1000); /* they come with each other */
    assert_true(info.cudnn_version == 0 || info.cudnn_version >= 90000);
    assert_true(*info.code);
    tw_context_destroy(gpu);
}

static void test_the_instruction_set_is_the_one_in_use(void **state) {
    (void)state;
    tw_context *lowered;
    tw_device_info info = TW_DEVICE_INFO_INIT;
    assert_int_equal(setenv("TALWEG_CPU", "specification", 1), 0);
    CHECK_OK(tw_context_create(&lowered, "cpu", NULL));
    assert_int_equal(unsetenv("TALWEG_CPU"), 0);
    CHECK_OK(tw_context_get_device_info(lowered, &info));
    assert_memory_equal(info.code, "specification, ", 15);
    tw_context_destroy(lowered);
}

static void test_a_shorter_struct_is_not_overrun(void **state) {
    (void)state;
    tw_device_info older;
    memset(&older, 0x5A, sizeof older);
    older.size = offsetof(tw_device_info, ordinal);
    CHECK_OK(tw_context_get_device_info(context, &older));
    assert_string_equal(older.backend, "cpu");
    assert_int_equal(older.size, offsetof(tw_device_info, ordinal));
    const unsigned char *bytes = (const unsigned char *)&older;
    for (size_t i = older.size; i < sizeof older; i++) assert_int_equal(bytes[i], 0x5A);
}

static void test_refused(void **state) {
    (void)state;
    tw_device_info info = {.processors = 7};
    CHECK_FAILS(tw_context_get_device_info(context, &info), TW_ERROR_ARGUMENT, "size field is 0");
    assert_int_equal(info.processors, 7);
    CHECK_FAILS(tw_context_get_device_info(NULL, &info), TW_ERROR_ARGUMENT, "context is NULL");
    CHECK_FAILS(tw_context_get_device_info(context, NULL), TW_ERROR_ARGUMENT, "out is NULL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cpu),
        cmocka_unit_test(test_the_ceilings_of_the_cpu),
        cmocka_unit_test(test_what_is_not_measured),
        cmocka_unit_test(test_a_gpu),
        cmocka_unit_test(test_the_instruction_set_is_the_one_in_use),
        cmocka_unit_test(test_a_shorter_struct_is_not_overrun),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

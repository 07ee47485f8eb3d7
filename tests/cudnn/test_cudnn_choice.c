/* Which of cuDNN's engines is taken, what is remembered of it, and what happens when calls fail. */
#define _XOPEN_SOURCE 700
#include "base/philox.h"
#include "check.h"
#include "cudnn_stand_in.h"
#include "dnn_device.h"
#include "emu.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const conv_check_case conv = {2, 3, 5, 4, 4, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}};

static dnn_run run_of(tw_dtype dtype) {
    return (dnn_run){.c = &conv, .kernel = "conv2d.forward_bias_relu", .dtype = dtype};
}

static void check_engine(const dnn_run *run, int engine) {
    char start[16];
    snprintf(start, sizeof start, "cudnn:%d.", engine);
    if (strncmp(run->plan, start, strlen(start)) != 0) fail_msg("%s was taken, not engine %d", run->plan, engine);
}

/* ---- rules ---- */

static void engines_that_break_the_rules_are_passed_over(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, NULL));
    dnn_run f32 = run_of(TW_F32), f16 = run_of(TW_F16), bf16 = run_of(TW_BF16);
    CHECK_OK(dnn_run_and_compare(&d, &f32));
    check_engine(&f32, 4);                               /* not 1: tensor cores would read TF32 */
    assert_int_equal(f32.workspace_bytes, 131 + 64 * 7); /* with the setting that was proposed */
    CHECK_OK(dnn_run_and_compare(&d, &f16));
    check_engine(&f16, 1);
    CHECK_OK(dnn_run_and_compare(&d, &bf16));
    check_engine(&bf16, 1);
    dnn_device_close(&d);
}

static void the_fallback_and_nothing_at_all(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, NULL));
    dnn_run run = run_of(TW_F16);
    cudnn_stand_in_retire(5);
    CHECK_OK(dnn_run_and_compare(&d, &run));
    check_engine(&run, 5);
    cudnn_stand_in_retire(6); /* what is remembered is gone too */
    CHECK_FAILS(dnn_run_and_compare(&d, &run), TW_ERROR_UNSUPPORTED, "no candidate is left");
    dnn_device_close(&d);
}

static void the_workspace_limit_is_kept(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, &(twi_cuda_dnn_options){.workspace_limit = 100, .cache_folder = ""}));
    dnn_run run = run_of(TW_F32);
    CHECK_OK(dnn_run_and_compare(&d, &run));
    check_engine(&run, 5);
    dnn_device_close(&d);
    CHECK_OK(
        dnn_device_open(&d, NULL, &(twi_cuda_dnn_options){.workspace_limit = (size_t)2 << 30, .cache_folder = ""}));
    CHECK_OK(dnn_prepare(&d, &run));
    check_engine(&run, 2);
    dnn_device_close(&d);
}

static void a_trial_takes_one_that_keeps_the_rules(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, &(twi_cuda_dnn_options){.trial = true, .cache_folder = ""}));
    const uint64_t before = emu_count_calls("cudnnBackendExecute");
    dnn_run run = run_of(TW_F32);
    CHECK_OK(dnn_run_and_compare(&d, &run));
    if (strncmp(run.plan, "cudnn:5.", 8) != 0) check_engine(&run, 4);
    assert_int_equal(emu_count_calls("cudnnBackendExecute") - before, 2 * 4 + 1); /* two candidates, four runs each */
    dnn_device_close(&d);
}

/* ---- the device ---- */

static void another_major_version_is_refused(void **state) {
    (void)state;
    dnn_device d;
    cudnn_stand_in_set_version(8907);
    CHECK_FAILS(dnn_device_open(&d, NULL, NULL), TW_ERROR_DEVICE, "version 8907 is installed");
    dnn_device_close(&d);
}

static void a_described_device_plans(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, NULL));
    twi_cuda_dnn *here = d.device.dnn, *described;
    CHECK_FAILS(twi_cuda_dnn_open_described(&described, &d.device, "{}", NULL), TW_ERROR_UNSUPPORTED, "deviceVer");
    assert_null(described);
    CHECK_OK(twi_cuda_dnn_open_described(&described, &d.device, "{\"deviceVer\":900}", NULL));
    d.device.dnn = described;
    dnn_run run = run_of(TW_F32);
    CHECK_OK(dnn_prepare(&d, &run));
    check_engine(&run, 4);
    twi_cuda_dnn_close(described);
    d.device.dnn = here;
    dnn_device_close(&d);
}

static void a_lost_device_is_known(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, NULL));
    dnn_run run = run_of(TW_F32);
    run.broken = true;
    CHECK_FAILS(dnn_run_and_compare(&d, &run), TW_ERROR_DEVICE, "cudnnBackendExecute");
    assert_true(d.device.lost);
    dnn_device_close(&d);
}

/* ---- the cache ---- */

typedef struct folder {
    char path[64], file[512];
} folder;

static void folder_make(folder *f) {
    snprintf(f->path, sizeof f->path, "/tmp/talweg-choices-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

static void folder_find_file(folder *f) {
    DIR *list = opendir(f->path);
    assert_non_null(list);
    int files = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(f->file, sizeof f->file, "%s/%s", f->path, entry->d_name);
        files++;
    }
    closedir(list);
    assert_int_equal(files, 1);
}

static void folder_remove(folder *f) {
    unlink(f->file);
    assert_int_equal(rmdir(f->path), 0);
}

static void run_with(const folder *f, int engine) {
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, &(twi_cuda_dnn_options){.cache_folder = f->path}));
    dnn_run run = run_of(TW_F32);
    CHECK_OK(dnn_run_and_compare(&d, &run));
    check_engine(&run, engine);
    dnn_device_close(&d);
}

/* Writes the file with another engine in its one entry, under a sum that is right or not. */
static void rewrite(const folder *f, const char *choice, bool right_sum) {
    char text[4096], line[64];
    FILE *file = fopen(f->file, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *tab = strchr(text, '\t');
    assert_non_null(tab);
    snprintf(tab, sizeof text - (size_t)(tab - text), "\t%s\n", choice);
    snprintf(line, sizeof line, "sum %llx\n", (unsigned long long)twi_hash_text(text) + !right_sum);
    file = fopen(f->file, "w");
    fprintf(file, "%s%s", text, line);
    fclose(file);
}

static void choices_are_remembered(void **state) {
    (void)state;
    folder f;
    folder_make(&f);
    run_with(&f, 4);
    folder_find_file(&f);
    rewrite(&f, "5", true);
    run_with(&f, 5);
    rewrite(&f, "4 2=3", true);
    run_with(&f, 4);
    folder_remove(&f);
}

static void a_file_that_is_damaged_stale_or_wrong_is_no_harm(void **state) {
    (void)state;
    static const char *const bad[] = {"", "x", "-1", "5 2", "5 2=", "5 2=3 ", "5 2=3x", "99", "1", "0", "2", "3"};
    folder f;
    folder_make(&f);
    run_with(&f, 4);
    folder_find_file(&f);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rewrite(&f, bad[i], true);
        run_with(&f, 4);
    }
    rewrite(&f, "5", false);
    run_with(&f, 4);
    assert_int_equal(truncate(f.file, 20), 0);
    run_with(&f, 4);
    assert_int_equal(truncate(f.file, 0), 0);
    run_with(&f, 4);
    assert_int_equal(truncate(f.file, (off_t)1 << 30), 0); /* not read: no file of ours is as large */
    run_with(&f, 4);
    folder_remove(&f);
}

static void count_line(void *user, tw_log_level level, const char *message) {
    if (level == TW_LOG_WARNING && strstr(message, "not kept")) ++*(int *)user;
}

static void a_folder_that_cannot_be_written_is_only_logged(void **state) {
    (void)state;
    int warnings = 0;
    const tw_context_options logging = {sizeof logging, .log = count_line, .log_user = &warnings,
                                        .log_level = TW_LOG_WARNING};
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, &logging, &(twi_cuda_dnn_options){.cache_folder = "/dev/null/nowhere"}));
    dnn_run run = run_of(TW_F32);
    CHECK_OK(dnn_run_and_compare(&d, &run));
    dnn_device_close(&d);
    assert_int_equal(warnings, 1);
}

/* ---- failures ---- */

static const char *const kernels[] = {"conv2d.forward_bias_relu", "conv2d.backward_weights"};
enum { KERNELS = 2 };

/* Opens, prepares and closes; any call or allocation of it may fail. */
static tw_status short_life(const tw_context_options *context_options, const twi_cuda_dnn_options *options) {
    dnn_device d;
    tw_status status = dnn_device_open(&d, context_options, options);
    for (int k = 0; k < KERNELS && !status; k++) {
        dnn_run run = {.c = &conv, .kernel = kernels[k], .dtype = k ? TW_BF16 : TW_F32};
        status = dnn_prepare(&d, &run);
    }
    dnn_device_close(&d); /* checks that nothing is left */
    return status;
}

/* What came of a life in which a call failed. Those that give back fail without harm. */
static void check_failure(tw_status status, const char *failed) {
    if (strncmp(failed, "cudnn", 5) != 0 || strstr(failed, "Destroy")) return;
    if (status != TW_ERROR_OUT_OF_MEMORY) fail_msg("%s failed: %s", failed, tw_status_name(status));
}

static void fail_every_call(const twi_cuda_dnn_options *options) {
    CHECK_OK(short_life(NULL, options));
    for (uint64_t k = 1;; k++) {
        emu_fail_call(k, NULL);
        tw_status status = short_life(NULL, options);
        const char *failed = emu_failed_call();
        emu_fail_call(0, NULL);
        if (!failed) {
            assert_true(k > 300);
            return;
        }
        check_failure(status, failed);
    }
}

static void any_call_may_fail(void **state) {
    (void)state;
    fail_every_call(NULL);
}

static void any_call_of_a_trial_may_fail(void **state) {
    (void)state;
    fail_every_call(&(twi_cuda_dnn_options){.trial = true, .cache_folder = ""});
}

static void any_call_of_a_launch_may_fail(void **state) {
    (void)state;
    for (int k = 0; k < KERNELS; k++) {
        dnn_device d;
        CHECK_OK(dnn_device_open(&d, NULL, NULL));
        for (uint64_t fail = 1;; fail++) {
            dnn_run run = {.c = &conv, .kernel = kernels[k], .dtype = k ? TW_BF16 : TW_F32, .fail = fail};
            tw_status status = dnn_run_and_compare(&d, &run);
            const char *failed = emu_failed_call();
            emu_fail_call(0, NULL);
            if (status && failed) check_failure(status, failed);
            if (!failed) break;
            assert_false(status == TW_OK && strcmp(failed, "cudnnBackendExecute") == 0);
        }
        dnn_device_close(&d);
    }
}

static bool fail_at(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    return index == *(uint64_t *)user;
}

static void any_allocation_may_fail(void **state) {
    (void)state;
    folder f;
    folder_make(&f);
    run_with(&f, 4);
    folder_find_file(&f);
    uint64_t index = 0;
    for (bool done = false; !done; index++) {
        const tw_context_options failing = {sizeof failing, .threads = 1, .memory_hook = fail_at,
                                            .memory_hook_user = &index};
        tw_status status = short_life(&failing, &(twi_cuda_dnn_options){.cache_folder = f.path});
        if (status) assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
        done = index > 40 && !status;
    }
    folder_remove(&f);
}

static int leave_clean(void **state) {
    (void)state;
    cudnn_stand_in_retire(0);
    cudnn_stand_in_set_version(0);
    emu_reset();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(engines_that_break_the_rules_are_passed_over, leave_clean),
        cmocka_unit_test_teardown(the_fallback_and_nothing_at_all, leave_clean),
        cmocka_unit_test_teardown(the_workspace_limit_is_kept, leave_clean),
        cmocka_unit_test_teardown(a_trial_takes_one_that_keeps_the_rules, leave_clean),
        cmocka_unit_test_teardown(another_major_version_is_refused, leave_clean),
        cmocka_unit_test_teardown(a_described_device_plans, leave_clean),
        cmocka_unit_test_teardown(a_lost_device_is_known, leave_clean),
        cmocka_unit_test_teardown(choices_are_remembered, leave_clean),
        cmocka_unit_test_teardown(a_file_that_is_damaged_stale_or_wrong_is_no_harm, leave_clean),
        cmocka_unit_test_teardown(a_folder_that_cannot_be_written_is_only_logged, leave_clean),
        cmocka_unit_test_teardown(any_call_may_fail, leave_clean),
        cmocka_unit_test_teardown(any_call_of_a_trial_may_fail, leave_clean),
        cmocka_unit_test_teardown(any_call_of_a_launch_may_fail, leave_clean),
        cmocka_unit_test_teardown(any_allocation_may_fail, leave_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

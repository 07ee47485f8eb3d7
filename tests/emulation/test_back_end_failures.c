/* Calls of CUDA, cuBLASLt and cuDNN that fail, one after the other, in a run that opens a context, trains, evaluates and
 * saves: each time a status whose text names the call, nothing is left over, and the same process goes on to the right
 * numbers. With the arguments `all PART PARTS` every PARTS-th call from that of number PART on (0 is the first): all parts
 * together are every single call. Otherwise one in STRIDE. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "back_end_task.h"
#include "trainer/trainer.h"

#include <stdio.h>
#include <unistd.h>

enum { STRIDE = 37 };

static uint64_t stride = STRIDE, part, parts; /* parts 0: not all */
static char folder[64], path[128];
static task_state expected;
static task_log usual;        /* what is logged where nothing fails */
static uint64_t blocks_after; /* of host memory in a context that ran once */

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/talweg-back-end-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    remove(path);
    return rmdir(folder); /* fails if a temporary file is left */
}

/* What a failed call may say instead of its own name. */
static const struct {
    const char *call, *text;
} words[] = {
    {"cudaStreamCreateWithPriority", "cudaStreamCreateWithFlags"}, /* one by the other here */
    {"cudaLaunchKernel", "cudaErrorLaunchOutOfResources"},
    {"cudaMalloc", "out of device memory"},
    {"cudaHostAlloc", "pinned memory"},
    {"cudaFuncGetAttributes", "no code for compute capability"},
};

static void check_text(const char *call, uint64_t k) {
    const char *text = tw_last_error();
    if (strstr(text, call)) return;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i].call, call) == 0 && strstr(text, words[i].text)) return;
    fail_msg("call %d, %s: \"%s\" does not name it", (int)k, call, text);
}

/* Calls whose failure changes nothing. */
static bool gives_back(const char *call) { return strstr(call, "Destroy") || strstr(call, "Free"); }

/* Libraries whose failures have the next family asked. */
static bool has_stand_in(const char *call) {
    return strncmp(call, "cudnn", 5) == 0 || strcmp(call, "cublasLtMatmulAlgoGetHeuristic") == 0;
}

/* Batches that are run in so many parts learn the same each time, whatever it was that was refused. */
static task_state in_parts[TASK_BATCH + 1];

static void check_parts(const task *t) {
    task_state outcome = task_outcome(t), *first = &in_parts[t->trainer->parts];
    if (!first->bytes) {
        *first = outcome;
        return;
    }
    assert_true(task_same(&outcome, first));
    free(outcome.bytes);
}

/* Where a library has no plan, the next family is asked: other bits, the same numbers. Where memory was short, it goes on
 * by another plan and says so; what that may change, task_check_outcome knows. */
static void check_success(const task *t, const char *call, uint64_t k, const task_log *log) {
    if (!gives_back(call) && !has_stand_in(call) && strcmp(log->text, usual.text) == 0)
        fail_msg("call %d, %s, failed, and nobody noticed", (int)k, call);
    if (has_stand_in(call) && strcmp(log->text, usual.text) == 0)
        task_check_near(t, &expected);
    else if (!task_check_outcome(t, &expected, log))
        check_parts(t);
}

static void assert_runs(tw_context *context) {
    const tw_trainer_options options = task_options();
    task t;
    CHECK_OK(task_run(&t, context, &options, path));
    task_state outcome = task_outcome(&t);
    assert_true(task_same(&outcome, &expected));
    free(outcome.bytes);
    task_drop(&t);
}

/* The run whose k-th call fails; false if there is none. */
static bool run_failing(uint64_t k, const char *name) {
    const tw_trainer_options options = task_options();
    tw_context *context = (void *)1;
    task t = {0};
    task_log log = {""};
    emu_fail_call(k, name);
    tw_status status = tw_context_create(
        &context, check_device(),
        TW_OPTIONS(context, .threads = 1, .log = task_listen, .log_user = &log, .log_level = TW_LOG_INFO));
    if (status) {
        check_text(emu_failed_call(), k);
        assert_null(context);
        assert_int_equal(emu_count_live(), 0);
        return true;
    }
    status = task_run(&t, context, &options, path);
    const char *failed = emu_failed_call();
    if (status) {
        if (!failed) fail_msg("nothing failed, but: %s", tw_last_error());
        check_text(failed, k);
    }
    if (failed) emu_fail_call(0, NULL);
    if (failed && !status) check_success(&t, failed, k, &log);
    task_drop(&t);
    failed = failed ? failed : emu_failed_call(); /* while giving back */
    emu_fail_call(0, NULL);
    assert_int_equal(tw_context_get_device_memory(context).bytes, 0);
    assert_int_equal(tw_context_get_device_memory(context).blocks, 0);
    assert_int_equal(task_device_bytes(), 0);
    if (failed && status) { /* what was not lost goes on in the very same context */
        assert_runs(context);
        assert_int_equal(tw_context_get_memory(context).blocks, blocks_after);
    }
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
    return failed != NULL;
}

static void open_expected(void) {
    const tw_trainer_options options = task_options();
    task_log log = {""};
    tw_context *context;
    task t;
    CHECK_OK(tw_context_create(
        &context, check_device(),
        TW_OPTIONS(context, .threads = 1, .log = task_listen, .log_user = &log, .log_level = TW_LOG_INFO)));
    CHECK_OK(task_run(&t, context, &options, path));
    usual = log;
    expected = task_outcome(&t);
    task_drop(&t);
    blocks_after = tw_context_get_memory(context).blocks;
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
}

static void any_call_may_fail(void **state) {
    (void)state;
    uint64_t k = 1 + part, tried = 0;
    open_expected();
    for (; run_failing(k, NULL); k += stride) tried++;
    print_message("%d calls, up to the %d. of all, failed in turn\n", (int)tried, (int)(k - stride));
    assert_true(k > 500);
    free(expected.bytes);
}

/* So that every call is there with the first and some later ones, however seldom it is made. All parts together have them. */
static void every_kind_of_call_may_fail(void **state) {
    (void)state;
    static const char *const names[] = {"cudaSetDevice",
                                        "cudaGetDeviceProperties",
                                        "cudaFuncGetAttributes",
                                        "cudaStreamCreateWithPriority",
                                        "cudaHostAlloc",
                                        "cudaMalloc",
                                        "cudaEventCreateWithFlags",
                                        "cudaMemsetAsync",
                                        "cudaMemcpyAsync",
                                        "cudaEventRecord",
                                        "cudaEventSynchronize",
                                        "cudaStreamSynchronize",
                                        "cudaLaunchKernel",
                                        "cudaStreamBeginCapture",
                                        "cudaStreamEndCapture",
                                        "cudaGraphInstantiate",
                                        "cudaGraphLaunch",
                                        "cublasLtCreate",
                                        "cublasLtMatmulAlgoGetHeuristic",
                                        "cublasLtMatmul",
                                        "cudnnCreate",
                                        "cudnnSetStream",
                                        "cudnnBackendExecute",
                                        "cudaFree",
                                        "cudaGraphExecDestroy"};
    open_expected();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool any = false;
        if (parts && i % parts != part) continue;
        for (uint64_t k = 1; run_failing(k, names[i]) && (parts || k < 64); k = 3 * k + 1) any = true;
        if (!any) fail_msg("%s is never called", names[i]);
    }
    free(expected.bytes);
}

/* With its norm frozen no part teaches anything of its own: whichever piece of memory is refused, the numbers are the same. */
static void any_memory_may_be_refused(void **state) {
    (void)state;
    task_freeze_norms(true);
    open_expected();
    uint64_t k = 1 + part;
    while (run_failing(k, "cudaMalloc")) k += parts ? parts : 3;
    assert_true(k > 12);
    task_freeze_norms(false);
    free(expected.bytes);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_call_may_fail, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(every_kind_of_call_may_fail, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(any_memory_may_be_refused, make_folder, remove_folder),
    };
    if (argc == 4 && strcmp(argv[1], "all") == 0) {
        part = strtoull(argv[2], NULL, 10);
        stride = parts = strtoull(argv[3], NULL, 10);
        if (part >= parts) return 2;
    } else if (argc > 1) {
        fprintf(stderr, "usage: test_back_end_failures [all PART PARTS]\n");
        return 2;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What the statuses of CUDA, cuBLASLt and cuDNN become: each sticky error loses the context, others fail their own call; what
 * means that memory ran out is told with what holds how much, whatever the library calls it; and where memory runs out in the
 * middle of a fit, it goes on from the same step or stops, as asked. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "back_end_task.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>

enum { UPDATES = 2 * TASK_STEPS };

/* What an undisturbed fit comes to, and where it stands after each update. */
static task_state expected, after[UPDATES + 1];
static int noted;
static task_log usual; /* what is logged where nothing fails */

static bool note(void *user, const tw_progress *p) {
    (void)p;
    const task *t = user;
    after[++noted] = task_state_of(t->model);
    return false;
}

static void close_context(tw_context *context) {
    assert_int_equal(tw_context_get_device_memory(context).bytes, 0);
    tw_context_destroy(context);
    assert_int_equal(emu_count_live(), 0);
    emu_reset();
}

static void close_all(task *t) {
    tw_context *context = t->context;
    task_drop(t);
    close_context(context);
}

static int learn_expected(void **state) {
    (void)state;
    tw_trainer_options options = task_options();
    task t;
    options.on_step = note;
    options.user = &t;
    noted = 0;
    task_freeze_norms(true); /* batches may come to be run in parts */
    tw_context *context;
    CHECK_OK(tw_context_create(
        &context, check_device(),
        TW_OPTIONS(context, .threads = 1, .log = task_listen, .log_user = &usual, .log_level = TW_LOG_INFO)));
    CHECK_OK(task_make(&t, context, &options));
    after[0] = task_state_of(t.model);
    CHECK_OK(tw_trainer_fit(t.trainer, t.train, NULL));
    CHECK_OK(tw_trainer_evaluate(t.trainer, t.test, &t.tested));
    assert_int_equal(noted, UPDATES);
    expected = task_outcome(&t);
    close_all(&t);
    return 0;
}

static int forget_expected(void **state) {
    (void)state;
    for (int i = 0; i <= UPDATES; i++) free(after[i].bytes);
    free(expected.bytes);
    return 0;
}

static void check_breakdown(void) {
    static const char *const says[] = {"out of device memory", "held here: parameters ", "optimizer state ",
                                       "activation arena ", "smaller batch"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (!strstr(tw_last_error(), says[i])) fail_msg("\"%s\" does not say \"%s\"", tw_last_error(), says[i]);
}

/* What was not lost goes on, in the very same context. */
static void check_context_works(task *t) {
    const tw_trainer_options options = task_options();
    tw_context *context = t->context;
    task_drop(t);
    CHECK_OK(task_run(t, context, &options, NULL));
    task_state outcome = task_outcome(t);
    assert_true(task_same(&outcome, &expected));
    free(outcome.bytes);
    close_all(t);
}

/* ---- sticky errors, and others ---- */

static void a_sticky_error_loses_the_context(void **state) {
    (void)state;
    static const cudaError_t sticky[] = {
        cudaErrorIllegalAddress,      cudaErrorLaunchFailure,       cudaErrorLaunchTimeout,
        cudaErrorHardwareStackError,  cudaErrorIllegalInstruction,  cudaErrorMisalignedAddress,
        cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,           cudaErrorAssert,
        cudaErrorECCUncorrectable,    cudaErrorNvlinkUncorrectable, cudaErrorContained,
        cudaErrorDevicesUnavailable,  cudaErrorCudartUnloading,     cudaErrorContextIsDestroyed,
    };
    static const char *const calls[] = {"cudaGraphLaunch", "cudaMemcpyAsync", "cudaEventSynchronize", "cudaMalloc"};
    const tw_trainer_options options = task_options();
    for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++) {
        task t;
        float values[TASK_CLASSES];
        CHECK_OK(task_make(&t, task_device(), &options));
        emu_fail_call_with(2, calls[i % 4], (int)sticky[i]);
        CHECK_FAILS(tw_trainer_fit(t.trainer, t.train, NULL), TW_ERROR_DEVICE, "the device was lost (");
        assert_non_null(strstr(tw_last_error(), calls[i % 4]));
        emu_fail_call(0, NULL); /* the device works again: that it does not, the context knows by itself */
        CHECK_FAILS(tw_trainer_fit(t.trainer, t.train, NULL), TW_ERROR_DEVICE, "the device was lost (");
        CHECK_FAILS(tw_trainer_evaluate(t.trainer, t.test, &t.tested), TW_ERROR_DEVICE, "the device was lost (");
        CHECK_FAILS(tw_parameter_read(t.model, "fc2.bias", values, TASK_CLASSES), TW_ERROR_DEVICE, calls[i % 4]);
        close_all(&t);
    }
    task t = {.context = task_device()};
    check_context_works(&t);
}

static void another_error_is_its_calls_own(void **state) {
    (void)state;
    static const cudaError_t errors[] = {cudaErrorInvalidValue, cudaErrorLaunchOutOfResources, cudaErrorNotSupported,
                                         cudaErrorInvalidConfiguration};
    static const char *const calls[] = {"cudaGraphLaunch", "cudaMemcpyAsync", "cudaEventRecord",
                                        "cudaGraphInstantiate"};
    const tw_trainer_options options = task_options();
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        task t;
        CHECK_OK(task_make(&t, task_device(), &options));
        emu_fail_call_with(2, calls[i], (int)errors[i]);
        CHECK_FAILS(tw_trainer_fit(t.trainer, t.train, NULL), TW_ERROR_DEVICE, calls[i]);
        assert_non_null(strstr(tw_last_error(), cudaGetErrorName(errors[i])));
        check_context_works(&t);
    }
}

/* ---- memory, in the words of libraries ---- */

/* Leaves so little of the device that a library's failure is taken for want of memory. */
static void *fill_device(void) {
    size_t left, total;
    void *hog;
    emu_set_memory((size_t)32 << 20);
    assert_int_equal(cudaMemGetInfo(&left, &total), cudaSuccess);
    assert_int_equal(cudaMalloc(&hog, left - total / 64), cudaSuccess);
    return hog;
}

typedef struct words {
    const char *call;
    int status;
    bool full; /* is the device? */
    tw_status becomes;
    const char *says;
} words;

/* Those of a step, which runs by itself with TALWEG_SYNC=1. */
static const words of_a_step[] = {
    {"cudnnBackendExecute", CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, false, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cudnnBackendExecute", CUDNN_STATUS_EXECUTION_FAILED, true, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cudnnBackendExecute", CUDNN_STATUS_EXECUTION_FAILED_CUDART, true, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cudnnBackendExecute", CUDNN_STATUS_EXECUTION_FAILED_CUBLAS, true, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cudnnBackendExecute", CUDNN_STATUS_INTERNAL_ERROR, true, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cudnnBackendExecute", CUDNN_STATUS_NOT_INITIALIZED, true, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cudnnBackendExecute", CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, false, TW_ERROR_OUT_OF_MEMORY,
     "free memory of the host"},
    {"cudnnBackendExecute", CUDNN_STATUS_EXECUTION_FAILED, false, TW_ERROR_DEVICE, "TALWEG_SYNC=1"},
    {"cudnnBackendExecute", CUDNN_STATUS_INTERNAL_ERROR, false, TW_ERROR_DEVICE, "another version"},
    {"cudnnBackendExecute", CUDNN_STATUS_NOT_SUPPORTED, true, TW_ERROR_UNSUPPORTED, "nothing for this case"},
    {"cublasLtMatmul", CUBLAS_STATUS_ALLOC_FAILED, false, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED, true, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cublasLtMatmul", CUBLAS_STATUS_INTERNAL_ERROR, true, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cublasLtMatmul", CUBLAS_STATUS_NOT_INITIALIZED, true, TW_ERROR_OUT_OF_MEMORY, NULL},
    {"cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED, false, TW_ERROR_DEVICE, "CUBLAS_STATUS_EXECUTION_FAILED"},
    {"cublasLtMatmul", CUBLAS_STATUS_INVALID_VALUE, true, TW_ERROR_DEVICE, "CUBLAS_STATUS_INVALID_VALUE"},
    {"cudaLaunchKernel", cudaErrorMemoryAllocation, false, TW_ERROR_OUT_OF_MEMORY, NULL},
};

/* Fails a call of the step after the first, with the device filled if that is wanted. */
typedef struct disturbance {
    const char *call;
    int status;
    bool full;
    void *hog;
} disturbance;

static bool disturb(void *user, const tw_progress *p) {
    disturbance *d = user;
    if (p->updates != 1) return false;
    if (d->full) d->hog = fill_device();
    emu_fail_call_with(1, d->call, d->status);
    return false;
}

static void memory_is_told_whatever_a_library_calls_it(void **state) {
    (void)state;
    setenv("TALWEG_SYNC", "1", 1);
    for (size_t i = 0; i < sizeof of_a_step / sizeof *of_a_step; i++) {
        const words *w = &of_a_step[i];
        disturbance d = {.call = w->call, .status = w->status, .full = w->full};
        tw_trainer_options options = task_options();
        task t;
        options.on_step = disturb;
        options.user = &d;
        CHECK_OK(task_make(&t, task_device(), &options));
        tw_status status = tw_trainer_fit(t.trainer, t.train, NULL);
        if (status != w->becomes || !emu_failed_call())
            fail_msg("%s, %d: %s, \"%s\"", w->call, w->status, tw_status_name(status), tw_last_error());
        if (w->says)
            assert_non_null(strstr(tw_last_error(), w->says));
        else
            check_breakdown();
        if (!strstr(tw_last_error(), w->call) &&
            !strstr(tw_last_error(), "loss_seed.write '")) /* the first step's kernel */
            fail_msg("\"%s\" does not name %s", tw_last_error(), w->call);
        emu_fail_call(0, NULL);
        if (d.hog) assert_int_equal(cudaFree(d.hog), cudaSuccess);
        assert_int_equal(tw_model_get_updates(t.model), 1);
        check_context_works(&t);
    }
    unsetenv("TALWEG_SYNC");
}

static void libraries_that_cannot_be_opened_for_want_of_memory_say_so(void **state) {
    (void)state;
    static const words opening[] = {
        {"cudnnCreate", CUDNN_STATUS_NOT_INITIALIZED, true, TW_ERROR_OUT_OF_MEMORY, "out of device memory"},
        {"cudnnCreate", CUDNN_STATUS_NOT_INITIALIZED, false, TW_ERROR_DEVICE, "install one complete version"},
        {"cublasLtCreate", CUBLAS_STATUS_NOT_INITIALIZED, true, TW_ERROR_OUT_OF_MEMORY, "out of device memory"},
        {"cublasLtCreate", CUBLAS_STATUS_NOT_INITIALIZED, false, TW_ERROR_DEVICE, "CUBLAS_STATUS_NOT_INITIALIZED"},
    };
    for (size_t i = 0; i < sizeof opening / sizeof *opening; i++) {
        tw_context *context;
        void *hog = opening[i].full ? fill_device() : NULL;
        emu_fail_call_with(1, opening[i].call, opening[i].status);
        CHECK_FAILS(tw_context_create(&context, check_device(), NULL), opening[i].becomes, opening[i].says);
        assert_null(context);
        if (hog) assert_int_equal(cudaFree(hog), cudaSuccess);
        emu_reset();
    }
}

/* ---- memory that runs out in the middle ---- */

/* Calls that a step makes. Fills of slots alone wait for events. */
static const struct {
    const char *name;
    bool resident;
} in_the_middle[] = {{"cudaGraphLaunch", true},
                     {"cudaMemcpyAsync", true},
                     {"cudaEventRecord", true},
                     {"cudaEventSynchronize", true},
                     {"cudaStreamWaitEvent", false}};
enum { CALLS = sizeof in_the_middle / sizeof *in_the_middle };

/* Is the model what it was after so many updates? Attempts are counted on, and moments that are not there yet are 0. */
static bool stands_after(const tw_model *model, uint64_t updates) {
    const task_state *then = &after[updates];
    task_state now = task_state_of(model);
    const size_t attempts = sizeof(uint64_t), numbers = 2 * sizeof(uint64_t);
    bool same = memcmp(now.bytes, then->bytes, attempts) == 0 &&
                memcmp(now.bytes + numbers, then->bytes + numbers, then->size - numbers) == 0;
    for (size_t i = then->size; i < now.size; i++) same = same && !now.bytes[i];
    free(now.bytes);
    return same;
}

/* A fit whose k-th call of that name finds no memory; false if there is none. */
static bool fit_short(const char *name, uint64_t k, tw_on_out_of_memory then, bool streamed) {
    tw_trainer_options options = task_options();
    task_log log = {""};
    tw_context *context;
    task t;
    options.on_out_of_memory = then;
    options.workers = streamed;
    CHECK_OK(tw_context_create(
        &context, check_device(),
        TW_OPTIONS(context, .threads = 1, .log = task_listen, .log_user = &log, .log_level = TW_LOG_INFO)));
    CHECK_OK(task_make(&t, context, &options));
    emu_fail_call_with(k, name, (int)cudaErrorMemoryAllocation);
    tw_status status = tw_trainer_fit(t.trainer, t.train, NULL);
    const bool failed = emu_failed_call() != NULL;
    emu_fail_call(0, NULL);
    const uint64_t updates = tw_model_get_updates(t.model);
    if (status) {
        if (then == TW_OUT_OF_MEMORY_FIT) fail_msg("%s, call %d: %s", name, (int)k, tw_last_error());
        assert_true(failed);
        assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
        assert_non_null(strstr(tw_last_error(), "out of device memory"));
        assert_non_null(strstr(tw_last_error(), "held here: parameters "));
        if (!stands_after(t.model, updates))
            fail_msg("%s, call %d: not as after update %d", name, (int)k, (int)updates);
        check_context_works(&t);
    } else {
        if (failed && strcmp(log.text, usual.text) == 0) fail_msg("%s, call %d: unnoticed", name, (int)k);
        CHECK_OK(tw_trainer_evaluate(t.trainer, t.test, &t.tested));
        assert_true(task_check_outcome(&t, &expected, &log));
        close_all(&t);
    }
    return failed;
}

static uint64_t stride = 19;

static void fail_each(tw_on_out_of_memory then) {
    for (int i = 0; i < CALLS; i++)
        for (int streamed = !in_the_middle[i].resident; streamed < 2; streamed++) {
            uint64_t k = 1;
            while (fit_short(in_the_middle[i].name, k, then, streamed != 0)) k += i ? stride : 1;
            assert_true(k > UPDATES);
        }
}

static void a_fit_stops_where_memory_runs_out_and_the_context_works(void **state) {
    (void)state;
    fail_each(TW_OUT_OF_MEMORY_STOP);
}

static void or_goes_on_from_the_same_step(void **state) {
    (void)state;
    fail_each(TW_OUT_OF_MEMORY_FIT);
}

/* Another program takes memory while a fit is under way: what this one holds is then a tenth more than there is. */
static bool squeeze(void *user, const tw_progress *p) {
    if (p->updates != *(int *)user) return false;
    emu_set_memory(task_device_bytes() / 10 * 9);
    emu_fail_call_with(1, "cudaGraphLaunch", (int)cudaErrorMemoryAllocation);
    return false;
}

static void a_fit_goes_on_in_what_is_left(void **state) {
    (void)state;
    for (int update = 1; update < UPDATES; update += 3) {
        for (int fits = 0; fits < 2; fits++) {
            tw_trainer_options options = task_options();
            task_log log = {""};
            tw_context *context;
            task t;
            options.on_out_of_memory = fits ? TW_OUT_OF_MEMORY_FIT : TW_OUT_OF_MEMORY_STOP;
            options.on_step = squeeze;
            options.user = &update;
            CHECK_OK(tw_context_create(
                &context, check_device(),
                TW_OPTIONS(context, .threads = 1, .log = task_listen, .log_user = &log, .log_level = TW_LOG_INFO)));
            CHECK_OK(task_make(&t, context, &options));
            tw_status status = tw_trainer_fit(t.trainer, t.train, NULL);
            assert_non_null(emu_failed_call());
            if (fits) {
                CHECK_OK(status);
                assert_non_null(strstr(log.text, "planned anew for"));
                size_t left, total;
                assert_int_equal(cudaMemGetInfo(&left, &total), cudaSuccess);
                assert_true(tw_context_get_device_memory(context).bytes <= total);
                CHECK_OK(tw_trainer_evaluate(t.trainer, t.test, &t.tested));
                assert_true(task_check_outcome(&t, &expected, &log));
            } else {
                assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
                check_breakdown();
                assert_null(strstr(log.text, "planned anew for")); /* nor anything else done */
                assert_memory_equal(log.text, usual.text, strlen(log.text));
                assert_true(stands_after(t.model, (uint64_t)update));
            }
            close_all(&t);
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sticky_error_loses_the_context),
        cmocka_unit_test(another_error_is_its_calls_own),
        cmocka_unit_test(memory_is_told_whatever_a_library_calls_it),
        cmocka_unit_test(libraries_that_cannot_be_opened_for_want_of_memory_say_so),
        cmocka_unit_test(a_fit_stops_where_memory_runs_out_and_the_context_works),
        cmocka_unit_test(or_goes_on_from_the_same_step),
        cmocka_unit_test(a_fit_goes_on_in_what_is_left),
    };
    if (argc > 1 && strcmp(argv[1], "all") == 0) stride = 1;
    return cmocka_run_group_tests(tests, learn_expected, forget_expected);
}

/* A context on the program's own threads: results are those of the library's threads, which it then does not start; what the
 * threads had set stays; functions that leave tasks out or do them twice are found out. */
#define _GNU_SOURCE
#include "check.h"
#include <talweg/talweg.h>

#include <dirent.h>
#include <dlfcn.h>
#include <fenv.h>
#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { THREADS = 3, BATCH = 64, SIDE = 28, STEPS = 3 };

/* ---- a pool as a program might have it: threads that take tasks under a lock ---- */

typedef struct host {
    pthread_t thread[THREADS];
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    tw_parallel_task task;
    void *task_data;
    int next, count, done, started;
    bool quit;
    atomic_int calls, most, state_lost;
} host;

static int (*omp_threads)(void);
static void (*omp_set)(int);

/* Do numbers below the normal ones survive here, rounded upwards? As the thread has it, and as the library must leave it. */
static bool own_state(void) {
    volatile float tiny = FLT_MIN;
    tiny = tiny / 2;
    return tiny > 0 && fegetround() == FE_UPWARD && (!omp_threads || omp_threads() == 3);
}

static void take_tasks(host *h) {
    while (h->next < h->count) {
        const int index = h->next++;
        pthread_mutex_unlock(&h->lock);
        h->task(h->task_data, index);
        if (!own_state()) atomic_store(&h->state_lost, 1);
        pthread_mutex_lock(&h->lock);
        if (++h->done == h->count) pthread_cond_broadcast(&h->finished);
    }
}

static void *host_main(void *argument) {
    host *h = argument;
    fesetround(FE_UPWARD);
    if (omp_set) omp_set(3);
    pthread_mutex_lock(&h->lock);
    while (!h->quit) {
        take_tasks(h);
        if (!h->quit) pthread_cond_wait(&h->work, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* The caller only waits: no task is on the thread that uses the context. */
static void host_parallel(void *user, int count, tw_parallel_task task, void *task_data) {
    host *h = user;
    pthread_mutex_lock(&h->lock);
    h->task = task;
    h->task_data = task_data;
    h->next = h->done = 0;
    h->count = count;
    atomic_fetch_add(&h->calls, 1);
    if (count > h->most) h->most = count;
    pthread_cond_broadcast(&h->work);
    while (h->done < count) pthread_cond_wait(&h->finished, &h->lock);
    h->count = h->next = 0;
    pthread_mutex_unlock(&h->lock);
}

static void host_start(host *h) {
    memset(h, 0, sizeof *h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->work, NULL);
    pthread_cond_init(&h->finished, NULL);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&h->thread[i], NULL, host_main, h), 0);
}

static void host_end(host *h) {
    pthread_mutex_lock(&h->lock);
    h->quit = true;
    pthread_cond_broadcast(&h->work);
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < THREADS; i++) pthread_join(h->thread[i], NULL);
    pthread_cond_destroy(&h->finished);
    pthread_cond_destroy(&h->work);
    pthread_mutex_destroy(&h->lock);
}

/* ---- other ways to do tasks ---- */

static void backwards(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user;
    while (count-- > 0) task(task_data, count);
}
static void none(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user, (void)count, (void)task, (void)task_data;
}
static void the_first_only(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user, (void)count;
    task(task_data, 0);
}
static void one_twice(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user;
    for (int i = 0; i < count; i++) task(task_data, i ? i : 1);
}
static void too_many(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user;
    for (int i = 0; i <= count; i++) task(task_data, i);
}

/* ---- training ---- */

typedef struct trained {
    double loss;
    float conv[6 * 25], dense[84 * 10];
} trained;

static tw_status train(int threads, tw_parallel_fn parallel, void *user, trained *out) {
    static float images[BATCH * SIDE * SIDE];
    static int32_t labels[BATCH];
    for (int i = 0; i < BATCH * SIDE * SIDE; i++) images[i] = (float)(i * 31 % 89) / 89 - 0.5f;
    for (int i = 0; i < BATCH; i++) labels[i] = i % 10;
    tw_context *context;
    tw_model *model;
    tw_program *program;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    CHECK_OK(tw_context_create(&context, "cpu",
                               TW_OPTIONS(context, .threads = threads, .parallel = parallel, .parallel_user = user)));
    assert_int_equal(tw_context_get_threads(context), threads);
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input(model, 1, SIDE, SIDE), *classes = tw_input_labels(model, NULL);
    tw_value *logits = tw_zoo_lenet5(model, x, 10);
    tw_loss loss = {tw_cross_entropy(model, logits, classes, NULL), 1};
    CHECK_OK(tw_model_build(model, logits, TW_OPTIONS(model, .seed = 1)));
    CHECK_OK(
        tw_program_create(&program, model, BATCH,
                          TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &sgd)));
    tw_status status = TW_OK;
    for (int step = 0; step < STEPS && status == TW_OK; step++) {
        CHECK_OK(tw_program_write(program, x, TW_F32, images, BATCH * SIDE * SIDE));
        CHECK_OK(tw_program_write(program, classes, TW_I32, labels, BATCH));
        status = tw_program_run(program);
    }
    out->loss = tw_program_get_loss(program);
    CHECK_OK(tw_parameter_read(model, "conv1.weight", out->conv, 6 * 25));
    CHECK_OK(tw_parameter_read(model, "fc3.weight", out->dense, 84 * 10));
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_context_destroy(context);
    return status;
}

static void assert_same(const trained *a, const trained *b) {
    assert_true(a->loss == b->loss && a->loss > 0);
    assert_memory_equal(a->conv, b->conv, sizeof a->conv);
    assert_memory_equal(a->dense, b->dense, sizeof a->dense);
}

static void results_are_those_of_the_librarys_threads(void **state) {
    (void)state;
    static trained own, hosted;
    static host h;
    CHECK_OK(train(4, NULL, NULL, &own));
    host_start(&h);
    for (int threads = 1; threads <= 5; threads += 2) {
        CHECK_OK(train(threads, host_parallel, &h, &hosted));
        assert_same(&own, &hosted);
        if (threads > 1) assert_int_equal(h.most, threads);
    }
    assert_true(h.calls > STEPS);
    host_end(&h);
    assert_int_equal(h.state_lost, 0);
    CHECK_OK(train(4, backwards, NULL, &hosted));
    assert_same(&own, &hosted);
}

static int count_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    if (!tasks) return 0;
    for (const struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void no_threads_are_started(void **state) {
    (void)state;
    const int before = count_threads();
    if (!before) skip();
    tw_context *context;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 8, .parallel = backwards)));
    assert_int_equal(count_threads(), before);
    tw_ceilings ceilings = TW_CEILINGS_INIT;
    CHECK_OK(tw_context_measure(context, 0, &ceilings));
    assert_int_equal(ceilings.threads, 8);
    tw_context_destroy(context);
}

static void a_function_that_does_not_do_every_task_once_is_found_out(void **state) {
    (void)state;
    static trained t;
    const tw_parallel_fn wrong[] = {none, the_first_only, one_twice, too_many};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_FAILS(train(3, wrong[i], NULL, &t), TW_ERROR_STATE, "before each of 3 tasks was done once");
    CHECK_OK(train(1, none, NULL, &t)); /* one worker is the caller */
}

int main(void) {
    /* Of the OpenMP library that oneDNN may have brought. */
    *(void **)&omp_threads = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    *(void **)&omp_set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_those_of_the_librarys_threads),
        cmocka_unit_test(no_threads_are_started),
        cmocka_unit_test(a_function_that_does_not_do_every_task_once_is_found_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The worker pool: every worker runs once, barriers hold, idle costs nothing, floating-point state is kept apart.
 * Checked values are stored by the workers and asserted by the caller. */
#define _GNU_SOURCE
#include "base/threads.h"

#include <dirent.h>
#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

enum { MOST = 8 };

static int setup(void **state) {
    twi_memory *memory;
    if (twi_memory_create(&memory, 0, NULL, NULL)) return 1;
    *state = memory;
    return 0;
}

static int teardown(void **state) {
    int left = (int)twi_memory_get_stats(*state).blocks;
    twi_memory_destroy(*state);
    return left;
}

static twi_pool *pool_of(void **state, int threads) {
    twi_pool *pool;
    assert_int_equal(twi_pool_create(&pool, *state, threads), TW_OK);
    assert_int_equal(twi_pool_size(pool), threads);
    return pool;
}

static void sleep_ms(long ms) { nanosleep(&(struct timespec){0, ms * 1000000}, NULL); }

typedef struct record {
    twi_pool *pool;
    int calls[MOST], workers[MOST];
} record;

static void note_call(void *argument, int worker, int workers) {
    record *r = argument;
    r->calls[worker]++;
    r->workers[worker] = workers;
}

static void run_on_all(twi_pool *pool, twi_pool_fn fn, void *argument) {
    assert_int_equal(twi_pool_run(pool, fn, argument), TW_OK);
}

static void test_every_worker_runs_once_a_run(void **state) {
    const int sizes[] = {1, 2, 3, MOST};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        record r = {.pool = pool_of(state, sizes[s])};
        for (int run = 1; run <= 200; run++) {
            (run % 2 ? run_on_all : twi_pool_run_surely)(r.pool, note_call, &r);
            for (int w = 0; w < MOST; w++) {
                assert_int_equal(r.calls[w], w < sizes[s] ? run : 0);
                assert_int_equal(r.workers[w], w < sizes[s] ? sizes[s] : 0);
            }
        }
        twi_pool_destroy(r.pool);
    }
}

static void test_run_alone_stays_on_the_caller(void **state) {
    record r = {.pool = pool_of(state, 2)};
    twi_pool_run_alone(r.pool, note_call, &r);
    assert_int_equal(r.calls[0], 1);
    assert_int_equal(r.workers[0], 1);
    assert_int_equal(r.calls[1], 0);
    twi_pool_destroy(r.pool);
}

/* Every worker adds its neighbour's value of the phase before: right only if nobody is a phase ahead or behind. */
typedef struct relay {
    twi_pool *pool;
    int phases;
    uint64_t value[2][MOST];
} relay;

static void pass_on(void *argument, int worker, int workers) {
    relay *r = argument;
    for (int phase = 0; phase < r->phases; phase++) {
        const uint64_t *from = r->value[phase % 2];
        r->value[(phase + 1) % 2][worker] = from[worker] * 3 + from[(worker + 1) % workers];
        twi_pool_barrier(r->pool, worker, NULL, NULL);
    }
}

static void check_relay(twi_pool *pool, int phases) {
    int workers = twi_pool_size(pool);
    relay r = {.pool = pool, .phases = phases};
    uint64_t expected[2][MOST] = {{0}};
    for (int w = 0; w < workers; w++) r.value[0][w] = expected[0][w] = (uint64_t)w + 1;
    for (int p = 0; p < phases; p++)
        for (int w = 0; w < workers; w++)
            expected[(p + 1) % 2][w] = expected[p % 2][w] * 3 + expected[p % 2][(w + 1) % workers];
    twi_pool_run(pool, pass_on, &r);
    for (int w = 0; w < workers; w++) assert_int_equal(r.value[phases % 2][w], expected[phases % 2][w]);
}

static void test_barrier_keeps_phases_apart(void **state) {
    for (int threads = 1; threads <= 4; threads++) {
        twi_pool *pool = pool_of(state, threads);
        for (int run = 0; run < 20; run++) check_relay(pool, 100 + run);
        twi_pool_destroy(pool);
    }
}

/* Between two phases one worker adds up what all have done, in memory without atomics, and all go on from the sum. */
typedef struct tally {
    twi_pool *pool;
    int phases, adders;
    uint64_t value[MOST], sum, last_worker;
} tally;

static void add_up(void *argument, int worker, int workers) {
    tally *t = argument;
    t->sum = t->sum * 5 + 1;
    for (int w = 0; w < workers; w++) t->sum += t->value[w];
    t->last_worker = (uint64_t)worker;
    t->adders++;
}

static void count_from_sum(void *argument, int worker, int workers) {
    tally *t = argument;
    (void)workers;
    for (int phase = 0; phase < t->phases; phase++) {
        t->value[worker] = t->sum + (uint64_t)worker;
        if (phase + 1 < t->phases) twi_pool_barrier(t->pool, worker, add_up, t);
    }
}

static void test_the_last_to_come_acts_for_all(void **state) {
    enum { PHASES = 50 };
    for (int threads = 1; threads <= 4; threads++) {
        tally t = {.pool = pool_of(state, threads), .phases = PHASES};
        uint64_t expected = 0;
        for (int run = 1; run <= 40; run++) {
            assert_int_equal(twi_pool_run_to(t.pool, count_from_sum, add_up, &t), TW_OK);
            for (int p = 0; p < PHASES; p++) {
                const uint64_t before = expected;
                expected = expected * 5 + 1;
                for (int w = 0; w < threads; w++) expected += before + (uint64_t)w;
            }
            assert_int_equal(t.adders, run * PHASES);
            assert_int_equal(t.sum, expected);
            assert_in_range(t.last_worker, 0, threads - 1);
        }
        assert_int_equal(twi_pool_run(t.pool, count_from_sum, &t), TW_OK); /* which ends without */
        assert_int_equal(t.adders, 41 * PHASES - 1);
        twi_pool_destroy(t.pool);
    }
}

static void linger(void *argument, int worker, int workers) {
    (void)workers;
    relay *r = argument;
    if (worker == 1) sleep_ms(5); /* far beyond the spin: the others go to sleep at the barrier */
    twi_pool_barrier(r->pool, worker, NULL, NULL);
    r->value[0][worker]++;
}

static void test_wakes_from_sleep(void **state) {
    relay r = {.pool = pool_of(state, 3)};
    for (int run = 1; run <= 10; run++) {
        twi_pool_run(r.pool, linger, &r);
        for (int w = 0; w < 3; w++) assert_int_equal(r.value[0][w], run);
        sleep_ms(2); /* the workers go to sleep waiting for the next run */
    }
    twi_pool_destroy(r.pool);
}

static void test_idle_pool_costs_no_processor_time(void **state) {
    twi_pool *pool = pool_of(state, 2);
    check_relay(pool, 10);
    sleep_ms(10);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    sleep_ms(200);
    getrusage(RUSAGE_SELF, &after);
    double used = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                  1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec);
    assert_true(used < 0.1);
    twi_pool_destroy(pool);
}

typedef struct float_record {
    float divisor; /* 4, out of the compiler's sight */
    float small[MOST], third[MOST];
} float_record;

static void note_float(void *argument, int worker, int workers) {
    (void)workers;
    float_record *r = argument;
    volatile float smallest_normal = 0x1p-126f, one = 1;
    r->small[worker] = smallest_normal / r->divisor;
    r->third[worker] = one / (r->divisor - 1);
}

static void test_floating_point_state_is_the_pools_own(void **state) {
    twi_pool *pool = pool_of(state, 2);
    float_record r = {.divisor = 4};
    feclearexcept(FE_ALL_EXCEPT);
    assert_int_equal(fesetround(FE_DOWNWARD), 0);
    twi_pool_run(pool, note_float, &r);
    int mode = fegetround(), raised = fetestexcept(FE_INEXACT | FE_UNDERFLOW);
    volatile float smallest_normal = 0x1p-126f;
    volatile float denormal = smallest_normal / r.divisor;
    fesetround(FE_TONEAREST);
    assert_int_equal(mode, FE_DOWNWARD);
    assert_true(denormal > 0);
#if defined(__SSE__) || defined(__aarch64__)
    for (int w = 0; w < 2; w++) {
        assert_true(r.small[w] == 0);
        assert_true(r.third[w] == 0x1.555556p-2f); /* to nearest, although the caller rounds downwards */
    }
#endif
#if defined(__SSE__)
    assert_int_equal(raised, 0);
#else
    (void)raised;
#endif
    memset(r.third, 0, sizeof r.third);
    twi_pool_run_alone(pool, note_float, &r);
    assert_true(r.third[0] == 0x1.555556p-2f && r.third[1] == 0);
    twi_pool_destroy(pool);
}

typedef struct signal_record {
    bool blocks[MOST];
} signal_record;

static void note_signals(void *argument, int worker, int workers) {
    (void)workers;
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    ((signal_record *)argument)->blocks[worker] = sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGTERM) == 1;
}

static void test_signals_stay_with_the_programs_threads(void **state) {
    twi_pool *pool = pool_of(state, 2);
    signal_record r = {{false}};
    twi_pool_run(pool, note_signals, &r);
    assert_false(r.blocks[0]);
    assert_true(r.blocks[1]);
    twi_pool_destroy(pool);
}

static void *run_a_pool_of_its_own(void *argument) {
    int *calls = argument;
    twi_memory *memory;
    twi_pool *pool;
    record r = {0};
    if (twi_memory_create(&memory, 0, NULL, NULL)) return NULL;
    if (!twi_pool_create(&pool, memory, 2)) {
        for (int run = 0; run < 300; run++) twi_pool_run(pool, note_call, &r);
        *calls = r.calls[0] + r.calls[1];
        twi_pool_destroy(pool);
    }
    twi_memory_destroy(memory);
    return NULL;
}

static void test_pools_are_independent(void **state) {
    (void)state;
    pthread_t threads[3];
    int calls[3] = {0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_a_pool_of_its_own, &calls[i]), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(calls[i], 600);
}

static void *allocate_and_free(void *argument) {
    for (int i = 0; i < 2000; i++) {
        void *block;
        if (twi_get(argument, &block, (size_t)i % 50 + 1, 7, "test") == TW_OK) twi_put(argument, block);
    }
    return NULL;
}

static void test_memory_is_counted_exactly_by_several_threads(void **state) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, allocate_and_free, *state), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    tw_memory_stats stats = twi_memory_get_stats(*state);
    assert_int_equal(stats.allocations, 6000);
    assert_int_equal(stats.blocks, 0);
    assert_int_equal(stats.bytes, 0);
    assert_in_range(stats.peak, 50 * 7, 3 * 50 * 7);
}

static int count_threads(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    if (!folder) return -1;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Once those that end have left the list, a moment after pthread_join returns. */
static int count_settled_threads(void) {
    int count = count_threads(), before;
    do {
        before = count;
        sleep_ms(20);
        count = count_threads();
    } while (count != before);
    return count;
}

static void test_destroy_ends_the_threads(void **state) {
    int before = count_settled_threads();
    twi_pool *pool = pool_of(state, 4);
    assert_int_equal(count_threads(), before + 3);
    twi_pool_destroy(pool);
    for (int tries = 0; count_threads() != before && tries < 100; tries++) sleep_ms(10);
    assert_int_equal(count_threads(), before);
    twi_pool_destroy(NULL);
}

static void test_refuses_no_threads(void **state) {
    twi_pool *pool = (twi_pool *)*state;
    assert_int_equal(twi_pool_create(&pool, *state, 0), TW_ERROR_ARGUMENT);
    assert_null(pool);
    assert_non_null(strstr(tw_last_error(), "0 threads"));
}

/* In a child with too little address space for 64 stacks: 0 if the failure is reported and leaves nothing behind. */
static int child_without_room(twi_memory *memory) {
    size_t pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%zu", &pages) != 1) return 10;
    fclose(statm);
    rlim_t room = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)64 << 20);
    struct rlimit stack = {.rlim_cur = (rlim_t)8 << 20, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_STACK, &stack) || setrlimit(RLIMIT_AS, &(struct rlimit){room, room})) return 11;
    if (mmap(NULL, (size_t)room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) return 77;
    twi_pool *pool;
    if (twi_pool_create(&pool, memory, 64) != TW_ERROR_DEVICE) return 12;
    if (pool || twi_memory_get_stats(memory).blocks) return 13;
    return strstr(tw_last_error(), "of 64") ? 0 : 14;
}

static void test_a_thread_that_cannot_start_is_an_error(void **state) {
    if (SANITIZED) {
        print_message("skipped: a sanitizer needs the address space that this test takes away\n");
        skip();
    }
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(child_without_room(*state));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: the limit of the address space means nothing here, as under an emulator\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_processor_count(void **state) {
    (void)state;
    assert_in_range(twi_processor_count(), 1, sysconf(_SC_NPROCESSORS_CONF));
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    int count = twi_processor_count();
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(count, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_every_worker_runs_once_a_run),
        TEST(test_run_alone_stays_on_the_caller),
        TEST(test_barrier_keeps_phases_apart),
        TEST(test_the_last_to_come_acts_for_all),
        TEST(test_wakes_from_sleep),
        TEST(test_idle_pool_costs_no_processor_time),
        TEST(test_floating_point_state_is_the_pools_own),
        TEST(test_signals_stay_with_the_programs_threads),
        TEST(test_pools_are_independent),
        TEST(test_memory_is_counted_exactly_by_several_threads),
        TEST(test_destroy_ends_the_threads),
        TEST(test_refuses_no_threads),
        TEST(test_a_thread_that_cannot_start_is_an_error),
        TEST(test_processor_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

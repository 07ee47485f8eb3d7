/* The worker pool: all workers run the same function, start and barrier are a short spin and then a futex sleep. How
 * work is divided among the workers is left to the function. A hosted pool hands its workers to the program as
 * tasks. */
#define _GNU_SOURCE
#include "threads.h"
#include "clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* Waiting longer than this on the processor costs more, when another program wants it, than the sleep it saves. */
#define SPIN_NANOSECONDS 30000
#define CACHE_LINE 64

typedef struct worker {
    twi_pool *pool;
    int index;
    pthread_t thread;
} worker;

struct twi_pool {
    twi_memory *memory;
    worker *workers; /* [0] is the caller and has no thread */
    int size;
    int64_t spin; /* ns; 0 with more workers than processors, where spinning takes the time of the one waited for */
    /* Written before `start` is bumped, read after. */
    twi_pool_fn fn, last; /* last: at the end of the run, by one worker; may be NULL */
    void *argument;
    bool quit;
    /* Hosted: */
    tw_parallel_fn parallel;
    void *user;
    atomic_uint *taken; /* of each worker: the last run that it took part in */
    unsigned run;       /* counted from 1 */
    atomic_uint done;   /* workers, in this run */
    /* Each on a line of its own: all workers poll them. */
    _Alignas(CACHE_LINE) atomic_uint start;   /* bumped to begin a run */
    _Alignas(CACHE_LINE) atomic_uint arrived; /* workers at the barrier */
    _Alignas(CACHE_LINE) atomic_uint passed;  /* bumped when the barrier opens */
    _Alignas(CACHE_LINE) atomic_uint sleepers;
};

/* --- floating-point state --- */

/* Round to nearest, no traps, denormals to zero; whatever the caller's own state is. Returns the state before. */
#if defined(__SSE__)
typedef unsigned float_state;
static float_state float_state_set(void) {
    float_state before = _mm_getcsr();
    _mm_setcsr(0x9FC0); /* 0x1F80, the default, with FTZ 0x8000 and DAZ 0x0040 */
    return before;
}
static void float_state_restore(float_state before) { _mm_setcsr(before); }
#elif defined(__aarch64__)
typedef uint64_t float_state;
static float_state float_state_set(void) {
    float_state before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)1 << 24)); /* FZ */
    return before;
}
static void float_state_restore(float_state before) { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
typedef int float_state;
static float_state float_state_set(void) { return 0; }
static void float_state_restore(float_state before) { (void)before; }
#endif

/* --- waiting --- */

static void pause_briefly(void) {
#if defined(__SSE__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool spin_for_change(const twi_pool *pool, atomic_uint *word, unsigned old) {
    enum { POLLS_PER_LOOK = 32 }; /* at the clock, which costs as much as a few polls */
    int64_t end = pool->spin ? twi_clock() + pool->spin : 0;
    do {
        for (int poll = 0; poll < POLLS_PER_LOOK; poll++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old) return true;
            pause_briefly();
        }
    } while (end && twi_clock() < end);
    return false;
}

/* Registering as a sleeper before the last look, against bumping before looking for sleepers, both in the one order of
 * seq_cst, means that either this side sees the new value or the other sees the sleeper. */
static void wait_for_change(twi_pool *pool, atomic_uint *word, unsigned old) {
    if (spin_for_change(pool, word, old)) return;
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(word) == old) syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void bump(twi_pool *pool, atomic_uint *word) {
    atomic_fetch_add(word, 1);
    if (atomic_load(&pool->sleepers)) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void twi_pool_barrier(twi_pool *pool, int worker, twi_pool_fn last, void *argument) {
    unsigned passed = atomic_load(&pool->passed);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 == (unsigned)pool->size) {
        if (last) last(argument, worker, pool->size);
        atomic_store(&pool->arrived, 0);
        bump(pool, &pool->passed);
    } else {
        wait_for_change(pool, &pool->passed, passed);
    }
}

/* --- runs --- */

static void *worker_main(void *argument) {
    const worker *self = argument;
    twi_pool *pool = self->pool;
    float_state_set();
    for (unsigned start = 0;; start++) {
        wait_for_change(pool, &pool->start, start);
        if (pool->quit) return NULL;
        pool->fn(pool->argument, self->index, pool->size);
        twi_pool_barrier(pool, self->index, pool->last, pool->argument);
    }
}

/* A task of the program's threads. What a wrong function hands out twice is done once, and told when it returns. */
static void host_task(void *task_data, int index) {
    twi_pool *pool = task_data;
    if (index < 0 || index >= pool->size || atomic_exchange(&pool->taken[index], pool->run) == pool->run) {
        atomic_fetch_add(&pool->done, (unsigned)pool->size + 1); /* no right number of tasks adds up to that */
        return;
    }
    float_state before = float_state_set();
    pool->fn(pool->argument, index, pool->size);
    float_state_restore(before);
    atomic_fetch_add(&pool->done, 1);
}

static tw_status run_hosted(twi_pool *pool, twi_pool_fn fn, void *argument) {
    pool->fn = fn;
    pool->argument = argument;
    pool->run++;
    atomic_store(&pool->done, 0);
    pool->parallel(pool->user, pool->size, host_task, pool);
    if (atomic_load(&pool->done) == (unsigned)pool->size) return TW_OK;
    return TWI_FAIL(TW_ERROR_STATE,
                    "the context's function `parallel` returned before each of %d tasks was done once; parameters may "
                    "be half updated, load them anew",
                    pool->size);
}

static void run_on_threads(twi_pool *pool, twi_pool_fn fn, twi_pool_fn last, void *argument) {
    float_state before = float_state_set();
    pool->fn = fn;
    pool->last = last;
    pool->argument = argument;
    bump(pool, &pool->start);
    fn(argument, 0, pool->size);
    twi_pool_barrier(pool, 0, last, argument);
    float_state_restore(before);
}

tw_status twi_pool_run_to(twi_pool *pool, twi_pool_fn fn, twi_pool_fn last, void *argument) {
    if (pool->size > 1 && !pool->parallel) {
        run_on_threads(pool, fn, last, argument);
        return TW_OK;
    }
    if (pool->size > 1)
        TWI_TRY(run_hosted(pool, fn, argument));
    else
        twi_pool_run_alone(pool, fn, argument);
    if (last) twi_pool_run_alone(pool, last, argument);
    return TW_OK;
}

tw_status twi_pool_run(twi_pool *pool, twi_pool_fn fn, void *argument) {
    return twi_pool_run_to(pool, fn, NULL, argument);
}

void twi_pool_run_alone(twi_pool *pool, twi_pool_fn fn, void *argument) {
    (void)pool;
    float_state before = float_state_set();
    fn(argument, 0, 1);
    float_state_restore(before);
}

void twi_pool_run_surely(twi_pool *pool, twi_pool_fn fn, void *argument) {
    if (pool->size > 1 && !pool->parallel)
        run_on_threads(pool, fn, NULL, argument);
    else
        twi_pool_run_alone(pool, fn, argument);
}

/* --- life --- */

/* Signals stay with the threads of the program, whose handlers expect them there; faults of a worker itself do not. */
static int start_thread(worker *w) {
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Ends and frees a pool of which the first `started` workers run, the caller counted. */
static void stop(twi_pool *pool, int started) {
    pool->quit = true;
    bump(pool, &pool->start);
    for (int i = 1; i < started; i++) pthread_join(pool->workers[i].thread, NULL);
    twi_put(pool->memory, pool->workers);
    twi_put(pool->memory, pool->taken);
    twi_put(pool->memory, pool);
}

/* Without threads yet. */
static tw_status make(twi_pool **out, twi_memory *memory, int threads) {
    *out = NULL;
    if (threads < 1) return TWI_FAIL(TW_ERROR_ARGUMENT, "worker pool: %d threads, expected 1 or more", threads);
    TWI_TRY(twi_get(memory, out, 1, sizeof **out, "worker pool"));
    (*out)->memory = memory;
    (*out)->size = threads;
    return TW_OK;
}

tw_status twi_pool_create_hosted(twi_pool **out, twi_memory *memory, int threads, tw_parallel_fn parallel, void *user) {
    twi_pool *pool;
    *out = NULL;
    TWI_TRY(make(&pool, memory, threads));
    tw_status status = twi_get(memory, &pool->taken, (size_t)threads, sizeof *pool->taken, "worker pool");
    if (status) {
        twi_put(memory, pool);
        return status;
    }
    pool->parallel = parallel;
    pool->user = user;
    *out = pool;
    return TW_OK;
}

tw_status twi_pool_create(twi_pool **out, twi_memory *memory, int threads) {
    twi_pool *pool;
    *out = NULL;
    TWI_TRY(make(&pool, memory, threads));
    tw_status status = twi_get(memory, &pool->workers, (size_t)threads, sizeof *pool->workers, "worker pool");
    if (status) {
        twi_put(memory, pool);
        return status;
    }
    pool->spin = threads <= twi_processor_count() ? SPIN_NANOSECONDS : 0;
    for (int i = 1; i < threads; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i;
        int error = start_thread(&pool->workers[i]);
        if (error) {
            stop(pool, i);
            return TWI_FAIL(
                TW_ERROR_DEVICE,
                "worker pool: the system refused thread %d of %d (error %d); ask for fewer threads or raise "
                "the process's limits on threads and address space",
                i + 1, threads, error);
        }
    }
    *out = pool;
    return TW_OK;
}

void twi_pool_destroy(twi_pool *pool) {
    if (pool) stop(pool, pool->parallel ? 1 : pool->size);
}

bool twi_pool_is_hosted(const twi_pool *pool) { return pool->parallel != NULL; }

bool twi_pool_is_awake(twi_pool *pool) { return pool->size > 1 && !pool->parallel && !atomic_load(&pool->sleepers); }

int twi_pool_size(const twi_pool *pool) { return pool->size; }

int twi_processor_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    /* A machine with more processors than cpu_set_t has bits. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 1 ? (int)online : 1;
}

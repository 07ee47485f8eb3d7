/* Measures what this machine can do at most: multiply-adds a second, and bytes a second to and from a core's cache and
 * main memory. The best of a few short tries counts, since whatever else the machine does can only slow them down. */
#define _GNU_SOURCE /* sysconf's names of caches */
#include "ceiling.h"
#include "base/clock.h"
#include "base/context.h"

#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_DOT 1
#else
#define HAVE_DOT 0
#endif

/* Of a core's own cache, and larger than the innermost. */
#define CACHE_VALUES ((int64_t)(256 << 10) / (int64_t)sizeof(float))
/* Main memory is what lies beyond the last cache; within bounds where the system tells strange things of it. */
#define MEMORY_BYTES_LEAST ((size_t)64 << 20)
#define MEMORY_BYTES_MOST ((size_t)512 << 20)
#define PART_NANOSECONDS 10000000
#define BEST_OF 6
#define MEMORY_BEST_OF 3

typedef struct measurement measurement;
struct measurement {
    const twi_ceiling_loops *loops;
    int threads;
    void (*work)(measurement *m, int worker); /* what every one of them does */
    int64_t rounds;
    tw_status status; /* the first failure of the program's own threads */
    float *values;    /* a worker's begin at worker * count */
    int64_t count;
    struct {
        _Alignas(64) float sink; /* one a worker */
        double done;
    } out[];
};

/* ---- what workers do ---- */

/* A worker writes its own entry of `out` alone. */
static void multiply(measurement *m, int worker) {
    m->out[worker].done = m->loops->multiply(m->rounds, 0.5f, &m->out[worker].sink);
}

#if HAVE_DOT
/* Products of pairs of bf16, added up in f32: 64 FLOPs an instruction. */
__attribute__((target("avx512f,avx512bf16"))) static void dot(measurement *m, int worker) {
    enum { CHAINS = 12, DEPTH = 16 };
    const __m512bh one = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    __m512 chain[CHAINS];
    for (int c = 0; c < CHAINS; c++) chain[c] = _mm512_setzero_ps();
    for (int64_t r = 0; r < m->rounds; r++)
        for (int d = 0; d < DEPTH; d++) {
#if defined(__clang__)
            _Pragma("unroll")
#else
            _Pragma("GCC unroll 16")
#endif
                for (int c = 0; c < CHAINS; c++) chain[c] = _mm512_dpbf16_ps(chain[c], one, one);
        }
    __m512 sum = chain[0];
    for (int c = 1; c < CHAINS; c++) sum = _mm512_add_ps(sum, chain[c]);
    m->out[worker].sink = _mm512_cvtss_f32(sum);
    m->out[worker].done = 64.0 * CHAINS * DEPTH * (double)m->rounds;
}
static bool has_dot(twi_isa isa) { return isa >= TWI_ISA_AVX512_BF16; }
#else
static void dot(measurement *m, int worker) { (void)m, (void)worker; }
static bool has_dot(twi_isa isa) {
    (void)isa;
    return false;
}
#endif

static void sweep(measurement *m, int worker) {
    float *values = m->values + worker * m->count;
    for (int64_t r = 0; r < m->rounds; r++) m->loops->sweep(values, m->count, 1.0f);
    m->out[worker].done = 2.0 * sizeof *values * (double)m->count * (double)m->rounds;
}

/* ---- measuring ---- */

static void enter(void *argument, int worker, int workers) {
    measurement *m = argument;
    (void)workers;
    if (worker < m->threads) m->work(m, worker);
}

/* All that is done a second. */
static double try_once(tw_context *context, measurement *m, int64_t *nanoseconds) {
    const int64_t began = twi_clock();
    if (m->threads == 1)
        twi_pool_run_alone(context->pool, enter, m);
    else if (m->status == TW_OK)
        m->status = twi_pool_run(context->pool, enter, m);
    *nanoseconds = twi_clock() - began;
    double done = 0;
    for (int w = 0; w < m->threads; w++) done += m->out[w].done;
    return 1e9 * done / (double)(*nanoseconds > 0 ? *nanoseconds : 1);
}

/* Rounds are doubled until a try takes long enough for waking the workers not to show. */
static double best(tw_context *context, measurement *m, void (*work)(measurement *, int), int tries) {
    int64_t nanoseconds = 0;
    double most = 0;
    m->work = work;
    m->rounds = 1;
    for (int t = 0; t < tries;) {
        const double rate = try_once(context, m, &nanoseconds);
        if (rate > most) most = rate;
        if (m->status) return 0;
        if (nanoseconds < PART_NANOSECONDS / 2)
            m->rounds *= 2;
        else
            t++;
    }
    return most;
}

static size_t last_cache(void) {
    long most = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
    const int names[] = {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const long bytes = sysconf(names[i]);
        if (bytes > most) most = bytes;
    }
#endif
    return (size_t)most;
}

static size_t memory_bytes(void) {
    const size_t cache = last_cache(), wanted = cache + cache / 2;
    return wanted < MEMORY_BYTES_LEAST ? MEMORY_BYTES_LEAST : wanted > MEMORY_BYTES_MOST ? MEMORY_BYTES_MOST : wanted;
}

static tw_status measure_memory(tw_context *context, measurement *m, tw_ceilings *out) {
    const size_t cached = (size_t)m->threads * (size_t)CACHE_VALUES * sizeof *m->values, bytes = memory_bytes();
    TWI_TRY(twi_get(context->memory, &m->values, bytes > cached ? bytes : cached, 1, "memory to measure"));
    m->count = CACHE_VALUES;
    out->cache_bandwidth = best(context, m, sweep, BEST_OF);
    m->count = (int64_t)(bytes / sizeof *m->values) / m->threads;
    out->memory_bandwidth = best(context, m, sweep, MEMORY_BEST_OF);
    twi_put(context->memory, m->values);
    return TW_OK;
}

tw_status twi_cpu_measure(tw_context *context, int threads, tw_ceilings *out) {
    const twi_isa isa = twi_cpu_isa();
    measurement *m;
    TWI_TRY(twi_get(context->memory, &m, 1, sizeof *m + (size_t)threads * sizeof m->out[0], "measurement"));
    m->threads = threads;
    m->loops = TWI_FOR_ISA(isa, ceiling);
    out->flops = best(context, m, multiply, BEST_OF);
    out->bf16_flops = has_dot(isa) ? best(context, m, dot, BEST_OF) : 0;
    out->last_cache_bytes = last_cache();
    tw_status status = measure_memory(context, m, out);
    if (status == TW_OK) status = m->status;
    twi_put(context->memory, m);
    return status;
}

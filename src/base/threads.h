/* A pool of workers, one per context, of threads of its own or of the program's (a hosted pool). Of its own threads the
 * caller is worker 0, and waiting is a short spin, then a futex sleep, so that an idle or preempted pool costs nothing.
 * Workers flush denormals to zero for themselves; the caller's floating-point state is set on entry and restored on
 * return. */
#ifndef TWI_BASE_THREADS_H
#define TWI_BASE_THREADS_H

#include "memory.h"
#include <talweg/context.h>

typedef struct twi_pool twi_pool;
typedef void (*twi_pool_fn)(void *argument, int worker, int workers);

/* threads >= 1. If a thread cannot be started the call fails with TW_ERROR_DEVICE and leaves nothing behind. */
tw_status twi_pool_create(twi_pool **out, twi_memory *memory, int threads);
/* The same on threads of the program's, of which nothing is known: `threads` tasks are handed to the function. Such
 * workers may run one after the other, and must not wait for each other: there is no barrier. */
tw_status twi_pool_create_hosted(twi_pool **out, twi_memory *memory, int threads, tw_parallel_fn parallel, void *user);
void twi_pool_destroy(twi_pool *pool);
bool twi_pool_is_hosted(const twi_pool *pool);
/* Has it several workers, of which none sleeps, so that a run would begin at once? True for a moment behind each
 * run. */
bool twi_pool_is_awake(twi_pool *pool);
int twi_pool_size(const twi_pool *pool);

/* Calls fn(argument, worker, workers) once on every worker, at the same time but where the pool is hosted, and returns
 * when all are done.
 * Errors: STATE where the program's function did not do every task once. */
tw_status twi_pool_run(twi_pool *pool, twi_pool_fn fn, void *argument);
/* The same, and when all are done the worker that was the last calls last(argument, worker, workers), before the others
 * and the caller go on. */
tw_status twi_pool_run_to(twi_pool *pool, twi_pool_fn fn, twi_pool_fn last, void *argument);
/* Calls fn(argument, 0, 1) on the caller alone, with the same floating-point state: for work too small to share. */
void twi_pool_run_alone(twi_pool *pool, twi_pool_fn fn, void *argument);
/* Calls fn on every worker, or on the caller alone where the pool is hosted: for work that must not fail, as a program's
 * own function may. */
void twi_pool_run_surely(twi_pool *pool, twi_pool_fn fn, void *argument);
/* Inside twi_pool_run, of a pool that is not hosted: waits until every worker is here. The one that comes last calls
 * last(argument, worker, workers) with what it was given itself, if not NULL, before it lets the others go: it sees
 * what all have done, and all see what it does. */
void twi_pool_barrier(twi_pool *pool, int worker, twi_pool_fn last, void *argument);

/* Processors this process may use (affinity mask), at least 1. */
int twi_processor_count(void);

#endif

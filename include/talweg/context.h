/* Talweg: the context owns the device, the memory, the worker threads and the log of everything made from it.
 *
 * Threads: a context and all that was made from it belong to one thread at a time. Contexts are independent
 * of each other; there is no global state. After fork, the child may only destroy what it inherited. Calls expect
 * rounding to nearest, C's default, and a stack of 64 KiB at least. */
#ifndef TALWEG_CONTEXT_H
#define TALWEG_CONTEXT_H

#include <talweg/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_context tw_context;

typedef enum tw_log_level { TW_LOG_ERROR = 0, TW_LOG_WARNING = 1, TW_LOG_INFO = 2, TW_LOG_DEBUG = 3 } tw_log_level;

/** Receives one log line without a newline. Called from the thread that uses the context. */
typedef void (*tw_log_fn)(void *user, tw_log_level level, const char *message);

/** Asked before each host allocation (index counts from 0): return true to make it fail. For tests. */
typedef bool (*tw_memory_hook_fn)(void *user, uint64_t index, size_t bytes);

/** One of the tasks that a tw_parallel_fn is handed. Returns when it is done, and waits for no other task. */
typedef void (*tw_parallel_task)(void *task_data, int index);

/** Does task(task_data, index) for every index from 0 to count - 1, each once, on any threads and in any order, and
 *  returns when all are done; what they wrote is then seen by the caller. Called from the thread that uses the context,
 *  a few times a run; tasks may as well be done one after the other. Threads need a stack as in the comment above, and
 *  get their floating-point state back. */
typedef void (*tw_parallel_fn)(void *user, int count, tw_parallel_task task, void *task_data);

typedef struct tw_context_options {
    size_t size;
    int threads;                   /**< workers incl. the caller, or tasks handed to `parallel`; 0: the processors this
                                        process may use */
    size_t memory_limit;           /**< cap on host memory in bytes; 0: none */
    tw_log_fn log;                 /**< NULL: no log; the library itself never prints */
    void *log_user;
    tw_log_level log_level;        /**< most verbose level passed on; 0 passes errors only */
    tw_memory_hook_fn memory_hook; /**< failure injection; NULL: none */
    void *memory_hook_user;
    size_t device_memory_limit;    /**< cap on the memory of a GPU in bytes; 0: none */
    bool autotune;                 /**< time the ways to do a step (on a GPU the first few for a convolution) when a
                                        program is made, and take the fastest instead of the one that the library
                                        guesses. Another plan, with other rounding, may then be chosen from run to run,
                                        unless cache_folder keeps the choice */
    const char *cache_folder;      /**< where choices are kept that were made for a GPU, or by autotune for a CPU, so
                                        that later programs start faster and on the same plan; NULL: the environment
                                        variable TALWEG_CACHE_DIR, or nowhere. Copied */
    tw_parallel_fn parallel;       /**< the program's own threads do the work: `threads` tasks at a time are handed to
                                        it, and none are started; results are the same. NULL: threads of the library's
                                        own */
    void *parallel_user;
} tw_context_options;
#define TW_CONTEXT_OPTIONS_INIT {sizeof(tw_context_options), 0, 0, NULL, NULL, TW_LOG_ERROR, NULL, NULL, 0, false, NULL, NULL, NULL}

/** Opens a device: "cpu", "cuda:0" ("cuda" is the first one), or "auto" (the best there is; logs why when it is the
 *  CPU). "plan:cpu", "plan:cuda:0" and "plan:auto" build and plan as the device behind them does, count its memory and
 *  take none of it, and refuse to run: parameters have no values there. "plan:h200" does the same for a card that need
 *  not be here (tw_card_get lists them). It asks cuDNN, where the CUDA back end was built, and needs no driver; what
 *  cuDNN would compile at run time only with one is planned as a plain kernel. Where there is no such back end,
 *  workspaces are estimated: see tw_plan_memory.
 *  Errors: TW_ERROR_DEVICE for a device that is not there (the text names what is missing). */
TW_API TW_WARN_UNUSED tw_status tw_context_create(tw_context **out, const char *device, const tw_context_options *options);

/** Destroys a context; everything made from it must be gone before. NULL is fine. */
TW_API void tw_context_destroy(tw_context *context);

/** The device in use: "cpu", "cuda:0". */
TW_API const char *tw_context_get_device(const tw_context *context);

/** Number of workers, the calling thread included. */
TW_API int tw_context_get_threads(const tw_context *context);

typedef struct tw_memory_stats {
    size_t bytes;          /**< held now */
    size_t peak;           /**< most ever held */
    size_t limit;          /**< the cap; 0: none */
    uint64_t allocations;  /**< blocks ever handed out */
    uint64_t blocks;       /**< blocks held now */
} tw_memory_stats;

/** Host memory held through this context, in bytes. */
TW_API tw_memory_stats tw_context_get_memory(const tw_context *context);

/** Memory of the device held through this context: of a GPU its own; on the CPU that of parameters, activations and all
 *  else that a GPU would hold, which is part of what tw_context_get_memory tells. In a context that only plans, what
 *  would be held. */
TW_API tw_memory_stats tw_context_get_device_memory(const tw_context *context);

/** Sets the cap on host memory in bytes; 0: none. Memory already held is kept. */
TW_API void tw_context_set_memory_limit(tw_context *context, size_t bytes);

/** Sets the failure-injection hook; NULL: none. The index starts again from 0. For tests. */
TW_API void tw_context_set_memory_hook(tw_context *context, tw_memory_hook_fn hook, void *user);

#ifdef __cplusplus
}
#endif
#endif

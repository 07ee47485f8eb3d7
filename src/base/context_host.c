/* The part of a context that needs no device: memory, workers, log, and the getters. Opening the device is left to
 * src/program/context.c. */
#include "context.h"
#include "options.h"

/* More workers than any machine has processors is a field that was never set. */
#define MAX_THREADS 1024

static tw_status open_pool(tw_context *context, const tw_context_options *o) {
    const int threads = o->threads ? o->threads : twi_processor_count();
    return o->parallel ? twi_pool_create_hosted(&context->pool, context->memory, threads, o->parallel, o->parallel_user)
                       : twi_pool_create(&context->pool, context->memory, threads);
}

tw_status twi_context_open(tw_context **out, const tw_context_options *options) {
    *out = NULL;
    tw_context_options o;
    TWI_TRY(twi_options_read(&o, sizeof o, options, "tw_context_create"));
    if (o.threads < 0 || o.threads > MAX_THREADS)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_context_create: threads is %d, expected 0 (all processors) or 1 to %d",
                        o.threads, MAX_THREADS);
    twi_memory *memory;
    TWI_TRY(twi_memory_create(&memory, o.memory_limit, o.memory_hook, o.memory_hook_user));
    tw_context *context;
    tw_status status = twi_get(memory, &context, 1, sizeof *context, "context");
    if (status) {
        twi_memory_destroy(memory);
        return status;
    }
    context->memory = memory;
    context->device_memory_limit = o.device_memory_limit;
    context->autotune = o.autotune;
    context->log = (twi_log){.fn = o.log, .user = o.log_user, .level = o.log_level};
    if (o.cache_folder) status = twi_get_text(memory, &context->cache_folder, o.cache_folder);
    if (status == TW_OK) status = open_pool(context, &o);
    if (status) {
        twi_context_close(context);
        return status;
    }
    *out = context;
    return TW_OK;
}

void twi_context_close(tw_context *context) {
    if (!context) return;
    twi_pool_destroy(context->pool);
    twi_put(context->memory, context->cache_folder);
    twi_memory *memory = context->memory; /* the context is itself a block of it */
    twi_put(memory, context);
    twi_memory_destroy(memory);
}

const char *tw_context_get_device(const tw_context *context) { return context ? context->device_name : ""; }

int tw_context_get_threads(const tw_context *context) { return context ? twi_pool_size(context->pool) : 0; }

tw_memory_stats tw_context_get_memory(const tw_context *context) {
    return context ? twi_memory_get_stats(context->memory) : (tw_memory_stats){0};
}

void tw_context_set_memory_limit(tw_context *context, size_t bytes) {
    if (context) twi_memory_set_limit(context->memory, bytes);
}

void tw_context_set_memory_hook(tw_context *context, tw_memory_hook_fn hook, void *user) {
    if (context) twi_memory_set_hook(context->memory, hook, user);
}

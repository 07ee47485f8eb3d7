/* The CPU as a back end: its table of functions, its device, memory, and the choice of an implementation for a step.
 * Binding and running programs are in cpu_prepare.c and cpu_run.c, the implementations in families of their own. */
#include "ceiling.h"
#include "cpu_program.h"
#include "halves.h"
#include "onednn.h"
#include "trial.h"
#include "base/choices.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* ---- device ---- */

typedef struct cpu_device {
    twi_isa isa;
    twi_onednn *onednn;
    twi_choices choices;    /* of trials */
    tw_memory_stats memory; /* of what cpu_get hands out */
} cpu_device;

/* What trials were found on is part of what they hold for. */
static tw_status open_choices(tw_context *context, cpu_device *cpu) {
    tw_device_info info = {0};
    char header[256];
    twi_cpu_describe_machine(&info);
    snprintf(header, sizeof header, "talweg cpu choices 1; talweg %s; %s; %s", tw_version(), info.name,
             context->machine);
    return twi_choices_open(&cpu->choices, context->memory, &context->log, context->cache_folder, "cpu", header);
}

static void cpu_close(tw_context *context, void *device) {
    cpu_device *cpu = device;
    if (!cpu) return;
    twi_choices_close(&cpu->choices);
    twi_onednn_close(cpu->onednn);
    twi_put(context->memory, cpu);
}

static tw_status cpu_open(tw_context *context, void **out) {
    *out = NULL;
    cpu_device *cpu;
    TWI_TRY(twi_get(context->memory, &cpu, 1, sizeof *cpu, "cpu device"));
    cpu->isa = twi_cpu_isa();
    snprintf(context->machine, sizeof context->machine, "%s, %s", twi_cpu_isa_name(cpu->isa), twi_onednn_version());
    tw_status status = twi_onednn_open(&cpu->onednn, context->memory, twi_pool_size(context->pool));
    if (status == TW_OK && context->autotune) status = open_choices(context, cpu);
    if (status) {
        cpu_close(context, cpu);
        return status;
    }
    twi_log_line(&context->log, TW_LOG_INFO, "cpu: %s, %d thread%s", context->machine, twi_pool_size(context->pool),
                 twi_plural(twi_pool_size(context->pool)));
    *out = cpu;
    return TW_OK;
}

static tw_status cpu_describe(const tw_context *context, tw_device_info *out) {
    const cpu_device *cpu = context->device;
    out->processors = twi_pool_size(context->pool);
    snprintf(out->code, sizeof out->code, "%s, %s", twi_cpu_isa_name(cpu->isa), twi_onednn_version());
    twi_cpu_describe_machine(out);
    return TW_OK;
}

/* Halves that it does not compute in are widened. */
static bool cpu_computes_in(const tw_context *context, tw_precision precision) {
    const cpu_device *cpu = context->device;
    return precision == TW_PRECISION_BF16 && cpu->isa >= TWI_ISA_AVX512_BF16;
}

static int cpu_workers(const tw_context *context) { return twi_pool_size(context->pool); }

/* ---- memory ---- */

/* The context's blocks are aligned to cache lines; what is known of a block stands just before what is handed out. */
#define ALIGNMENT ((size_t)256)

typedef struct cpu_block {
    unsigned char *base;
    size_t bytes;
} cpu_block;

static tw_status cpu_get_host(tw_context *context, void **out, size_t bytes, const char *what) {
    *out = NULL;
    size_t padded;
    TWI_TRY(twi_add_size(&padded, bytes, ALIGNMENT + sizeof(cpu_block), what));
    cpu_block block = {.bytes = bytes};
    TWI_TRY(twi_get(context->memory, &block.base, padded, 1, what));
    size_t lead = ALIGNMENT - (uintptr_t)block.base % ALIGNMENT;
    if (lead < sizeof block) lead += ALIGNMENT;
    memcpy(block.base + lead - sizeof block, &block, sizeof block);
    *out = block.base + lead;
    return TW_OK;
}

static cpu_block block_of(const void *memory) {
    cpu_block block;
    memcpy(&block, (const unsigned char *)memory - sizeof block, sizeof block);
    return block;
}

static void cpu_put_host(tw_context *context, void *memory) {
    if (memory) twi_put(context->memory, block_of(memory).base);
}

/* From here on memory is touched by all workers: the system clears a page when it is touched first. A run that did it
 * would have workers wait for each other's pages. */
#define TOUCHED_BYTES ((size_t)4 << 20)
#define PAGE_BYTES ((size_t)4096) /* or a multiple */

typedef struct touched {
    unsigned char *memory;
    size_t bytes;
} touched;

static void touch_share(void *argument, int worker, int workers) {
    const touched *t = argument;
    const size_t pages = t->bytes / PAGE_BYTES, begin = pages / (size_t)workers * (size_t)worker,
                 end = worker + 1 == workers ? pages : begin + pages / (size_t)workers;
    for (size_t p = begin; p < end; p++) *(volatile unsigned char *)(t->memory + p * PAGE_BYTES) = 0;
}

static tw_status cpu_get(tw_context *context, void **out, size_t bytes, const char *what) {
    tw_memory_stats *stats = &((cpu_device *)context->device)->memory;
    TWI_TRY(cpu_get_host(context, out, bytes, what));
    if (bytes >= TOUCHED_BYTES) twi_pool_run_surely(context->pool, touch_share, &(touched){*out, bytes});
    stats->allocations++;
    stats->blocks++;
    stats->bytes += bytes;
    if (stats->bytes > stats->peak) stats->peak = stats->bytes;
    return TW_OK;
}

static void cpu_put(tw_context *context, void *memory) {
    if (!memory) return;
    tw_memory_stats *stats = &((cpu_device *)context->device)->memory;
    stats->blocks--;
    stats->bytes -= block_of(memory).bytes;
    cpu_put_host(context, memory);
}

static tw_memory_stats cpu_get_memory(const tw_context *context) {
    return ((const cpu_device *)context->device)->memory;
}

static tw_status cpu_copy(tw_context *context, void *to, const void *from, size_t bytes) {
    (void)context;
    if (bytes) memcpy(to, from, bytes);
    return TW_OK;
}

/* A batch is copied by all workers, if they need not be woken for it: each then has a part of it in its cache. */
#define SHARED_COPY_BYTES ((size_t)64 << 10)

typedef struct shared_copy {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    size_t stride; /* of copies for each */
} shared_copy;

static void copy_share(void *argument, int worker, int workers) {
    const shared_copy *copy = argument;
    const size_t lines = copy->bytes / 64, begin = lines * (size_t)worker / (size_t)workers * 64,
                 end = worker + 1 == workers ? copy->bytes : lines * (size_t)(worker + 1) / (size_t)workers * 64;
    memcpy(copy->to + begin, copy->from + begin, end - begin);
}

static tw_status cpu_copy_in(tw_context *context, void *to, const void *from, size_t bytes) {
    const bool countable = bytes <= SIZE_MAX / 4096; /* lines times workers */
    if (bytes < SHARED_COPY_BYTES || !countable || !twi_pool_is_awake(context->pool))
        return cpu_copy(context, to, from, bytes);
    return twi_pool_run(context->pool, copy_share, &(shared_copy){to, from, bytes, 0});
}

static void copy_own(void *argument, int worker, int workers) {
    const shared_copy *copy = argument;
    unsigned char *to = copy->to + copy->stride * (size_t)worker;
    (void)workers;
    if (to != copy->from) memcpy(to, copy->from, copy->bytes);
}

/* Of a program's threads nobody knows which comes back to a worker's copy. */
static int cpu_copies(const tw_context *context) {
    return twi_pool_is_hosted(context->pool) ? 1 : twi_pool_size(context->pool);
}

static tw_status cpu_copy_in_each(tw_context *context, void *to, size_t stride, const void *from, size_t bytes) {
    return twi_pool_run(context->pool, copy_own, &(shared_copy){to, from, bytes, stride});
}

static tw_status cpu_narrow(tw_context *context, void *out, tw_dtype to, const float *in, int64_t count) {
    const cpu_device *cpu = context->device;
    twi_halves_for(cpu->isa)->narrow(out, in, to, count);
    return TW_OK;
}

/* A run is over when run returns: there is nothing to wait for. */
static tw_status cpu_mark(tw_context *context, int mark) {
    (void)context, (void)mark;
    return TW_OK;
}

/* ---- implementations ---- */

/* Programs of the checks in double run on the specification. */
static twi_isa isa_for(const tw_context *context, const twi_call *call) {
    const cpu_device *cpu = context->device;
    for (int o = 0; o < call->operand_count; o++)
        if (call->operand[o].dtype == TWI_DTYPE_DOUBLE) return TWI_ISA_NONE;
    return cpu->isa;
}

static tw_status prepare_impl(twi_cpu_site *site, const twi_cpu_impl *impl, const twi_call *main,
                              const twi_call *tail) {
    site->impl = impl;
    return impl->prepare ? impl->prepare(site, main, tail) : TW_OK;
}

/* Back to a site without an implementation. */
static void unprepare(twi_cpu_site *site) {
    if (site->impl && site->impl->release) site->impl->release(site);
    site->impl = NULL;
    site->state[0] = site->state[1] = NULL;
    site->shared_bytes = site->worker_bytes = 0;
    memset(site->partial_bytes, 0, sizeof site->partial_bytes);
}

static tw_status choose_impl(tw_context *context, twi_cpu_site *site, const twi_call *main, const twi_call *tail,
                             size_t workspace_limit);

/* Nobody computes on these halves: an implementation of the same step in f32 does, with halves at its borders. */
static tw_status choose_f32(tw_context *context, twi_cpu_site *site, const twi_call *main, const twi_call *tail,
                            size_t workspace_limit) {
    twi_cpu_site f32 = *site;
    const twi_call wide = twi_cpu_widened_call(main), rest = tail ? twi_cpu_widened_call(tail) : wide;
    TWI_TRY(choose_impl(context, &f32, &wide, tail ? &rest : NULL, workspace_limit));
    tw_status status = twi_cpu_widen(site, &f32, main);
    if (status && f32.impl && f32.impl->release) f32.impl->release(&f32);
    return status;
}

/* Takes what trials found, if it can be prepared; else asks the implementations in order of preference, then takes the
 * specification. Of those that want more scratch than the limit the one that wants least comes before the
 * specification. */
static tw_status choose_impl(tw_context *context, twi_cpu_site *site, const twi_call *main, const twi_call *tail,
                             size_t workspace_limit) {
    const char *reason = NULL;
    const char *name = site->kernel->name;
    const twi_cpu_impl *least = NULL;
    size_t least_bytes = 0;
    if (context->autotune && workspace_limit == SIZE_MAX) {
        cpu_device *cpu = context->device;
        const twi_cpu_impl *tuned;
        TWI_TRY(twi_cpu_tune(context, &cpu->choices, site, main, tail, &tuned));
        if (tuned) {
            tw_status status = prepare_impl(site, tuned, main, tail);
            if (status != TW_ERROR_UNSUPPORTED) return status;
        }
    }
    const twi_cpu_impl *impl = twi_cpu_find_impl(name, main, site->isa, &reason);
    while (impl) {
        tw_status status = prepare_impl(site, impl, main, tail);
        const bool large = status == TW_OK && site->worker_bytes > workspace_limit;
        if (status != TW_ERROR_UNSUPPORTED && !large) return status;
        if (large && (!least || site->worker_bytes < least_bytes)) {
            least = impl;
            least_bytes = site->worker_bytes;
        }
        if (large) unprepare(site);
        if (!large)
            twi_log_line(&context->log, TW_LOG_DEBUG, "cpu: %s not by %s: %s", name, impl->name, tw_last_error());
        impl = twi_cpu_find_impl_after(impl, name, main, site->isa, &reason);
    }
    if (least) return prepare_impl(site, least, main, tail);
    site->impl = NULL;
    if (twi_cpu_has_halves(main)) return choose_f32(context, site, main, tail, workspace_limit);
    for (int o = 0; o < main->operand_count; o++)
        if (main->operand[o].lanes)
            return TWI_FAIL(TW_ERROR_INTERNAL,
                            "op kernel '%s': nothing takes samples side by side (%s); please report it", name,
                            reason ? reason : "none is registered");
    if (!site->kernel->run)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "op kernel '%s' has no implementation on the back end 'cpu' (%s)", name,
                        reason ? reason : "none is registered");
    if (reason) twi_log_line(&context->log, TW_LOG_DEBUG, "cpu: %s by its specification: %s", name, reason);
    if (site->kernel->workspace) {
        size_t rest = tail ? site->kernel->workspace(tail) : 0;
        site->worker_bytes = site->kernel->workspace(main);
        if (rest > site->worker_bytes) site->worker_bytes = rest;
    }
    return TW_OK;
}

static tw_status cpu_choose(tw_context *context, const twi_kernel *kernel, const twi_call *main, const twi_call *tail,
                            size_t workspace_limit, twi_choice *out) {
    *out = (twi_choice){0};
    const cpu_device *cpu = context->device;
    twi_cpu_site *site;
    TWI_TRY(twi_get(context->memory, &site, 1, sizeof *site, "implementation of a step"));
    site->kernel = kernel;
    site->memory = context->memory;
    site->onednn = cpu->onednn;
    site->isa = isa_for(context, main);
    site->workers = twi_pool_size(context->pool);
    tw_status status = choose_impl(context, site, main, tail, workspace_limit);
    if (status) {
        twi_put(context->memory, site);
        return status;
    }
    out->implementation = site->name ? site->name : site->impl ? site->impl->name : "specification";
    out->state = site;
    out->shared_bytes = site->shared_bytes;
    out->worker_bytes = site->worker_bytes;
    memcpy(out->partial_bytes, site->partial_bytes, sizeof out->partial_bytes);
    return TW_OK;
}

static void cpu_release(tw_context *context, twi_choice *choice) {
    twi_cpu_site *site = choice->state;
    if (site && site->impl && site->impl->release) site->impl->release(site);
    twi_put(context->memory, site);
    *choice = (twi_choice){0};
}

/* Where the specification is what was asked for, it is as good as anything. */
static bool cpu_takes(tw_context *context, const twi_kernel *kernel, const twi_call *call) {
    twi_isa isa = isa_for(context, call);
    const twi_call wide = twi_cpu_widened_call(call); /* if nobody computes on its halves */
    return isa == TWI_ISA_NONE || twi_cpu_find_impl(kernel->name, call, isa, NULL) ||
           twi_cpu_find_impl(kernel->name, &wide, isa, NULL);
}

/* Who does the call; of halves that nobody computes on, it is the implementation of its f32 twin, made of it in
 * wide. */
static const twi_cpu_impl *impl_of(tw_context *context, const twi_kernel *kernel, const twi_call **call,
                                   twi_call *wide) {
    const twi_isa isa = isa_for(context, *call);
    const twi_cpu_impl *impl = twi_cpu_find_impl(kernel->name, *call, isa, NULL);
    if (impl || !twi_cpu_has_halves(*call)) return impl;
    *wide = twi_cpu_widened_call(*call);
    *call = wide;
    return twi_cpu_find_impl(kernel->name, wide, isa, NULL);
}

static int cpu_lanes(tw_context *context, const twi_kernel *kernel, const twi_call *call, int operand) {
    twi_call wide;
    const twi_cpu_impl *impl = impl_of(context, kernel, &call, &wide);
    return impl && impl->lanes ? impl->lanes(call, isa_for(context, call), operand) : 0;
}

static int64_t cpu_chunk_multiple(tw_context *context, const twi_kernel *kernel, const twi_call *call) {
    twi_call wide;
    const twi_cpu_impl *impl = impl_of(context, kernel, &call, &wide);
    return impl && impl->multiple ? impl->multiple(call, isa_for(context, call)) : 1;
}

const twi_backend twi_backend_cpu = {
    .name = "cpu",
    .host_memory = true,
    .in_flight = 1,
    .times_steps = true,
    .chunked = true,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .measure = twi_cpu_measure,
    .computes_in = cpu_computes_in,
    .workers = cpu_workers,
    .get = cpu_get,
    .put = cpu_put,
    .get_memory = cpu_get_memory,
    .copy_in = cpu_copy_in,
    .copies = cpu_copies,
    .copy_in_each = cpu_copy_in_each,
    .copy = cpu_copy,
    .narrow = cpu_narrow,
    .copy_out = cpu_copy,
    .get_host = cpu_get_host,
    .put_host = cpu_put_host,
    .fetch = cpu_copy,
    .mark = cpu_mark,
    .wait = cpu_mark,
    .choose = cpu_choose,
    .release = cpu_release,
    .takes = cpu_takes,
    .lanes = cpu_lanes,
    .chunk_multiple = cpu_chunk_multiple,
    .prepare = twi_cpu_prepare,
    .discard = twi_cpu_discard,
    .lend = twi_cpu_lend,
    .run = twi_cpu_run,
};

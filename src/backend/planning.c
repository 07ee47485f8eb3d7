/* See planning.h. Addresses are those of nothing: unlike each other, aligned as the device's are, never looked at. */
#include "planning.h"
#include "base/text.h"

#include <string.h>

enum { ALIGNMENT = 256 };

typedef struct block_list {
    twi_planned_block *block;
    int count, capacity;
} block_list;

struct twi_planning {
    twi_backend table;                                                     /* the context's back end */
    tw_status (*describe)(const tw_context *context, tw_device_info *out); /* of the device as it is */
    block_list held, peak;
    uintptr_t next; /* address */
    tw_memory_stats memory;
};

static tw_status reserve(tw_context *context, block_list *list, int count) {
    if (count <= list->capacity) return TW_OK;
    const int grown = list->capacity ? 2 * list->capacity : 64;
    TWI_TRY(twi_grow(context->memory, &list->block, (size_t)grown, sizeof *list->block, "planned blocks"));
    list->capacity = grown;
    return TW_OK;
}

static void note_peak(twi_planning *planning) {
    planning->memory.peak = planning->memory.bytes;
    planning->peak.count = planning->held.count;
    if (planning->held.count)
        memcpy(planning->peak.block, planning->held.block, (size_t)planning->held.count * sizeof *planning->held.block);
}

static tw_status over_the_cap(const tw_memory_stats *memory, size_t bytes, const char *what) {
    char asked[TWI_QUANTITY_TEXT], held[TWI_QUANTITY_TEXT], cap[TWI_QUANTITY_TEXT];
    return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY,
                    "%s: out of device memory, as planned: %s asked, %s held, cap %s. Use a smaller batch", what,
                    twi_quantity((double)bytes, "B", asked), twi_quantity((double)memory->bytes, "B", held),
                    twi_quantity((double)memory->limit, "B", cap));
}

static tw_status planned_get(tw_context *context, void **out, size_t bytes, const char *what) {
    twi_planning *planning = context->planning;
    tw_memory_stats *memory = &planning->memory;
    size_t span;
    *out = NULL;
    TWI_TRY(twi_add_size(&span, bytes, 2 * ALIGNMENT, what));
    if (bytes > SIZE_MAX / 2 - memory->bytes || (memory->limit && memory->bytes + bytes > memory->limit))
        return over_the_cap(memory, bytes, what);
    TWI_TRY(reserve(context, &planning->held, planning->held.count + 1));
    TWI_TRY(reserve(context, &planning->peak, planning->held.count + 1));
    *out = (void *)planning->next;
    planning->next += span / ALIGNMENT * ALIGNMENT;
    planning->held.block[planning->held.count++] = (twi_planned_block){what, bytes, *out};
    memory->allocations++;
    memory->blocks++;
    memory->bytes += bytes;
    if (memory->bytes > memory->peak) note_peak(planning);
    return TW_OK;
}

static void planned_put(tw_context *context, void *address) {
    twi_planning *planning = context->planning;
    for (int i = 0; address && i < planning->held.count; i++) {
        twi_planned_block *block = &planning->held.block[i];
        if (block->address != address) continue;
        planning->memory.bytes -= block->bytes;
        planning->memory.blocks--;
        *block = planning->held.block[--planning->held.count];
        return;
    }
}

/* What would be left. Of a card that is not here a sixteenth is not counted on, and what its driver takes. */
static tw_status planned_describe(const tw_context *context, tw_device_info *out) {
    const twi_planning *planning = context->planning;
    TWI_TRY(planning->describe(context, out));
    if (context->card) {
        const size_t room = twi_planned_room(out->memory_bytes);
        out->free_bytes = room > TWI_PLANNED_OVERHEAD ? room - TWI_PLANNED_OVERHEAD : 0;
    }
    const size_t held = planning->memory.bytes;
    out->free_bytes = out->free_bytes > held ? out->free_bytes - held : 0;
    return TW_OK;
}

static tw_memory_stats planned_memory(const tw_context *context) { return context->planning->memory; }

/* What is brought in goes nowhere: all that a fit does before its first step shall go through. */
static tw_status planned_copy_in(tw_context *context, void *device, const void *host, size_t bytes) {
    (void)context, (void)device, (void)host, (void)bytes;
    return TW_OK;
}

static tw_status planned_copy_in_each(tw_context *context, void *device, size_t stride, const void *host,
                                      size_t bytes) {
    (void)stride;
    return planned_copy_in(context, device, host, bytes);
}

static tw_status planned_copy(tw_context *context, void *to, const void *from, size_t bytes) {
    return planned_copy_in(context, to, from, bytes);
}

static tw_status refuse(const tw_context *context) {
    return TWI_FAIL(TW_ERROR_STATE,
                    "the context was opened on \"%s\", to plan only: it holds no weights and no values; open it on "
                    "\"%s\" to run",
                    context->device_name, context->backend->name);
}

static tw_status planned_stream_in(tw_context *context, void *device, int slot, const void *host, size_t bytes) {
    (void)device, (void)slot, (void)host, (void)bytes;
    return refuse(context);
}

static tw_status planned_copy_out(tw_context *context, void *host, const void *device, size_t bytes) {
    (void)host, (void)device, (void)bytes;
    return refuse(context);
}

static tw_status planned_mark(tw_context *context, int mark) {
    (void)mark;
    return refuse(context);
}

static tw_status planned_get_host(tw_context *context, void **out, size_t bytes, const char *what) {
    return twi_get(context->memory, out, bytes, 1, what);
}

static void planned_put_host(tw_context *context, void *memory) { twi_put(context->memory, memory); }

static tw_status planned_prepare(tw_context *context, void **out, const twi_plan *plan, twi_control *control,
                                 void *arena, void *scratch) {
    (void)context, (void)plan, (void)control, (void)arena, (void)scratch;
    *out = NULL;
    return TW_OK;
}

static void planned_discard(tw_context *context, void *prepared) { (void)context, (void)prepared; }

static tw_status planned_run(tw_context *context, void *prepared, int first_segment, int segment_count) {
    (void)prepared, (void)first_segment, (void)segment_count;
    return refuse(context);
}

tw_status twi_planning_open(tw_context *context, const twi_backend *planned) {
    twi_planning *planning;
    TWI_TRY(twi_get(context->memory, &planning, 1, sizeof *planning, "planning"));
    planning->next = (uintptr_t)1 << 40; /* nothing is known to lie there, and it does not matter */
    planning->memory.limit = context->device_memory_limit;
    twi_backend *table = &planning->table;
    *table = *planned;
    planning->describe = planned->describe;
    table->describe = planned_describe;
    table->get = planned_get;
    table->put = planned_put;
    table->get_memory = planned_memory;
    table->copy_in = planned_copy_in;
    table->copy_in_each = planned_copy_in_each;
    table->copy = planned_copy;
    table->stream_in = planned->host_memory ? NULL : planned_stream_in;
    table->copy_out = planned_copy_out;
    table->get_host = planned_get_host;
    table->put_host = planned_put_host;
    table->fetch = planned_copy_out;
    table->mark = table->wait = planned_mark;
    table->prepare = planned_prepare;
    table->discard = planned_discard;
    table->run = planned_run;
    context->planning = planning;
    context->backend = table;
    return TW_OK;
}

void twi_planning_close(tw_context *context) {
    twi_planning *planning = context->planning;
    if (!planning) return;
    twi_put(context->memory, planning->held.block);
    twi_put(context->memory, planning->peak.block);
    twi_put(context->memory, planning);
    context->planning = NULL;
}

const twi_planned_block *twi_planning_peak(const tw_context *context, int *count) {
    *count = context->planning ? context->planning->peak.count : 0;
    return context->planning ? context->planning->peak.block : NULL;
}

bool twi_planning_is_estimated(const tw_context *context) {
    return context->planning && context->planning->table.choose == twi_backend_estimated.choose;
}

void twi_planning_forget_peak(tw_context *context) {
    if (context->planning) note_peak(context->planning);
}

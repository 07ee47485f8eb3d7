/* The context's allocator: every block the library holds comes from here, so that a cap, exact statistics and failure
 * injection reach all of it. What is placed inside a block (the arena) is planned elsewhere. */
#define _DEFAULT_SOURCE /* madvise */
#include "memory.h"
#include "text.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What lies behind a block, since the system aligns less, nobody may touch. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

struct twi_memory {
    atomic_size_t limit, bytes, peak;
    _Atomic uint64_t allocations, blocks, asked;
    tw_memory_hook_fn hook; /* set only while no other thread allocates */
    void *hook_user;
};

/* Cache line and widest vector; and the size of a huge page, so that large blocks cost few TLB entries. */
#define SMALL_ALIGNMENT ((size_t)64)
#define HUGE_PAGE ((size_t)2 << 20)

/* Stands just before the payload. What the payload's alignment leaves before it and behind it costs nothing where it is
 * long: these are pages that nobody touches. */
typedef struct block_header {
    void *base; /* what the system gave */
    size_t bytes;
} block_header;

static block_header *header_of(void *block) { return (block_header *)(void *)((char *)block - sizeof(block_header)); }

static size_t alignment_of(size_t bytes) { return bytes < HUGE_PAGE ? SMALL_ALIGNMENT : HUGE_PAGE; }

tw_status twi_memory_create(twi_memory **out, size_t limit, tw_memory_hook_fn hook, void *user) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY, "context: the system refused %zu bytes; free memory elsewhere",
                        sizeof **out);
    atomic_init(&(*out)->limit, limit);
    twi_memory_set_hook(*out, hook, user);
    return TW_OK;
}

void twi_memory_destroy(twi_memory *memory) { free(memory); }

tw_memory_stats twi_memory_get_stats(const twi_memory *memory) {
    return (tw_memory_stats){
        .bytes = atomic_load(&memory->bytes),
        .peak = atomic_load(&memory->peak),
        .limit = atomic_load(&memory->limit),
        .allocations = atomic_load(&memory->allocations),
        .blocks = atomic_load(&memory->blocks),
    };
}

void twi_memory_set_limit(twi_memory *memory, size_t bytes) { atomic_store(&memory->limit, bytes); }

void twi_memory_set_hook(twi_memory *memory, tw_memory_hook_fn hook, void *user) {
    memory->hook = hook;
    memory->hook_user = user;
    atomic_store(&memory->asked, 0);
}

static tw_status out_of_memory(const twi_memory *memory, size_t bytes, const char *what, const char *cause,
                               const char *remedy) {
    char asked[TWI_QUANTITY_TEXT], cap[TWI_QUANTITY_TEXT] = "no cap";
    size_t limit = atomic_load(&memory->limit);
    if (limit) snprintf(cap, sizeof cap, "cap %zu", limit);
    return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY, "%s: out of memory, %s: %zu bytes (%s) asked, %zu held, %s; %s", what,
                    cause, bytes, twi_quantity((double)bytes, "B", asked), (size_t)atomic_load(&memory->bytes), cap,
                    remedy);
}

/* Counts the bytes as held if the cap allows it. */
static bool reserve(twi_memory *memory, size_t bytes) {
    size_t limit = atomic_load(&memory->limit);
    size_t held = atomic_load(&memory->bytes);
    do {
        if (bytes > SIZE_MAX - held || (limit && held + bytes > limit)) return false;
    } while (!atomic_compare_exchange_weak(&memory->bytes, &held, held + bytes));
    return true;
}

/* Counts a block whose bytes are reserved as handed out. */
static void count_block(twi_memory *memory) {
    atomic_fetch_add(&memory->allocations, 1);
    atomic_fetch_add(&memory->blocks, 1);
    size_t held = atomic_load(&memory->bytes);
    size_t peak = atomic_load(&memory->peak);
    while (peak < held && !atomic_compare_exchange_weak(&memory->peak, &peak, held)) continue;
}

/* The block from the system, aligned, zeroed, its header filled; NULL if refused. Large ones that are new to the
 * process come as untouched pages, which are zeros already: whoever touches them first has the system clear them. */
static void *system_block(size_t bytes) {
    const size_t alignment = alignment_of(bytes), lead = sizeof(block_header) + alignment - 1;
    char *base = bytes > SIZE_MAX - lead ? NULL : calloc(1, lead + bytes);
    if (!base) return NULL;
    const size_t behind = ((uintptr_t)base + lead) % alignment;
    char *block = base + lead - behind;
    /* Advice before the first touch; a kernel without huge pages refuses it and nothing is lost. */
    if (bytes >= HUGE_PAGE) (void)madvise(block, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    *header_of(block) = (block_header){.base = base, .bytes = bytes};
    ASAN_POISON_MEMORY_REGION(block + bytes, behind);
    return block;
}

static tw_status take_block(twi_memory *memory, void **out, size_t bytes, const char *what) {
    if (!reserve(memory, bytes))
        return out_of_memory(memory, bytes, what, "over the context's cap",
                             "raise it with tw_context_set_memory_limit, or use a smaller batch or model");
    bool injected = memory->hook && memory->hook(memory->hook_user, atomic_fetch_add(&memory->asked, 1), bytes);
    *out = injected ? NULL : system_block(bytes);
    if (*out) {
        count_block(memory);
        return TW_OK;
    }
    atomic_fetch_sub(&memory->bytes, bytes);
    if (injected)
        return out_of_memory(memory, bytes, what, "failed on request by the memory hook",
                             "remove it with tw_context_set_memory_hook");
    return out_of_memory(memory, bytes, what, "refused by the system",
                         "free memory elsewhere, or use a smaller batch or model");
}

static tw_status block_size(size_t *out, size_t count, size_t size, const char *what) {
    TWI_TRY(twi_mul_size(out, count, size, what));
    if (*out == 0) *out = 1;
    return TW_OK;
}

/* `out` points to a pointer of the caller's type, which C does not let us assign through a void **. */
tw_status twi_get(twi_memory *memory, void *out, size_t count, size_t size, const char *what) {
    void *block = NULL;
    memcpy(out, &block, sizeof block);
    size_t bytes;
    TWI_TRY(block_size(&bytes, count, size, what));
    TWI_TRY(take_block(memory, &block, bytes, what));
    memcpy(out, &block, sizeof block);
    return TW_OK;
}

tw_status twi_grow(twi_memory *memory, void *inout, size_t count, size_t size, const char *what) {
    void *old, *block;
    memcpy(&old, inout, sizeof old);
    size_t bytes;
    TWI_TRY(block_size(&bytes, count, size, what));
    if (old && header_of(old)->bytes >= bytes) return TW_OK;
    TWI_TRY(take_block(memory, &block, bytes, what));
    if (old) memcpy(block, old, header_of(old)->bytes);
    twi_put(memory, old);
    memcpy(inout, &block, sizeof block);
    return TW_OK;
}

void twi_put(twi_memory *memory, void *block) {
    if (!block) return;
    atomic_fetch_sub(&memory->bytes, header_of(block)->bytes);
    atomic_fetch_sub(&memory->blocks, 1);
    free(header_of(block)->base);
}

tw_status twi_get_text(twi_memory *memory, char **out, const char *text) {
    size_t bytes = strlen(text) + 1;
    TWI_TRY(twi_get(memory, out, bytes, 1, "text"));
    memcpy(*out, text, bytes);
    return TW_OK;
}

tw_status twi_mul_size(size_t *out, size_t a, size_t b, const char *what) {
    if (b && a > SIZE_MAX / b)
        return TWI_FAIL(TW_ERROR_OVERFLOW, "%s: %zu x %zu bytes do not fit a size; check the dims", what, a, b);
    *out = a * b;
    return TW_OK;
}

tw_status twi_add_size(size_t *out, size_t a, size_t b, const char *what) {
    if (a > SIZE_MAX - b)
        return TWI_FAIL(TW_ERROR_OVERFLOW, "%s: %zu + %zu bytes do not fit a size; check the dims", what, a, b);
    *out = a + b;
    return TW_OK;
}

/* One allocator per context: a cap, statistics, a hook that fails the k-th allocation. Blocks are zeroed and aligned
 * to 64 bytes (blocks of 2 MiB and more to 2 MiB, with huge pages asked for). Thread-safe. */
#ifndef TWI_BASE_MEMORY_H
#define TWI_BASE_MEMORY_H

#include "status.h"
#include <talweg/context.h>

typedef struct twi_memory twi_memory;

tw_status twi_memory_create(twi_memory **out, size_t limit, tw_memory_hook_fn hook, void *user);
void twi_memory_destroy(twi_memory *memory);
tw_memory_stats twi_memory_get_stats(const twi_memory *memory);
void twi_memory_set_limit(twi_memory *memory, size_t bytes);
/* Only while no other thread allocates. */
void twi_memory_set_hook(twi_memory *memory, tw_memory_hook_fn hook, void *user);

/* *out (a pointer to a pointer) becomes count * size zeroed bytes; overflow-checked. count or size 0 gives a valid
 * one-byte block. `what` names the use in the out-of-memory message, e.g. "activation arena". On failure *out is
 * NULL. */
tw_status twi_get(twi_memory *memory, void *out, size_t count, size_t size, const char *what);
/* Grows a block, keeping its first bytes; new bytes are zeroed. On failure the old block stays valid and unchanged. */
tw_status twi_grow(twi_memory *memory, void *inout, size_t count, size_t size, const char *what);
/* Gives a block back; NULL is fine. */
void twi_put(twi_memory *memory, void *block);
/* A copy of a string. */
tw_status twi_get_text(twi_memory *memory, char **out, const char *text);

/* Overflow-checked size arithmetic: *out = a * b, a + b; TW_ERROR_OVERFLOW naming `what`. */
tw_status twi_mul_size(size_t *out, size_t a, size_t b, const char *what);
tw_status twi_add_size(size_t *out, size_t a, size_t b, const char *what);

#endif

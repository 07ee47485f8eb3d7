/* Philox 4x32-10 (Salmon et al., SC 2011): a counter-based generator, the same on every device. A draw is named by
 * what it is for, never by when it happens, so that workers, micro-batches and layouts do not matter. */
#ifndef TWI_BASE_PHILOX_H
#define TWI_BASE_PHILOX_H

#include <stdint.h>

/* What a stream of draws is for: part of the key, so that streams never meet. */
typedef enum twi_purpose {
    TWI_PURPOSE_TENSOR = 1,
    TWI_PURPOSE_INIT = 2,
    TWI_PURPOSE_SHUFFLE = 3,
    TWI_PURPOSE_AUGMENT = 4,
    TWI_PURPOSE_DROPOUT = 5,
    TWI_PURPOSE_OP = 6 /* of a user's */
} twi_purpose;

void twi_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Four words for (seed, purpose, stream, index, block): key = seed mixed with purpose; counter = stream (e.g. epoch or
 * name hash) and index (e.g. sample). Pure. */
void twi_draw(uint64_t seed, twi_purpose purpose, uint64_t stream, uint64_t index, uint32_t out[4]);

/* The key twi_draw works with, for loops that make many draws at once. */
void twi_draw_key(uint64_t seed, twi_purpose purpose, uint32_t key[2]);

/* [0, 1) with 24 bits. */
static inline float twi_uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
/* 0 .. n-1 without modulo bias worth mentioning (n < 2^31): high half of word * n. */
static inline uint32_t twi_below(uint32_t word, uint32_t n) { return (uint32_t)(((uint64_t)word * n) >> 32); }
/* Two normal deviates from two words (Box-Muller, in double). */
void twi_normal2(uint32_t a, uint32_t b, float out[2]);
/* 64-bit FNV-1a of a name: the stream number of named things. */
uint64_t twi_hash_text(const char *text);

#endif

/* Philox 4x32-10 (Salmon et al., SC 2011): a counter-based generator, the same on every device. A draw is named by
 * what it is for, never by when it happens, so that workers, micro-batches and layouts do not matter. */
#ifndef TWI_BASE_PHILOX_H
#define TWI_BASE_PHILOX_H

#include <stdint.h>

/* The draws are the same text for the host and for CUDA devices. */
#ifdef __CUDACC__
#define TWI_HOST_DEVICE __host__ __device__
#else
#define TWI_HOST_DEVICE
#endif

/* What a stream of draws is for: part of the key, so that streams never meet. */
typedef enum twi_purpose {
    TWI_PURPOSE_TENSOR = 1,
    TWI_PURPOSE_INIT = 2,
    TWI_PURPOSE_SHUFFLE = 3,
    TWI_PURPOSE_AUGMENT = 4,
    TWI_PURPOSE_DROPOUT = 5,
    TWI_PURPOSE_OP = 6 /* of a user's */
} twi_purpose;

TWI_HOST_DEVICE static inline void twi_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the golden ratio and sqrt(3) - 1: the round constants of the key */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Spreads a seed over all 64 bits (the finalizer of SplitMix64): people choose seeds 1, 2, 3. */
TWI_HOST_DEVICE static inline uint64_t twi_spread(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The key twi_draw works with, for loops that make many draws at once. */
TWI_HOST_DEVICE static inline void twi_draw_key(uint64_t seed, twi_purpose purpose, uint32_t key[2]) {
    uint64_t mixed = twi_spread(twi_spread(seed + 0x9E3779B97F4A7C15u) + (uint64_t)purpose);
    key[0] = (uint32_t)mixed;
    key[1] = (uint32_t)(mixed >> 32);
}

TWI_HOST_DEVICE static inline void twi_draw_with_key(const uint32_t key[2], uint64_t stream, uint64_t index,
                                                     uint32_t out[4]) {
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    twi_philox(counter, key, out);
}

/* Four words for (seed, purpose, stream, index): key = seed mixed with purpose; counter = stream (e.g. epoch or name
 * hash) and index (e.g. sample). Pure. */
TWI_HOST_DEVICE static inline void twi_draw(uint64_t seed, twi_purpose purpose, uint64_t stream, uint64_t index,
                                            uint32_t out[4]) {
    uint32_t key[2];
    twi_draw_key(seed, purpose, key);
    twi_draw_with_key(key, stream, index, out);
}

/* A stream of its own for every attempt of a run. */
TWI_HOST_DEVICE static inline uint64_t twi_attempt_stream(uint64_t stream, uint64_t attempt) {
    return stream ^ (attempt + 1) * 0x9E3779B97F4A7C15u;
}

/* [0, 1) with 24 bits. */
TWI_HOST_DEVICE static inline float twi_uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
/* 0 .. n-1 without modulo bias worth mentioning (n < 2^31): high half of word * n. */
TWI_HOST_DEVICE static inline uint32_t twi_below(uint32_t word, uint32_t n) { return (uint32_t)(((uint64_t)word * n) >> 32); }
/* Two normal deviates from two words (Box-Muller, in double). */
void twi_normal2(uint32_t a, uint32_t b, float out[2]);
/* 64-bit FNV-1a of a name: the stream number of named things. */
uint64_t twi_hash_text(const char *text);

#endif

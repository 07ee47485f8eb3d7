/* Philox 4x32-10 and the draws named by their purpose. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers:
 * as easy as 1, 2, 3", SC 2011. What a draw is used for is left to the callers. */
#include "philox.h"

#include <math.h>

void twi_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
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
static uint64_t spread(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

void twi_draw_key(uint64_t seed, twi_purpose purpose, uint32_t key[2]) {
    uint64_t mixed = spread(spread(seed + 0x9E3779B97F4A7C15u) + (uint64_t)purpose);
    key[0] = (uint32_t)mixed;
    key[1] = (uint32_t)(mixed >> 32);
}

void twi_draw(uint64_t seed, twi_purpose purpose, uint64_t stream, uint64_t index, uint32_t out[4]) {
    uint32_t key[2];
    twi_draw_key(seed, purpose, key);
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    twi_philox(counter, key, out);
}

void twi_normal2(uint32_t a, uint32_t b, float out[2]) {
    /* (0, 1], so that the logarithm is finite. */
    double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32));
    double angle = 6.283185307179586 * ((double)b * 0x1p-32);
    out[0] = (float)(radius * cos(angle));
    out[1] = (float)(radius * sin(angle));
}

uint64_t twi_hash_text(const char *text) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    return hash;
}

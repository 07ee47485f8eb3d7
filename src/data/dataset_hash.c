/* A fingerprint of a data set, by which a checkpoint knows its own again. Fast, and no defence against forgery: eight
 * bytes at a time, each mixed in by an odd multiplier and a rotation, in four lanes that do not wait for each other. */
#include "dataset.h"

#include <string.h>

enum { LANES = 4 };

static uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15); /* 2^64 over the golden ratio */
    return hash << 29 | hash >> 35;
}

static uint64_t hash_bytes(uint64_t seed, const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t lane[LANES] = {seed, seed + 1, seed + 2, seed + 3}, word[LANES];
    for (; bytes >= sizeof word; at += sizeof word, bytes -= sizeof word) {
        memcpy(word, at, sizeof word);
        for (int i = 0; i < LANES; i++) lane[i] = mixed(lane[i], word[i]);
    }
    memset(word, 0, sizeof word);
    memcpy(word, at, bytes);
    uint64_t hash = mixed(seed, bytes);
    for (int i = 0; i < LANES; i++) hash = mixed(hash, mixed(lane[i], word[i]));
    return hash;
}

uint64_t twi_dataset_hash(const tw_dataset *dataset) {
    const size_t count = (size_t)dataset->count;
    const uint64_t labels = hash_bytes((uint64_t)dataset->dtype, dataset->labels, count * sizeof *dataset->labels);
    return hash_bytes(labels, dataset->images,
                      count * twi_dataset_sample_size(dataset) * tw_dtype_size(dataset->dtype));
}

/* Snapshots: weights, optimizer state, running statistics and counters, copied within device memory. */
#include "snapshot.h"

enum { PAIRS = TWI_MOMENTS + 2 };

/* Arrays to copy, and where to. */
typedef struct pair {
    void **array, **copy;
    int64_t count;
    bool wanted;
} pair;

static void list_pairs(twi_store *store, twi_moments moments, pair out[PAIRS]) {
    twi_snapshot *s = &store->snapshot;
    out[0] = (pair){&store->weights, &s->weights, store->learned_count, true};
    out[1] = (pair){&store->buffers, &s->buffers, store->buffer_count, true};
    for (int m = 0; m < TWI_MOMENTS; m++)
        out[2 + m] = (pair){&store->moment[m], &s->moment[m], store->learned_count,
                            m >= moments.first && m < moments.first + moments.count};
}

void twi_snapshot_want(twi_store *store, bool wanted, twi_moments moments) {
    store->snapshot.wanted = wanted;
    store->snapshot.moments = moments;
}

size_t twi_snapshot_bytes(const twi_store *store, bool wanted) {
    const twi_snapshot *s = &store->snapshot;
    size_t bytes = 0;
    const bool all = wanted && s->wanted;
    if (all || s->weights) bytes += twi_store_array_bytes(store, store->learned_count);
    if (all || s->buffers) bytes += twi_store_array_bytes(store, store->buffer_count);
    for (int m = 0; m < TWI_MOMENTS; m++)
        if (s->moment[m] || (all && m >= s->moments.first && m < s->moments.first + s->moments.count))
            bytes += twi_store_array_bytes(store, store->learned_count);
    return bytes;
}

tw_status twi_snapshot_open(twi_store *store, twi_moments moments) {
    pair pairs[PAIRS];
    list_pairs(store, moments, pairs);
    for (int i = 0; i < PAIRS; i++) {
        size_t bytes;
        if (!pairs[i].wanted || *pairs[i].copy) continue;
        TWI_TRY(twi_mul_size(&bytes, (size_t)pairs[i].count, store->real_size, "snapshot"));
        TWI_TRY(store->context->backend->get(store->context, pairs[i].copy, bytes ? bytes : 1, "snapshot"));
    }
    return TW_OK;
}

static tw_status copy_all(twi_store *store, twi_moments moments, bool back) {
    pair pairs[PAIRS];
    list_pairs(store, moments, pairs);
    for (int i = 0; i < PAIRS; i++) {
        if (!pairs[i].wanted) continue;
        void *from = back ? *pairs[i].copy : *pairs[i].array, *to = back ? *pairs[i].array : *pairs[i].copy;
        TWI_TRY(store->context->backend->copy(store->context, to, from, (size_t)pairs[i].count * store->real_size));
    }
    return TW_OK;
}

tw_status twi_snapshot_take(twi_store *store, twi_moments moments) {
    TWI_TRY(copy_all(store, moments, false));
    store->snapshot.at =
        (twi_snapshot_mark){.taken = true,
                            .updates = store->updates,
                            .learning_rate = store->learning_rate,
                            .scale = store->guard.scale,
                            .good = store->guard.good,
                            .returned = store->snapshot.at.returned && store->snapshot.at.updates == store->updates};
    return TW_OK;
}

tw_status twi_snapshot_return(twi_store *store, twi_moments moments) {
    twi_snapshot_mark *at = &store->snapshot.at;
    TWI_TRY(copy_all(store, moments, true));
    twi_store_written(store);
    store->updates = at->updates;
    store->learning_rate = at->learning_rate;
    store->guard.scale = at->scale;
    store->guard.good = at->good;
    store->guard.in_a_row = 0;
    store->rolled_back++;
    at->returned = true;
    return TW_OK;
}

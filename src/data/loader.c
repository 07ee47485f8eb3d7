/* The loader: the order of an epoch, and a ring of batches filled by workers ahead of the caller, or by the caller
 * where there are none. What becomes of a sample is left to sampler.c.
 *
 * Batch b of an epoch lies in slot b % slots. A worker takes the lowest batch not yet taken whose slot is free; the
 * caller gets the batches in order, whoever made them. All memory is taken when the loader is made. */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */
#include "order.h"
#include "sampler.h"
#include "base/options.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

enum { DEFAULT_BATCH = 64, PREFETCH_PER_WORKER = 2, MAX_PREFETCH = 4096 };

typedef struct slot {
    float *images;
    int32_t *labels;
    int64_t *indices;
    int count;
    bool ready; /* under the lock: the batch is made and not yet given back */
} slot;

struct tw_loader {
    twi_memory *memory;
    const tw_dataset *dataset;
    tw_loader_options options; /* defaults filled in */
    twi_sampler sampler;
    size_t sample_size;
    int64_t batches; /* an epoch */
    int32_t *order;  /* this epoch's permutation of the samples; changed only while no batch is being made */
    uint64_t epoch;
    bool started, lent; /* lent: the caller still looks at batch `freed` */
    slot *ring;
    int slots;

    pthread_mutex_t lock; /* guards what follows and `ready` of the slots */
    pthread_cond_t room;  /* for workers: a batch may be made */
    pthread_cond_t done;  /* for the caller: a batch has been made */
    bool locks_ready, stop;
    int64_t taken; /* batches below are made or being made */
    int64_t freed; /* batches below are given back: their slots are free */
    int64_t end;   /* no batch from here on is to be made */
    int making;    /* workers inside a batch */
    pthread_t *threads;
    int running; /* threads that were started */
};

static slot *slot_of(const tw_loader *loader, int64_t batch) { return &loader->ring[batch % loader->slots]; }

static void make_batch(const tw_loader *loader, int64_t batch) {
    slot *made = slot_of(loader, batch);
    const int64_t first = batch * loader->options.batch, left = loader->dataset->count - first;
    made->count = left < loader->options.batch ? (int)left : loader->options.batch;
    for (int i = 0; i < made->count; i++) {
        int64_t index = loader->order[first + i];
        made->indices[i] = index;
        made->labels[i] = loader->dataset->labels[index];
        twi_sampler_make(&loader->sampler, loader->epoch, index, made->images + (size_t)i * loader->sample_size);
    }
}

static bool has_work(const tw_loader *loader) {
    return loader->taken < loader->end && loader->taken < loader->freed + loader->slots;
}

static void *work(void *argument) {
    tw_loader *loader = argument;
    pthread_mutex_lock(&loader->lock);
    while (!loader->stop) {
        if (!has_work(loader)) {
            pthread_cond_wait(&loader->room, &loader->lock);
            continue;
        }
        int64_t batch = loader->taken++;
        loader->making++;
        pthread_mutex_unlock(&loader->lock);
        make_batch(loader, batch);
        pthread_mutex_lock(&loader->lock);
        loader->making--;
        slot_of(loader, batch)->ready = true;
        pthread_cond_signal(&loader->done);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

/* Signals stay with the threads of the program, whose handlers expect them there. */
static int start_thread(tw_loader *loader, pthread_t *thread) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, work, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static tw_status start_threads(tw_loader *loader) {
    int workers = loader->options.workers;
    TWI_TRY(twi_get(loader->memory, &loader->threads, (size_t)workers, sizeof *loader->threads, "loader workers"));
    while (loader->running < workers) {
        int error = start_thread(loader, &loader->threads[loader->running]);
        if (error)
            return TWI_FAIL(TW_ERROR_DEVICE,
                            "tw_loader_create: worker %d of %d cannot be started: %s; ask for fewer workers",
                            loader->running + 1, workers, strerror(error));
        loader->running++;
    }
    return TW_OK;
}

static void stop_threads(tw_loader *loader) {
    if (!loader->locks_ready) return;
    pthread_mutex_lock(&loader->lock);
    loader->stop = true;
    pthread_cond_broadcast(&loader->room);
    pthread_mutex_unlock(&loader->lock);
    for (int i = 0; i < loader->running; i++) pthread_join(loader->threads[i], NULL);
    pthread_cond_destroy(&loader->done);
    pthread_cond_destroy(&loader->room);
    pthread_mutex_destroy(&loader->lock);
}

/* Checks the options and fills in their defaults. */
static tw_status settle_options(tw_loader_options *options, int64_t count) {
    if (options->batch < 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_create: batch is %d; give at least 1, or 0 for %d",
                        options->batch, DEFAULT_BATCH);
    if (options->workers < 0 || options->workers > TWI_MAX_WORKERS)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_create: workers is %d; give 0 .. %d", options->workers,
                        TWI_MAX_WORKERS);
    if (options->prefetch < 0 || options->prefetch > MAX_PREFETCH)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_create: prefetch is %d; give 0 .. %d", options->prefetch,
                        MAX_PREFETCH);
    if (count >= INT32_MAX) /* what one 32-bit draw can shuffle */
        return TWI_FAIL(TW_ERROR_UNSUPPORTED,
                        "tw_loader_create: %lld samples; a loader takes fewer than %d: use several data sets",
                        (long long)count, INT32_MAX);
    if (!options->batch) options->batch = DEFAULT_BATCH;
    if (options->drop_last && options->batch > count)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_loader_create: drop_last leaves no batch: batch is %d, the data set has %lld samples",
                        options->batch, (long long)count);
    if (!options->prefetch) options->prefetch = PREFETCH_PER_WORKER * options->workers;
    if (!options->workers) options->prefetch = 0;
    return TW_OK;
}

static tw_status get_ring(tw_loader *loader) {
    twi_memory *memory = loader->memory;
    const int64_t count = loader->dataset->count;
    const size_t batch = (size_t)(loader->options.batch < count ? loader->options.batch : count);
    size_t floats;
    TWI_TRY(twi_mul_size(&floats, batch, loader->sample_size, "loader batch"));
    TWI_TRY(twi_get(memory, &loader->order, (size_t)count, sizeof *loader->order, "loader order"));
    TWI_TRY(twi_get(memory, &loader->ring, (size_t)loader->slots, sizeof *loader->ring, "loader ring"));
    for (int i = 0; i < loader->slots; i++) {
        slot *made = &loader->ring[i];
        TWI_TRY(twi_get(memory, &made->images, floats, sizeof *made->images, "loader batch"));
        TWI_TRY(twi_get(memory, &made->labels, batch, sizeof *made->labels, "loader batch"));
        TWI_TRY(twi_get(memory, &made->indices, batch, sizeof *made->indices, "loader batch"));
    }
    return TW_OK;
}

static tw_status fill_loader(tw_loader *loader) {
    const int64_t count = loader->dataset->count;
    TWI_TRY(settle_options(&loader->options, count));
    TWI_TRY(twi_sampler_init(&loader->sampler, loader->dataset, &loader->options));
    const int64_t batch = loader->options.batch;
    loader->sample_size = twi_dataset_sample_size(loader->dataset);
    loader->batches = loader->options.drop_last ? count / batch : (count + batch - 1) / batch;
    loader->slots = loader->options.prefetch + 1; /* one is with the caller */
    if (loader->slots > loader->batches) loader->slots = (int)loader->batches;
    TWI_TRY(get_ring(loader));
    if (!loader->options.workers) return TW_OK;
    pthread_mutex_init(&loader->lock, NULL); /* with default attributes these three cannot fail on Linux */
    pthread_cond_init(&loader->room, NULL);
    pthread_cond_init(&loader->done, NULL);
    loader->locks_ready = true;
    return start_threads(loader);
}

tw_status tw_loader_create(tw_loader **out, const tw_dataset *dataset, const tw_loader_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_create: out is NULL");
    *out = NULL;
    if (!dataset) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_create: dataset is NULL");
    tw_loader_options given;
    TWI_TRY(twi_options_read(&given, sizeof given, options, "tw_loader_create"));
    tw_loader *loader;
    TWI_TRY(twi_get(dataset->context->memory, &loader, 1, sizeof *loader, "loader"));
    loader->memory = dataset->context->memory;
    loader->dataset = dataset;
    loader->options = given;
    tw_status status = fill_loader(loader);
    if (status)
        tw_loader_destroy(loader);
    else
        *out = loader;
    return status;
}

void tw_loader_destroy(tw_loader *loader) {
    if (!loader) return;
    twi_memory *memory = loader->memory;
    stop_threads(loader);
    for (int i = 0; loader->ring && i < loader->slots; i++) {
        twi_put(memory, loader->ring[i].images);
        twi_put(memory, loader->ring[i].labels);
        twi_put(memory, loader->ring[i].indices);
    }
    twi_put(memory, loader->ring);
    twi_put(memory, loader->order);
    twi_put(memory, loader->threads);
    twi_sampler_free(&loader->sampler);
    twi_put(memory, loader);
}

int64_t tw_loader_count(const tw_loader *loader) { return loader ? loader->batches : 0; }

/* Sets the loader to batch `first` of the epoch, with no worker inside a batch. */
static void rewind_to(tw_loader *loader, int64_t first) {
    for (int i = 0; i < loader->slots; i++) loader->ring[i].ready = false;
    twi_epoch_order(loader->order, loader->dataset->count, !loader->options.no_shuffle, loader->options.seed,
                    loader->epoch);
    loader->lent = false;
    loader->taken = loader->freed = first;
    loader->end = loader->batches;
}

tw_status tw_loader_start(tw_loader *loader, int64_t epoch, int64_t first_batch) {
    if (!loader) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_start: loader is NULL");
    if (epoch < 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_start: epoch is %lld; they count from 0", (long long)epoch);
    if (first_batch < 0 || first_batch > loader->batches)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_start: first_batch is %lld; an epoch has batches 0 .. %lld",
                        (long long)first_batch, (long long)loader->batches - 1);
    loader->started = true;
    if (!loader->running) {
        loader->epoch = (uint64_t)epoch;
        rewind_to(loader, first_batch);
        return TW_OK;
    }
    pthread_mutex_lock(&loader->lock);
    loader->end = 0; /* let the workers run out of work */
    while (loader->making) pthread_cond_wait(&loader->done, &loader->lock);
    loader->epoch = (uint64_t)epoch;
    rewind_to(loader, first_batch);
    pthread_cond_broadcast(&loader->room);
    pthread_mutex_unlock(&loader->lock);
    return TW_OK;
}

/* Gives the last batch back and waits for, or makes, the next one. */
static const slot *next_slot(tw_loader *loader) {
    if (loader->lent) {
        slot_of(loader, loader->freed)->ready = false;
        loader->freed++;
        loader->lent = false;
        if (loader->running) pthread_cond_signal(&loader->room);
    }
    if (loader->freed == loader->batches) return NULL;
    loader->lent = true;
    const slot *next = slot_of(loader, loader->freed);
    if (!loader->running)
        make_batch(loader, loader->freed);
    else
        while (!next->ready) pthread_cond_wait(&loader->done, &loader->lock);
    return next;
}

tw_status tw_loader_next(tw_loader *loader, tw_batch *out) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_next: out is NULL");
    *out = (tw_batch){0};
    if (!loader) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_loader_next: loader is NULL");
    if (!loader->started)
        return TWI_FAIL(TW_ERROR_STATE, "tw_loader_next: no epoch has begun: call tw_loader_start first");
    if (loader->running) pthread_mutex_lock(&loader->lock);
    const slot *next = next_slot(loader);
    if (loader->running) pthread_mutex_unlock(&loader->lock);
    if (!next) return TW_OK;
    *out = (tw_batch){next->images, next->labels, next->indices, next->count, loader->freed};
    return TW_OK;
}

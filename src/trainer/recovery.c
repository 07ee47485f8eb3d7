/* What a trainer does about numbers that are not finite: it names the samples, as the data set numbers them, and where
 * it rolls back it keeps a snapshot of the model and returns to it. What finds them is src/program/culprit.c. */
#include "pipeline.h"
#include "data/order.h"
#include "program/snapshot.h"
#include "program/update.h"

#include <stdio.h>
#include <string.h>

/* ---- who is to blame ---- */

/* The numbers of samples by their places in an epoch. */
static tw_status find_samples(const twi_feed *feed, int64_t epoch, int64_t *sample, int count) {
    const tw_trainer_options *o = &feed->trainer->options;
    const int64_t all = tw_dataset_count(feed->dataset);
    const bool shuffled = feed->use == TWI_USE_TRAIN && !o->no_shuffle;
    int32_t *order;
    TWI_TRY(twi_get(feed->trainer->memory, &order, (size_t)all, sizeof *order, "order of an epoch"));
    twi_epoch_order(order, all, shuffled, o->seed, (uint64_t)epoch);
    for (int i = 0; i < count; i++) sample[i] = sample[i] < all ? order[sample[i]] : -1;
    twi_put(feed->trainer->memory, order);
    return TW_OK;
}

tw_status twi_feed_name_samples(const twi_feed *feed, int64_t epoch, int64_t first, tw_status status) {
    const twi_culprit *culprit = &feed->trainer->model->culprit;
    const int count = culprit->samples < TWI_CULPRIT_SAMPLES ? (int)culprit->samples : TWI_CULPRIT_SAMPLES;
    char text[1280], numbers[128] = "";
    int64_t sample[TWI_CULPRIT_SAMPLES];
    if (!feed->trainer->model->store.stopped || !culprit->kind || !count) return status;
    snprintf(text, sizeof text, "%s", tw_last_error());
    for (int i = 0; i < count; i++) sample[i] = first + culprit->sample[i];
    int length = 0;
    if (find_samples(feed, epoch, sample, count) == TW_OK)
        for (int i = 0; i < count; i++)
            length += snprintf(numbers + length, sizeof numbers - (size_t)length, "%s%lld", i ? ", " : "",
                               (long long)sample[i]);
    return TWI_FAIL(status, length ? "%s (in the data set: %s)" : "%s", text, numbers);
}

/* What slots held may have been overwritten by batches behind; they are filled once more. */
static tw_status fill_again(twi_feed *feed, int64_t epoch, int64_t step, twi_control *failed) {
    twi_fed again;
    TWI_TRY(twi_feed_start(feed, epoch, step));
    TWI_TRY(twi_feed_next(feed, &again));
    if (again.program) failed->slot = (uint64_t)again.program->turn;
    return TW_OK;
}

tw_status twi_feed_blame(twi_feed *feed, int64_t epoch, int64_t step, const twi_fed *fed, const twi_landed *landed,
                         tw_status status) {
    char text[1280];
    if (!landed->row || status != TW_ERROR_NUMERIC) return status;
    snprintf(text, sizeof text, "%s", tw_last_error());
    twi_control failed = *(const twi_control *)(const void *)landed->row;
    tw_status filled = fed->program->slots ? fill_again(feed, epoch, step, &failed) : TW_OK;
    status = TWI_FAIL(status, "%s", text);
    if (filled) return status;
    status = twi_culprit_find(fed->program, &failed, status);
    const int64_t batch = tw_program_get_batch(feed->full ? feed->full : fed->program);
    return twi_feed_name_samples(feed, epoch, step * batch, status);
}

/* ---- snapshots ---- */

static bool rolls_back(const tw_trainer *trainer) { return trainer->options.on_non_finite == TW_NON_FINITE_ROLL_BACK; }

static twi_moments moments_of(const tw_trainer *trainer) { return twi_optimizer_moments(&trainer->options.optimizer); }

void twi_recovery_expect(const tw_trainer *trainer, bool fits) {
    twi_snapshot_want(&trainer->model->store, fits && rolls_back(trainer), moments_of(trainer));
}

tw_status twi_recovery_begin(const tw_trainer *trainer, bool loaded) {
    twi_store *store = &trainer->model->store;
    if (!rolls_back(trainer)) return TW_OK;
    TWI_TRY(twi_snapshot_open(store, moments_of(trainer)));
    return loaded && store->snapshot.at.taken ? TW_OK : twi_snapshot_take(store, moments_of(trainer));
}

int64_t twi_recovery_until(const tw_trainer *trainer) {
    const int64_t every = trainer->options.snapshot_every;
    return rolls_back(trainer) ? every - (int64_t)(trainer->model->store.updates % (uint64_t)every) : INT64_MAX;
}

tw_status twi_recovery_note(const tw_trainer *trainer) {
    twi_store *store = &trainer->model->store;
    if (twi_recovery_until(trainer) != trainer->options.snapshot_every || store->updates == store->snapshot.at.updates)
        return TW_OK;
    return twi_snapshot_take(store, moments_of(trainer));
}

tw_status twi_recovery_return(const tw_trainer *trainer, tw_status status) {
    twi_store *store = &trainer->model->store;
    char text[1536];
    if (!rolls_back(trainer) || status != TW_ERROR_NUMERIC || !store->stopped) return status;
    snprintf(text, sizeof text, "%s", tw_last_error());
    if (store->snapshot.at.returned)
        return TWI_FAIL(status, "%s; the model went back to update %llu before, and has made none since", text,
                        (unsigned long long)store->snapshot.at.updates);
    twi_log_line(&tw_model_get_context(trainer->model)->log, TW_LOG_WARNING,
                 "fit: %s; the model goes back from update %llu to %llu", text, (unsigned long long)store->updates,
                 (unsigned long long)store->snapshot.at.updates);
    return twi_snapshot_return(store, moments_of(trainer));
}

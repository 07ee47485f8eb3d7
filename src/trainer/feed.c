/* From a data set to programs: whether it fits the model, programs for full batches and a shorter last one, and what
 * brings them their samples. Without loader threads the data set is resident and the programs gather their batches, a
 * chunk at a time, on the threads that run them; otherwise a loader makes batches ahead. The numbers are the same. */
#include "trainer.h"
#include "data/order.h"
#include "program/resident.h"

#include <string.h>

static bool is_image(const tw_value *input) { return tw_value_get_rank(input) == 4; }

/* An image must have the input's very shape; an input of other rank takes as many numbers, in C,H,W order. */
static bool shape_fits(const tw_value *input, const int64_t sample[3]) {
    if (!is_image(input)) return twi_shape_count_from(&input->shape, 1) == sample[0] * sample[1] * sample[2];
    for (int i = 0; i < 3; i++)
        if (tw_value_get_dim(input, i + 1) != sample[i]) return false;
    return true;
}

static tw_status check_labels(const tw_trainer *trainer, const tw_dataset *dataset, const char *what) {
    if (tw_dataset_get_classes(dataset) <= trainer->classes) return TW_OK; /* the data set has seen to it */
    const int32_t *labels = tw_dataset_get_labels(dataset);
    for (int64_t i = 0; i < tw_dataset_count(dataset); i++)
        if (labels[i] < 0 || labels[i] >= trainer->classes)
            return TWI_FAIL(TW_ERROR_LABEL,
                            "%s: label %d of sample %lld is outside 0 .. %d: the model has %d classes, the data set %d",
                            what, (int)labels[i], (long long)i, trainer->classes - 1, trainer->classes,
                            tw_dataset_get_classes(dataset));
    return TW_OK;
}

tw_status twi_trainer_check_data(const tw_trainer *trainer, const tw_dataset *dataset, bool labelled,
                                 const char *what) {
    const tw_value *input = trainer->input;
    const int64_t sample[] = {tw_dataset_get_channels(dataset), tw_dataset_get_height(dataset),
                              tw_dataset_get_width(dataset)};
    char shape[TWI_SHAPE_TEXT];
    if (!shape_fits(input, sample)) {
        twi_shape wanted = {input->shape.rank - 1, {0}};
        memcpy(wanted.dim, input->shape.dim + 1, (size_t)wanted.rank * sizeof *wanted.dim);
        return TWI_FAIL(
            TW_ERROR_MISMATCH,
            "%s: its samples are [%lld, %lld, %lld] (channels, height, width), the model's input '%s' takes %s", what,
            (long long)sample[0], (long long)sample[1], (long long)sample[2], tw_value_get_name(input),
            twi_shape_text(&wanted, shape));
    }
    return labelled ? check_labels(trainer, dataset, what) : TW_OK;
}

int64_t twi_trainer_count_steps(const tw_trainer *trainer, const tw_dataset *dataset) {
    int64_t count = tw_dataset_count(dataset), batch = trainer->options.batch;
    return trainer->options.drop_last ? count / batch : (count + batch - 1) / batch;
}

/* What a loader and a source are told alike. */
typedef struct ways {
    bool flip, shuffled, drop_last;
    int crop_padding;
} ways;

static ways ways_of(const twi_feed *feed) {
    const tw_trainer_options *o = &feed->trainer->options;
    if (feed->use != TWI_USE_TRAIN) return (ways){0};
    return (ways){o->flip, !o->no_shuffle, o->drop_last, o->crop_padding};
}

static tw_status open_loader(twi_feed *feed, int64_t batch) {
    const tw_trainer *trainer = feed->trainer;
    const ways w = ways_of(feed);
    return tw_loader_create(&feed->loader, feed->dataset,
                            TW_OPTIONS(loader, .batch = (int)batch, .workers = trainer->options.workers,
                                       .no_shuffle = !w.shuffled, .drop_last = w.drop_last,
                                       .seed = trainer->options.seed, .flip = w.flip, .crop_padding = w.crop_padding,
                                       .normalization = trainer->normalization,
                                       .channels_last = is_image(trainer->input)));
}

static tw_status open_resident(twi_feed *feed) {
    const tw_dataset *d = feed->dataset;
    TWI_TRY(twi_get(feed->trainer->memory, &feed->order, (size_t)tw_dataset_count(d), sizeof *feed->order,
                    "order of an epoch"));
    return tw_resident_create(&feed->resident, tw_model_get_context(feed->trainer->model), tw_dataset_get_dtype(d),
                              tw_dataset_get_images(d), tw_dataset_count(d), tw_dataset_get_channels(d),
                              tw_dataset_get_height(d), tw_dataset_get_width(d), tw_dataset_get_labels(d));
}

/* The larger program first: the arena it needs then holds for the other. */
static tw_status hold_programs(twi_feed *feed, int64_t batch) {
    tw_trainer *trainer = feed->trainer;
    const ways w = ways_of(feed);
    const int64_t full = feed->samples / batch, rest = feed->samples % batch;
    const tw_source_options *source =
        feed->resident ? TW_OPTIONS(source, .resident = feed->resident, .images = trainer->input,
                                    .labels = feed->use == TWI_USE_PREDICT ? NULL : trainer->labels, .flip = w.flip,
                                    .crop_padding = w.crop_padding, .seed = trainer->options.seed,
                                    .normalization = trainer->normalization)
                       : NULL;
    if (full) TWI_TRY(twi_trainer_hold(trainer, feed->use, batch, source, &feed->full));
    return rest ? twi_trainer_hold(trainer, feed->use, rest, source, &feed->short_last) : TW_OK;
}

static tw_status open_feed(twi_feed *feed) {
    const tw_trainer_options *o = &feed->trainer->options;
    const int64_t batch = feed->use == TWI_USE_TRAIN ? o->batch : o->evaluation_batch,
                  count = tw_dataset_count(feed->dataset);
    feed->samples = ways_of(feed).drop_last ? count - count % batch : count;
    if (!feed->samples)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "drop_last leaves no batch: batch is %lld, the data set has %lld samples",
                        (long long)batch, (long long)count);
    TWI_TRY(o->workers ? open_loader(feed, batch) : open_resident(feed));
    TWI_TRY(hold_programs(feed, batch));
    twi_log_line(&tw_model_get_context(feed->trainer->model)->log, TW_LOG_DEBUG, "feed: %lld samples, %s, %d threads",
                 (long long)count, feed->resident ? "resident, gathered by the program" : "batches made by a loader",
                 feed->resident ? tw_context_get_threads(tw_model_get_context(feed->trainer->model)) : o->workers);
    return TW_OK;
}

tw_status twi_feed_open(twi_feed *feed, tw_trainer *trainer, twi_use use, const tw_dataset *dataset) {
    *feed = (twi_feed){.trainer = trainer, .dataset = dataset, .use = use};
    tw_status status = open_feed(feed);
    if (status) twi_feed_close(feed);
    return status;
}

void twi_feed_close(twi_feed *feed) {
    if (!feed->trainer) return;
    twi_trainer_let_go(feed->trainer, feed->full);
    twi_trainer_let_go(feed->trainer, feed->short_last);
    tw_loader_destroy(feed->loader);
    tw_resident_destroy(feed->resident);
    twi_put(feed->trainer->memory, feed->order);
    *feed = (twi_feed){0};
}

tw_status twi_feed_start(twi_feed *feed, int64_t epoch, int64_t first_batch) {
    if (feed->loader) return tw_loader_start(feed->loader, epoch, first_batch);
    const int64_t batch = feed->full ? tw_program_get_batch(feed->full) : feed->samples;
    feed->first =
        first_batch * batch < feed->samples ? first_batch * batch : feed->samples; /* the last may be shorter */
    twi_epoch_order(feed->order, tw_dataset_count(feed->dataset), ways_of(feed).shuffled, feed->trainer->options.seed,
                    (uint64_t)epoch);
    return tw_resident_set_order(feed->resident, epoch, feed->order + feed->first, feed->samples - feed->first);
}

/* Whole batches, then the rest. */
static void choose_program(const twi_feed *feed, int64_t left, twi_fed *out) {
    bool whole = feed->full && left >= tw_program_get_batch(feed->full);
    out->program = whole ? feed->full : feed->short_last;
    out->count = (int)tw_program_get_batch(out->program);
}

static tw_status next_gathered(const twi_feed *feed, twi_fed *out) {
    const int64_t first = feed->first + tw_resident_get_position(feed->resident);
    if (first == feed->samples) return TW_OK;
    choose_program(feed, feed->samples - first, out);
    out->first = first;
    twi_program_set_resident(out->program, feed->resident); /* another feed may have worked with the program since */
    return TW_OK;
}

static tw_status next_loaded(const twi_feed *feed, twi_fed *out) {
    tw_batch batch;
    TWI_TRY(tw_loader_next(feed->loader, &batch));
    if (!batch.count) return TW_OK;
    choose_program(feed, batch.count, out);
    out->first = batch.index * tw_program_get_batch(feed->full); /* 0 where there is but one, short batch */
    TWI_TRY(twi_program_feed(out->program, feed->trainer->input, batch.images));
    return twi_program_feed(out->program, feed->trainer->labels, batch.labels);
}

tw_status twi_feed_next(twi_feed *feed, twi_fed *out) {
    *out = (twi_fed){0};
    return feed->resident ? next_gathered(feed, out) : next_loaded(feed, out);
}

/* From a data set to programs: whether it fits the model, programs for full batches and a shorter last one, and what
 * brings them their samples. Without loader threads the data set is resident and the programs gather their batches, a
 * chunk at a time, on the threads that run them; otherwise, and where it does not fit the device's memory, a loader
 * makes batches ahead. The numbers are the same. */
#include "room.h"
#include "base/text.h"
#include "data/order.h"
#include "program/resident.h"

#include <stdio.h>
#include <string.h>

/* Threads at most that make batches where the options ask for none, and room for the reason. */
enum { STREAMERS = 8, WHY_TEXT = 900 };

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

static tw_status open_loader(twi_feed *feed, int64_t batch, int workers) {
    const tw_trainer *trainer = feed->trainer;
    const ways w = ways_of(feed);
    if (twi_trainer_only_plans(trainer)) return TW_OK; /* there is nothing to load */
    return tw_loader_create(&feed->loader, feed->dataset,
                            TW_OPTIONS(loader, .batch = (int)batch, .workers = workers, .no_shuffle = !w.shuffled,
                                       .drop_last = w.drop_last, .seed = trainer->options.seed, .flip = w.flip,
                                       .crop_padding = w.crop_padding, .normalization = trainer->normalization,
                                       .channels_last = is_image(trainer->input)));
}

static tw_status describe_resident(twi_feed *feed) {
    const tw_dataset *d = feed->dataset;
    TWI_TRY(twi_get(feed->trainer->memory, &feed->order, (size_t)tw_dataset_count(d), sizeof *feed->order,
                    "order of an epoch"));
    return twi_resident_describe(&feed->resident, tw_model_get_context(feed->trainer->model), tw_dataset_get_dtype(d),
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

static int64_t full_batch(const twi_feed *feed) {
    return feed->use == TWI_USE_TRAIN ? twi_trainer_run_batch(feed->trainer) : feed->trainer->options.evaluation_batch;
}

/* ---- memory of the set ---- */

/* What the slots of programs that are fed would take: images in f32 and labels, of a batch and of the last one. */
static tw_status slot_bytes(size_t *out, const twi_feed *feed) {
    const int64_t batch = feed->batch, rest = feed->samples % batch;
    const int64_t samples = (feed->samples >= batch ? batch : 0) + rest;
    const int64_t sample = twi_shape_count_from(&feed->trainer->input->shape, 1) + 1;
    TWI_TRY(twi_mul_size(out, (size_t)samples, (size_t)sample, "slots of batches"));
    return twi_mul_size(out, *out, TWI_SLOTS * sizeof(float), "slots of batches");
}

/* So much of the trainer's limit is the set's, and so much of that is there. */
static void put_aside(twi_feed *feed, size_t aside, size_t placed) {
    tw_trainer *trainer = feed->trainer;
    trainer->aside += aside - feed->aside;
    trainer->placed += placed - feed->placed;
    feed->aside = aside;
    feed->placed = placed;
}

static tw_status expect_set(twi_feed *feed) {
    size_t needs, slots;
    TWI_TRY(twi_resident_weigh(feed->resident, &needs));
    TWI_TRY(slot_bytes(&slots, feed));
    feed->certain = feed->resident->context->backend->host_memory || needs <= slots;
    if (feed->certain) put_aside(feed, needs, 0);
    return TW_OK;
}

static void drop_programs(twi_feed *feed) {
    twi_trainer_let_go(feed->trainer, feed->full);
    twi_trainer_let_go(feed->trainer, feed->short_last);
    feed->full = feed->short_last = NULL;
    tw_loader_destroy(feed->loader);
    feed->loader = NULL;
}

/* Programs are kept to save planning; those that nobody holds go where there is no memory for this feed's. */
static bool make_room(twi_feed *feed) {
    const bool others = twi_trainer_spare(feed->trainer);
    drop_programs(feed);
    /* Its own too, so that the arena is taken anew; but for one of a whole batch in training, beside which others are
     * planned. */
    if (others || feed->use != TWI_USE_TRAIN) (void)twi_trainer_spare(feed->trainer);
    if (others)
        twi_log_line(&tw_model_get_context(feed->trainer->model)->log, TW_LOG_INFO,
                     "feed: programs that are not at work are given up, beside them there is no memory");
    return others;
}

/* What only measures may do so in smaller batches: nothing but its speed depends on them. */
static bool can_halve(const twi_feed *feed) { return feed->use != TWI_USE_TRAIN && feed->batch > 1; }

static void halve(twi_feed *feed) {
    feed->batch = (feed->batch + 1) / 2;
    twi_log_line(&tw_model_get_context(feed->trainer->model)->log, TW_LOG_INFO,
                 "feed: measured in batches of %lld, for larger ones there is no memory", (long long)feed->batch);
}

static tw_status hold_smaller(twi_feed *feed, int workers) {
    for (;;) {
        twi_room_try(feed->trainer);
        tw_status status = workers ? open_loader(feed, feed->batch, workers) : TW_OK;
        if (status == TW_OK) status = hold_programs(feed, feed->batch);
        if (status != TW_ERROR_OUT_OF_MEMORY) return status;
        if (make_room(feed)) continue;
        if (!can_halve(feed) || twi_room_stops(feed->trainer)) return status;
        halve(feed);
    }
}

static tw_status describe(twi_feed *feed) {
    const tw_trainer_options *o = &feed->trainer->options;
    const int64_t batch = feed->use == TWI_USE_TRAIN ? o->batch : o->evaluation_batch,
                  count = tw_dataset_count(feed->dataset);
    feed->batch = full_batch(feed);
    feed->samples = ways_of(feed).drop_last ? count - count % batch : count;
    if (!feed->samples)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "drop_last leaves no batch: batch is %lld, the data set has %lld samples",
                        (long long)batch, (long long)count);
    if (o->workers) return TW_OK;
    TWI_TRY(describe_resident(feed));
    return expect_set(feed);
}

static void let_go(twi_feed *feed) {
    drop_programs(feed);
    tw_resident_destroy(feed->resident);
    feed->resident = NULL;
    put_aside(feed, 0, 0);
    twi_put(feed->trainer->memory, feed->order);
    feed->order = NULL;
}

/* Programs that are fed, and threads that make their batches: those of the context, which have nothing to do while a
 * device works. */
static tw_status stream_instead(twi_feed *feed, const char *why) {
    tw_context *context = tw_model_get_context(feed->trainer->model);
    const int threads = tw_context_get_threads(context), workers = threads < STREAMERS ? threads : STREAMERS;
    twi_log_line(&context->log, TW_LOG_INFO,
                 "feed: the batches of %lld sample%s are streamed to the device, because %s",
                 (long long)tw_dataset_count(feed->dataset), twi_plural(tw_dataset_count(feed->dataset)), why);
    let_go(feed);
    twi_trainer_forget(feed->trainer, feed->use);
    return hold_smaller(feed, workers);
}

/* A set that takes no more than slots would, so that to stream it is no help. */
static tw_status place_small(twi_feed *feed, size_t needs) {
    for (;;) {
        tw_status status = twi_resident_place(feed->resident);
        if (status != TW_ERROR_OUT_OF_MEMORY || feed->use == TWI_USE_TRAIN) return status;
        if (!make_room(feed)) {
            if (!can_halve(feed) || twi_room_stops(feed->trainer)) return status;
            halve(feed);
        }
        let_go(feed);
        TWI_TRY(describe_resident(feed));
        put_aside(feed, needs, 0);
        TWI_TRY(hold_smaller(feed, 0));
    }
}

/* Beside what the other set, which is not there yet, will take at least. */
static tw_status place(twi_feed *feed, size_t spare) {
    char why[WHY_TEXT], wanted[TWI_QUANTITY_TEXT], room[TWI_QUANTITY_TEXT];
    size_t needs;
    if (!feed->resident) return TW_OK;
    TWI_TRY(twi_resident_weigh(feed->resident, &needs));
    const size_t left = feed->certain ? SIZE_MAX : twi_room_left(feed->trainer);
    if (!feed->certain && (needs > left || left - needs < spare)) {
        snprintf(why, sizeof why, "resident they take %s, and %s are left beside the programs",
                 twi_quantity((double)needs, "B", wanted), twi_quantity((double)left, "B", room));
        return stream_instead(feed, why);
    }
    if (feed->trainer->rehearses) {
        put_aside(feed, needs, 0);
        return TW_OK;
    }
    tw_status status = feed->certain ? place_small(feed, needs) : twi_resident_place(feed->resident);
    if (status == TW_OK) put_aside(feed, needs, needs);
    if (status != TW_ERROR_OUT_OF_MEMORY || feed->certain) return status;
    snprintf(why, sizeof why, "%s", tw_last_error());
    tw_clear_error();
    return stream_instead(feed, why);
}

/* ---- opening and closing ---- */

static tw_status begin(twi_feed *feed, tw_trainer *trainer, twi_use use, const tw_dataset *dataset) {
    *feed = (twi_feed){.trainer = trainer, .dataset = dataset, .use = use};
    return describe(feed);
}

static tw_status prepare(twi_feed *feed) { return hold_smaller(feed, feed->trainer->options.workers); }

static tw_status finish(twi_feed *feed, size_t spare) {
    TWI_TRY(place(feed, spare));
    twi_log_line(&tw_model_get_context(feed->trainer->model)->log, TW_LOG_DEBUG, "feed: %lld sample%s, %s",
                 (long long)tw_dataset_count(feed->dataset), twi_plural(tw_dataset_count(feed->dataset)),
                 feed->resident ? "resident, gathered by the program" : "batches made by a loader");
    return TW_OK;
}

/* Slots at least, where it is not known to be resident. */
static tw_status least_bytes(size_t *out, const twi_feed *feed) {
    *out = 0;
    return feed->resident && !feed->certain ? slot_bytes(out, feed) : TW_OK;
}

tw_status twi_feed_open_fit(twi_feed *train, twi_feed *test, tw_trainer *trainer, const tw_dataset *train_set,
                            const tw_dataset *test_set) {
    TWI_TRY(begin(train, trainer, TWI_USE_TRAIN, train_set));
    if (test_set) TWI_TRY(begin(test, trainer, TWI_USE_EVALUATE, test_set));
    trainer->largest = train->samples < train->batch ? train->samples : train->batch;
    TWI_TRY(prepare(train)); /* programs first: sets can be streamed */
    if (test_set) TWI_TRY(prepare(test));
    if (!trainer->rehearses) TWI_TRY(twi_recovery_begin(trainer, trainer->loaded));
    size_t least = 0;
    if (test_set) TWI_TRY(least_bytes(&least, test));
    TWI_TRY(finish(train, least));
    return test_set ? finish(test, 0) : TW_OK;
}

tw_status twi_feed_open(twi_feed *feed, tw_trainer *trainer, twi_use use, const tw_dataset *dataset) {
    twi_room_enter(trainer);
    tw_status status = begin(feed, trainer, use, dataset);
    if (status == TW_OK) status = prepare(feed);
    if (status == TW_OK) status = finish(feed, 0);
    if (status) twi_feed_close(feed);
    return status;
}

void twi_feed_close(twi_feed *feed) {
    if (!feed->trainer) return;
    let_go(feed);
    *feed = (twi_feed){0};
}

tw_status twi_feed_start(twi_feed *feed, int64_t epoch, int64_t first_batch) {
    if (feed->loader) return tw_loader_start(feed->loader, epoch, first_batch);
    const int64_t batch = feed->full ? feed->batch : feed->samples;
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
    /* Parts of a last batch that is left out come from the loader all the same. */
    if (!batch.count || batch.index * feed->batch >= feed->samples) return TW_OK;
    choose_program(feed, batch.count, out);
    out->first = batch.index * tw_program_get_batch(feed->full); /* 0 where there is but one, short batch */
    TWI_TRY(twi_program_feed(out->program, feed->trainer->input, batch.images));
    return twi_program_feed(out->program, feed->trainer->labels, batch.labels);
}

tw_status twi_feed_next(twi_feed *feed, twi_fed *out) {
    *out = (twi_fed){0};
    return feed->resident ? next_gathered(feed, out) : next_loaded(feed, out);
}

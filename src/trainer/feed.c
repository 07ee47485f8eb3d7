/* From a data set to programs: whether it fits the model, its loader, and programs for full batches and a shorter last
 * one. */
#include "trainer.h"
#include "program/program.h"

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

static tw_status open_loader(twi_feed *feed, bool training) {
    const tw_trainer_options *o = &feed->trainer->options;
    tw_loader_options options = TW_LOADER_OPTIONS_INIT;
    options.batch = training ? o->batch : o->evaluation_batch;
    options.workers = o->workers;
    options.seed = o->seed;
    options.no_shuffle = !training || o->no_shuffle;
    options.drop_last = training && o->drop_last;
    options.flip = training && o->flip;
    options.crop_padding = training ? o->crop_padding : 0;
    options.normalization = feed->trainer->normalization;
    options.channels_last = is_image(feed->trainer->input);
    return tw_loader_create(&feed->loader, feed->dataset, &options);
}

tw_status twi_feed_open(twi_feed *feed, tw_trainer *trainer, twi_use use, const tw_dataset *dataset) {
    const bool training = use == TWI_USE_TRAIN;
    const int64_t batch = training ? trainer->options.batch : trainer->options.evaluation_batch,
                  count = tw_dataset_count(dataset);
    *feed = (twi_feed){.trainer = trainer, .dataset = dataset};
    tw_status status = open_loader(feed, training);
    /* The larger program first: the arena it needs then holds for the other. */
    if (status == TW_OK && count >= batch) status = twi_trainer_hold(trainer, use, batch, &feed->full);
    if (status == TW_OK && count % batch && !(training && trainer->options.drop_last))
        status = twi_trainer_hold(trainer, use, count % batch, &feed->short_last);
    if (status) twi_feed_close(feed);
    return status;
}

void twi_feed_close(twi_feed *feed) {
    if (!feed->trainer) return;
    twi_trainer_let_go(feed->trainer, feed->full);
    twi_trainer_let_go(feed->trainer, feed->short_last);
    tw_loader_destroy(feed->loader);
    *feed = (twi_feed){0};
}

tw_status twi_feed_start(twi_feed *feed, int64_t epoch) { return tw_loader_start(feed->loader, epoch, 0); }

tw_status twi_feed_next(twi_feed *feed, twi_fed *out) {
    tw_batch batch;
    *out = (twi_fed){0};
    TWI_TRY(tw_loader_next(feed->loader, &batch));
    if (!batch.count) return TW_OK;
    bool whole = feed->full && tw_program_get_batch(feed->full) == batch.count;
    out->program = whole ? feed->full : feed->short_last;
    out->count = batch.count;
    out->first = batch.index * tw_program_get_batch(feed->full); /* 0 where there is but one, short batch */
    TWI_TRY(twi_program_feed(out->program, feed->trainer->input, batch.images));
    return twi_program_feed(out->program, feed->trainer->labels, batch.labels);
}

/* Measuring a model on a data set, predicted classes, the confusion matrix. None of it changes the model. */
#include "pipeline.h"

#include <math.h>
#include <string.h>

enum { TOP = 5 };

/* Ranks begin at 0. A batch whose loss is not finite, which had no update, is left out. */
static void count_ranks(twi_tally *tally, const int32_t *rank, int count, double loss) {
    if (!isfinite(loss)) return;
    for (int i = 0; i < count; i++) {
        tally->top1 += rank[i] == 0;
        tally->top5 += rank[i] < TOP;
    }
    tally->loss += loss * count;
    tally->samples += count;
}

tw_status twi_tally_add(twi_tally *tally, tw_trainer *trainer, const twi_fed *fed) {
    TWI_TRY(tw_program_read(fed->program, trainer->rank, trainer->results, fed->count));
    count_ranks(tally, trainer->results, fed->count, tw_program_get_loss(fed->program));
    return TW_OK;
}

tw_status twi_tally_add_landed(twi_tally *tally, const tw_trainer *trainer, const twi_landed *landed) {
    TWI_TRY(twi_landed_read(landed, trainer->rank, trainer->results));
    count_ranks(tally, trainer->results, (int)tw_program_get_batch(landed->program), landed->loss);
    return TW_OK;
}

tw_status twi_position_settle(const tw_trainer *trainer, twi_position *position) {
    twi_landed landed;
    TWI_TRY(twi_program_settle_all(trainer->model));
    for (int i = 0; twi_program_look(trainer->model, i, &landed); i++) {
        position->step++;
        TWI_TRY(twi_tally_add_landed(&position->tally, trainer, &landed));
    }
    return TW_OK;
}

tw_metrics twi_tally_metrics(const twi_tally *tally) {
    if (!tally->samples) return (tw_metrics){0};
    const double samples = (double)tally->samples;
    return (tw_metrics){tally->loss / samples, (double)tally->top1 / samples, (double)tally->top5 / samples,
                        tally->samples};
}

/* ---- passes over a data set ---- */

/* The next batch of a pass, which nothing keeps from running ahead. */
static tw_status next_batch(twi_pipeline *pipeline, twi_fed *fed, twi_landed *landed) {
    tw_status status = twi_pipeline_next(pipeline, INT64_MAX, fed, landed);
    if (status && fed->program) {
        const int64_t step =
            fed->first / tw_program_get_batch(pipeline->feed->full ? pipeline->feed->full : fed->program);
        status = twi_feed_blame(pipeline->feed, 0, step, fed, landed, status);
    }
    return status && fed->program ? twi_fail_within(status, "samples %lld .. %lld", (long long)fed->first,
                                                    (long long)fed->first + fed->count - 1)
                                  : status;
}

static tw_status measure(twi_pipeline *pipeline, bool stoppable, tw_metrics *out) {
    tw_trainer *trainer = pipeline->feed->trainer;
    twi_tally tally = {0};
    for (;;) {
        twi_fed fed;
        twi_landed landed;
        if (stoppable && atomic_load(&trainer->stop)) return TW_OK;
        TWI_TRY(next_batch(pipeline, &fed, &landed));
        if (!fed.program) break;
        TWI_TRY(twi_tally_add_landed(&tally, trainer, &landed));
    }
    *out = twi_tally_metrics(&tally);
    return TW_OK;
}

tw_status twi_trainer_measure(twi_feed *feed, bool stoppable, tw_metrics *out) {
    twi_pipeline pipeline;
    *out = (tw_metrics){0};
    TWI_TRY(twi_feed_start(feed, 0, 0));
    TWI_TRY(twi_pipeline_open(&pipeline, feed));
    tw_status status = measure(&pipeline, stoppable, out);
    twi_pipeline_close(&pipeline);
    return status;
}

static tw_status read_classes(twi_pipeline *pipeline, int32_t *classes) {
    for (;;) {
        twi_fed fed;
        twi_landed landed;
        TWI_TRY(next_batch(pipeline, &fed, &landed));
        if (!fed.program) return TW_OK;
        TWI_TRY(twi_landed_read(&landed, pipeline->feed->trainer->argmax, classes + fed.first));
    }
}

static tw_status predict_all(twi_feed *feed, int32_t *classes) {
    twi_pipeline pipeline;
    TWI_TRY(twi_feed_start(feed, 0, 0));
    TWI_TRY(twi_pipeline_open(&pipeline, feed));
    tw_status status = read_classes(&pipeline, classes);
    twi_pipeline_close(&pipeline);
    return status;
}

/* ---- the public calls ---- */

static tw_status check_call(const tw_trainer *trainer, const tw_dataset *dataset, const void *out, bool labelled,
                            const char *function) {
    if (!trainer || !dataset || !out)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", function,
                        !trainer   ? "trainer"
                        : !dataset ? "dataset"
                                   : "the result");
    if (!trainer->normalization.channels && !trainer->options.no_normalization) {
        const tw_context *context = tw_model_get_context(trainer->model);
        tw_device_info info = TW_DEVICE_INFO_INIT;
        TWI_TRY(context->backend->describe(context, &info)); /* a device that was lost says so in every call */
        return TWI_FAIL(
            TW_ERROR_STATE,
            "%s: how to normalise is not known yet: fit first, or give the trainer the normalization the model was "
            "trained with (or no_normalization)",
            function);
    }
    return twi_trainer_check_data(trainer, dataset, labelled, function);
}

tw_status tw_trainer_evaluate(tw_trainer *trainer, const tw_dataset *dataset, tw_metrics *out) {
    if (out) *out = (tw_metrics){0};
    TWI_TRY(check_call(trainer, dataset, out, true, "tw_trainer_evaluate"));
    twi_feed feed;
    tw_status status = twi_feed_open(&feed, trainer, TWI_USE_EVALUATE, dataset);
    if (status == TW_OK) status = twi_trainer_measure(&feed, false, out);
    twi_feed_close(&feed);
    return status ? twi_fail_within(status, "tw_trainer_evaluate") : TW_OK;
}

static tw_status predict(tw_trainer *trainer, const tw_dataset *dataset, int32_t *classes) {
    twi_feed feed;
    tw_status status = twi_feed_open(&feed, trainer, TWI_USE_PREDICT, dataset);
    if (status == TW_OK) status = predict_all(&feed, classes);
    twi_feed_close(&feed);
    return status;
}

tw_status tw_trainer_predict(tw_trainer *trainer, const tw_dataset *dataset, int32_t *classes) {
    TWI_TRY(check_call(trainer, dataset, classes, false, "tw_trainer_predict"));
    tw_status status = predict(trainer, dataset, classes);
    return status ? twi_fail_within(status, "tw_trainer_predict") : TW_OK;
}

tw_status tw_trainer_confusion(tw_trainer *trainer, const tw_dataset *dataset, int64_t *matrix) {
    TWI_TRY(check_call(trainer, dataset, matrix, true, "tw_trainer_confusion"));
    const int64_t count = tw_dataset_count(dataset);
    const size_t classes = (size_t)trainer->classes;
    int32_t *predicted;
    TWI_TRY(twi_get(trainer->memory, &predicted, (size_t)count, sizeof *predicted, "predicted classes"));
    tw_status status = predict(trainer, dataset, predicted);
    if (status == TW_OK) {
        memset(matrix, 0, classes * classes * sizeof *matrix);
        for (int64_t i = 0; i < count; i++)
            if (predicted[i] >= 0) matrix[(size_t)tw_dataset_get_labels(dataset)[i] * classes + (size_t)predicted[i]]++;
    }
    twi_put(trainer->memory, predicted);
    return status ? twi_fail_within(status, "tw_trainer_confusion") : TW_OK;
}

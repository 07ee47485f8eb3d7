/* Batches on their way: launched ahead as far as the device allows, and landed in their order. */
#include "pipeline.h"
#include "program/model.h"

#include <stdio.h>

tw_status twi_pipeline_open(twi_pipeline *pipeline, twi_feed *feed) {
    *pipeline = (twi_pipeline){.feed = feed};
    return twi_program_check_idle(feed->trainer->model);
}

void twi_pipeline_close(twi_pipeline *pipeline) {
    if (pipeline->count) twi_program_land_all(pipeline->feed->trainer->model);
    pipeline->count = 0;
}

static twi_fed *at(twi_pipeline *pipeline, int index) {
    return &pipeline->fed[(pipeline->first + index) % TWI_IN_FLIGHT_MAX];
}

static tw_status launch_next(twi_pipeline *pipeline) {
    twi_fed *next = at(pipeline, pipeline->count);
    TWI_TRY(twi_feed_next(pipeline->feed, next));
    pipeline->over = !next->program;
    if (pipeline->over) return TW_OK;
    TWI_TRY(twi_program_launch(next->program));
    pipeline->count++;
    return TW_OK;
}

/* What a launch ahead of its turn runs into is kept until its turn comes: batches before it may have failed first. It
 * is not tried again, since it may have taken its samples, or even run. */
static void launch_ahead(twi_pipeline *pipeline, int64_t limit) {
    const int depth = tw_model_get_context(pipeline->feed->trainer->model)->backend->in_flight;
    while (!pipeline->over && !pipeline->failed && pipeline->count < depth && pipeline->count < limit) {
        pipeline->failed = launch_next(pipeline);
        if (pipeline->failed) snprintf(pipeline->failure, sizeof pipeline->failure, "%s", tw_last_error());
    }
}

tw_status twi_pipeline_next(twi_pipeline *pipeline, int64_t limit, twi_fed *out, twi_landed *landed) {
    *out = (twi_fed){0};
    launch_ahead(pipeline, limit);
    if (!pipeline->count) return pipeline->failed ? TWI_FAIL(pipeline->failed, "%s", pipeline->failure) : TW_OK;
    *out = *at(pipeline, 0);
    tw_status status = twi_program_land(pipeline->feed->trainer->model, landed);
    pipeline->first = (pipeline->first + 1) % TWI_IN_FLIGHT_MAX;
    pipeline->count = status ? 0 : pipeline->count - 1;
    return status;
}

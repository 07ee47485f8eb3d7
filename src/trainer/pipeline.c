/* Batches on their way: launched ahead as far as the device allows, and landed in their order. */
#include "pipeline.h"
#include "program/model.h"

#include <string.h>

tw_status twi_pipeline_open(twi_pipeline *pipeline, twi_feed *feed) {
    *pipeline = (twi_pipeline){.feed = feed};
    if (feed->trainer->model->flights.count)
        return TWI_FAIL(TW_ERROR_STATE,
                        "steps of a fit with run_ahead are under way; evaluate and predict in on_epoch, or "
                        "leave run_ahead out");
    return TW_OK;
}

void twi_pipeline_close(twi_pipeline *pipeline) {
    if (pipeline->count) twi_program_land_all(pipeline->feed->trainer->model);
    pipeline->count = 0;
}

static twi_fed *at(twi_pipeline *pipeline, int index) {
    return &pipeline->fed[(pipeline->first + index) % TWI_IN_FLIGHT_MAX];
}

static tw_status launch_ahead(twi_pipeline *pipeline, int64_t limit) {
    const int depth = tw_model_get_context(pipeline->feed->trainer->model)->backend->in_flight;
    while (!pipeline->over && pipeline->count < depth && pipeline->count < limit) {
        twi_fed *next = at(pipeline, pipeline->count);
        TWI_TRY(twi_feed_next(pipeline->feed, next));
        pipeline->over = !next->program;
        if (pipeline->over) break;
        TWI_TRY(twi_program_launch(next->program));
        pipeline->count++;
    }
    return TW_OK;
}

tw_status twi_pipeline_next(twi_pipeline *pipeline, int64_t limit, twi_fed *out, twi_landed *landed) {
    *out = (twi_fed){0};
    /* What a launch ahead of its turn runs into is told when its turn comes: batches before it may have failed first. */
    tw_status status = launch_ahead(pipeline, limit);
    if (!pipeline->count) return status;
    *out = *at(pipeline, 0);
    status = twi_program_land(pipeline->feed->trainer->model, landed);
    pipeline->first = (pipeline->first + 1) % TWI_IN_FLIGHT_MAX;
    pipeline->count = status ? 0 : pipeline->count - 1;
    return status;
}

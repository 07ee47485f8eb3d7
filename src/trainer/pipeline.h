/* A feed's batches on their way through the device: several at once where it works beside the host. What they find is
 * taken in their order, so it does not matter how many. */
#ifndef TWI_TRAINER_PIPELINE_H
#define TWI_TRAINER_PIPELINE_H

#include "program/program.h"
#include "trainer.h"

typedef struct twi_pipeline {
    twi_feed *feed; /* started */
    twi_fed fed[TWI_IN_FLIGHT_MAX];
    int first, count;
    bool over;        /* the feed has no more */
    tw_status failed; /* of a launch, and its text: nothing is launched after it */
    char failure[1024];
} twi_pipeline;

/* Errors: STATE if another's batches are on their way. */
tw_status twi_pipeline_open(twi_pipeline *pipeline, twi_feed *feed);
/* The next batch's results; out->program is NULL when there are no more. Launches up to `limit` batches ahead, this one
 * included. A failure is that of out's batch; those behind it have changed nothing. */
tw_status twi_pipeline_next(twi_pipeline *pipeline, int64_t limit, twi_fed *out, twi_landed *landed);
/* Waits for what is still on its way. */
void twi_pipeline_close(twi_pipeline *pipeline);

#endif

/* Runs in flight: launched on the device and not yet accounted for. Each has a row of host memory, into which its
 * control block and its small results are fetched behind it. How they are launched and land is in run.c. */
#ifndef TWI_PROGRAM_FLIGHT_H
#define TWI_PROGRAM_FLIGHT_H

#include "backend/backend.h"

typedef struct twi_flight {
    struct tw_program *program;
    unsigned char *row;
    int mark;          /* of the back end: behind the run and its results */
    bool gradients;    /* not an update alone */
    bool settled;      /* waited for, and its counters taken over */
    uint64_t attempt;  /* what it was given */
    uint64_t position; /* of the resident set */
} twi_flight;

typedef struct twi_flights {
    void *rows;
    size_t row_bytes;
    twi_flight flight[TWI_IN_FLIGHT_MAX];
    int first, count; /* a ring, oldest first */
} twi_flights;

static inline twi_flight *twi_flights_at(twi_flights *flights, int index) {
    return &flights->flight[(flights->first + index) % TWI_IN_FLIGHT_MAX];
}
static inline twi_flight *twi_flights_next(twi_flights *flights) { return twi_flights_at(flights, flights->count); }

/* Makes all rows at least so long. None may be in flight. */
tw_status twi_flights_reserve(twi_flights *flights, tw_context *context, size_t row_bytes);
void twi_flights_free(twi_flights *flights, tw_context *context);

/* What landed: results stay until the next launch. */
typedef struct twi_landed {
    const struct tw_program *program;
    const unsigned char *row;
    double loss; /* as tw_program_get_loss */
} twi_landed;

#endif

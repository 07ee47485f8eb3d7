/* Where a run that found a loss or a gradient that is not finite met the first such number: see culprit.c. */
#ifndef TWI_PROGRAM_CULPRIT_H
#define TWI_PROGRAM_CULPRIT_H

#include "backend/step.h"

enum { TWI_CULPRIT_SAMPLES = 4 };

typedef struct twi_culprit {
    const char *kind; /* "weight", "activation", ..; NULL: nothing was found */
    const char *name; /* the value's; borrowed from the graph */
    double value;
    int64_t samples;                     /* that hold such a number; 0: it belongs to no sample */
    int64_t sample[TWI_CULPRIT_SAMPLES]; /* the first of them, by their places in the effective batch */
} twi_culprit;

#endif

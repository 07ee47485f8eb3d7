/* Resident data sets. How a program gathers its batches from one is in source.c. */
#ifndef TWI_PROGRAM_RESIDENT_H
#define TWI_PROGRAM_RESIDENT_H

#include "program.h"

struct tw_resident {
    tw_context *context;
    twi_sample_kind kind;
    int64_t count, ordered; /* samples; entries of the order */
    int32_t *order;
    void *copies[2];        /* images and labels, where the device cannot read the caller's */
    twi_resident_view view; /* what steps see; all in device memory */
};

/* Does the program gather what the options say, from samples such as their set has? NULL: it gathers nothing. */
bool twi_program_gathers_as(const tw_program *program, const tw_source_options *source);
/* Lets a program that gathers go on to another set of such samples. */
void twi_program_set_resident(tw_program *program, tw_resident *resident);

#endif

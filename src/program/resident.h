/* Resident data sets. How a program gathers its batches from one is in source.c. */
#ifndef TWI_PROGRAM_RESIDENT_H
#define TWI_PROGRAM_RESIDENT_H

#include "program.h"

struct tw_resident {
    tw_context *context;
    twi_sample_kind kind;
    int64_t count, ordered; /* samples; entries of the order */
    const void *images;     /* the caller's */
    const int32_t *labels;
    int32_t *order;
    void *copies[2];        /* images and labels, where the device cannot read the caller's */
    twi_resident_view view; /* what steps see; all in device memory */
};

/* A set as tw_resident_create makes it, but without memory of the device: programs can be made that will gather from
 * it. The caller's arrays must live until it is placed, or, where the device reads them in place, as long as it
 * does. */
tw_status twi_resident_describe(tw_resident **out, tw_context *context, tw_dtype dtype, const void *images, int64_t count,
                                int channels, int height, int width, const int32_t *labels);
/* Bytes of the device that placing it takes. Errors: UNSUPPORTED (they cannot be counted). */
tw_status twi_resident_weigh(const tw_resident *resident, size_t *out);
/* Takes that memory, and puts samples and labels there. Errors: OUT_OF_MEMORY, DEVICE. */
tw_status twi_resident_place(tw_resident *resident);

/* Does the program gather what the options say, from samples such as their set has? NULL: it gathers nothing. */
bool twi_program_gathers_as(const tw_program *program, const tw_source_options *source);
/* Lets a program that gathers go on to another set of such samples. */
void twi_program_set_resident(tw_program *program, tw_resident *resident);

#endif

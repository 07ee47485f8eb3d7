/* How one sample of a data set becomes network input: normalised, perhaps mirrored and shifted. Pure: the same sample
 * of the same epoch gives the same floats, whoever asks, so that any number of loader workers may share one sampler.
 * */
#ifndef TWI_DATA_SAMPLER_H
#define TWI_DATA_SAMPLER_H

#include "base/augment.h"
#include "dataset.h"

enum { TWI_MAX_WORKERS = 256 }; /* of a loader */

typedef struct twi_sampler {
    const tw_dataset *dataset;
    twi_augment augment;
    bool channels_last;
    float *numbers; /* of each channel, as twi_pixel_fill makes them */
} twi_sampler;

/* Errors: ARGUMENT (normalisation that does not fit the data set, padding out of range), OUT_OF_MEMORY. */
tw_status twi_sampler_init(twi_sampler *sampler, const tw_dataset *dataset, const tw_loader_options *options);
void twi_sampler_free(twi_sampler *sampler);

/* Writes sample `index` as epoch `epoch` shows it: channels x height x width floats, or height x width x channels. */
void twi_sampler_make(const twi_sampler *sampler, uint64_t epoch, int64_t index, float *out);

#endif

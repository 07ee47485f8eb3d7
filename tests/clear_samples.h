/* Samples that a model decides clearly: none of their values lies so near a relu's kink, no two in a window of a max pool so
 * near to one another, that sums rounded otherwise would decide otherwise. */
#ifndef TALWEG_TESTS_CLEAR_SAMPLES_H
#define TALWEG_TESTS_CLEAR_SAMPLES_H

#include "check.h"
#include <talweg/talweg.h>

/* How near is near. Weights that were trained in other parts differ by some 1e-6, and so do the values. */
#define CLEAR_MARGIN 2e-5f

/* clear[n] says it of sample n of the batch, which is in the order of the input x. */
void find_clear_samples(tw_model *model, const tw_value *x, const float *samples, int64_t batch, bool *clear);

#endif

/* The floor that a refused memory limit names: it is enough, and a byte less is not. */
#ifndef TALWEG_TESTS_FIT_FLOOR_H
#define TALWEG_TESTS_FIT_FLOOR_H

#include "limited_fit.h"

/* A fit whose limit is refused, one with the floor that it names, and one with a byte less; tested: samples of the test set, 0: none.
 * What is more than the programs need is in the options. */
void check_floor(const setting *s, int tested, const tw_trainer_options *options);
/* Where a message of a refused limit names the floor. */
size_t floor_named(const char *message);

/* Batches of every kind: alone, with shorter last ones, more than there are samples; with what is counted beside the programs. */
void check_floors(const char *name, tw_value *(*build)(tw_model *, tw_value *), int channels, int side, const int *batches, int count);

#endif

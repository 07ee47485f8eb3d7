/* A model and its data for tests of windows: gradients of several batches that are summed before one update. */
#ifndef TALWEG_TESTS_SUBJECT_H
#define TALWEG_TESTS_SUBJECT_H

#include "check.h"
#include <talweg/talweg.h>

enum { SUBJECT_CLASSES = 10, SUBJECT_PIXELS = 784, SUBJECT_MOST = 512 };

/* A net, its data, and how to train on them in parts. */
typedef struct subject {
    tw_context *context;
    tw_model *model;
    tw_value *x, *labels, *loss;
    int64_t pixels; /* of a sample */
    const tw_optimizer_options *optimizer; /* SGD with momentum and weight decay, unless it is changed */
    tw_program *program[SUBJECT_MOST + 1]; /* by batch */
    float *image;
    int32_t label[SUBJECT_MOST];
} subject;

typedef tw_value *(*build_fn)(tw_model *model, tw_value *x);
/* Batch norm, dropout and a pool. */
tw_value *subject_batch_norm(tw_model *model, tw_value *x);

subject subject_open(tw_context *context, build_fn build, int64_t pixels);
void subject_close(subject *s);

/* The hash of make_trajectories.py. */
uint32_t subject_hash(uint32_t x);
/* Samples `first`.. of an endless set. */
void subject_samples(subject *s, int64_t first, int64_t count, int classes);
/* The next samples from *next on that the model decides clearly (clear_samples.h); others would let rounding decide. */
void subject_clear_samples(subject *s, int64_t *next, int64_t count);

tw_program *subject_program(const subject *s, int64_t batch, bool accumulate);
/* The program for a batch, with samples `first`.. of what was made. */
tw_program *subject_fed(subject *s, int64_t first, int64_t batch);
/* Gradients of the batches, which end with 0; returns the last one's program. */
tw_program *subject_sum(subject *s, const int *batches);
/* The same and the update; returns the loss. */
double subject_step(subject *s, const int *batches);

/* All that lasts of a model, byte for byte. */
typedef struct lasting {
    float *parameters;
    void *moment;
    size_t moment_bytes;
    uint64_t updates;
    double learning_rate;
} lasting;

lasting subject_keep(const subject *s);
/* Frees what was kept. */
void subject_assert_kept(const subject *s, lasting *l);

#endif

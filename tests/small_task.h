/* A task that a small network learns in a second, for the tests of the trainer: bars in noise, whose place is the
 * class. */
#ifndef TALWEG_TESTS_SMALL_TASK_H
#define TALWEG_TESTS_SMALL_TASK_H

#include "check.h"
#include <talweg/talweg.h>

enum { TASK_SIDE = 12, TASK_PIXELS = TASK_SIDE * TASK_SIDE, TASK_CLASSES = 3, TASK_CHANNELS = 16 };

/* `count` samples; the label of sample i is i % TASK_CLASSES, its noise is drawn from (seed, i). */
tw_dataset *task_data(tw_context *context, int64_t count, uint32_t seed);
/* The same samples with other labels and more classes. */
tw_dataset *task_data_labelled(tw_context *context, int64_t count, uint32_t seed, const int32_t *labels, int classes);

/* Convolution, batch norm, relu, pooling, dropout, dense: everything that behaves otherwise in training. */
tw_model *task_model(tw_context *context, uint64_t seed);
/* One dense layer: nothing behaves otherwise in training. */
tw_model *task_plain_model(tw_context *context, uint64_t seed);

/* All parameters and buffers in one block of floats, to be freed; *count of them. */
float *task_parameters(const tw_model *model, size_t *count);
/* Are the parameters, bit for bit, those of `before` (from task_parameters)? */
int task_unchanged(const tw_model *model, const float *before);

/* Contexts for the tests of a file: opened before each test with one thread, gone after it without a block left. */
extern tw_context *task_context;
int task_open(void **state);
int task_close(void **state);
#define with_context(test) cmocka_unit_test_setup_teardown(test, task_open, task_close)

#endif

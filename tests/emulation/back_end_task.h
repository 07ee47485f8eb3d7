/* A small network, its data and its trainer, for the tests of the CUDA back end on the emulated device: everything that
 * behaves otherwise in training, and every family of implementations, in a few milliseconds a step. Nothing here ends a
 * test: calls give their status back, since tests make them fail. */
#ifndef TALWEG_TESTS_BACK_END_TASK_H
#define TALWEG_TESTS_BACK_END_TASK_H

#include "check.h"
#include "emu.h"
#include <talweg/talweg.h>

enum {
    TASK_CHANNELS = 2,
    TASK_SIDE = 6,
    TASK_PIXELS = TASK_CHANNELS * TASK_SIDE * TASK_SIDE,
    TASK_CLASSES = 3,
    TASK_BATCH = 4,
    TASK_SAMPLES = 14, /* the last batch is shorter */
    TASK_STEPS = 4,
    TASK_TESTED = 5
};

typedef struct task {
    tw_context *context; /* borrowed */
    tw_dataset *train, *test;
    tw_model *model;
    tw_trainer *trainer;
    tw_metrics tested; /* after the fit */
} task;

/* Values that depend on the place alone. */
void task_images(uint8_t *images, int64_t count);
void task_labels(int32_t *labels, int64_t count);

/* Convolutions, batch norm, pooling, dropout, dense layers; built. */
tw_status task_network(tw_model **out, tw_context *context);
/* Momentum, cosine, flips and crops; two epochs of batches of TASK_BATCH. */
tw_trainer_options task_options(void);
/* Data, model and trainer. What was made before a failure is in *t. */
tw_status task_make(task *t, tw_context *context, const tw_trainer_options *options);
/* Makes all, fits, evaluates, and saves the model to the file, if one is named. */
tw_status task_run(task *t, tw_context *context, const tw_trainer_options *options, const char *path);
void task_drop(task *t);

/* All that training changes: parameters, running statistics, optimizer state, counters. To be freed. */
typedef struct task_state {
    unsigned char *bytes;
    size_t size;
} task_state;
task_state task_state_of(const tw_model *model);
bool task_same(const task_state *a, const task_state *b);
/* The same of a whole fit on a device, with its evaluation. */
task_state task_outcome(const task *t);

/* A context on the emulated device. */
tw_context *task_device(void);
/* Bytes of device memory in use. */
size_t task_device_bytes(void);

#endif

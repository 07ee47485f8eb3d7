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
/* From now on (or no more) with its batch norm frozen, so that a batch in parts teaches what the batch does. */
void task_freeze_norms(bool frozen);
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


/* What was logged at level info and warning: a context's log_user, with task_listen as its log. */
typedef struct task_log {
    char text[8192];
} task_log;
void task_listen(void *user, tw_log_level level, const char *message);
/* Holds a task that went on for all that was refused it against the outcome of an undisturbed one, as strictly as its log
 * allows: not a bit differs where nothing was planned otherwise, where a set was streamed and where steps are done again;
 * measures in smaller batches, and batches in parts or with other workspaces, are within 1e-5. Returns false, with nothing
 * held but the counters, in the one case that teaches something else: a batch in parts whose norms take their own
 * statistics, as the log must say. */
bool task_check_outcome(const task *t, const task_state *expected, const task_log *log);
/* Every number is within 1e-5 of the outcome expected; counters and accuracy are equal. */
void task_check_near(const task *t, const task_state *expected);

/* A context on the emulated device. */
tw_context *task_device(void);
/* Bytes of device memory in use. */
size_t task_device_bytes(void);

#endif

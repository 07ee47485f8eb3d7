/* A trainer with all it needs, as the tests of checkpoints make it again and again: from nothing, as a program that is
 * started anew would. */
#ifndef TALWEG_TESTS_CHECKPOINT_RUN_H
#define TALWEG_TESTS_CHECKPOINT_RUN_H

#include "check.h"
#include <talweg/talweg.h>

enum { RUN_SAMPLES = 45, RUN_BATCH = 8, RUN_STEPS = 6, RUN_EPOCHS = 3 };

typedef struct run_kind {
    const char *name;
    tw_value *(*network)(tw_model *model);
    tw_trainer_options options;
} run_kind;

/* LeNet-5; convolutions and dense layers with dropout; a residual block with batch norm. Between them both optimizers,
 * every schedule, a warm-up, flip, crop, smoothing, several batches an update, and loaders with and without workers.
 * The last one is small. */
enum { RUN_KINDS = 6, RUN_SMALL = RUN_KINDS - 1 };
extern const run_kind run_kinds[RUN_KINDS];

typedef struct run {
    tw_context *context;
    tw_dataset *train, *test;
    tw_model *model;
    tw_trainer *trainer;
    uint64_t blocks; /* of memory, before anything was made */
    char log[2048];  /* warnings */
} run;

/* The kind's options, to be changed by the caller. */
tw_trainer_options run_options(const run_kind *kind);
/* Opens a context with so many threads. Its memory hook is the caller's. */
void run_open(run *r, const run_kind *kind, const tw_trainer_options *options, int threads);
void run_close(run *r);
/* A file as a string that ends in 0; to be freed. */
char *run_read(const char *path, size_t *size);
void run_write(const char *path, const char *bytes, size_t size);
/* A checkpoint, with the checksum of what it has become. */
void run_write_signed(const char *path, char *bytes, size_t size);
/* All of a trainer that a load changes, as the file it would write. To be freed. */
char *run_all_of(const run *r, size_t *size);
void run_assert_all_is(const run *r, const char *before, size_t size);
/* What must not differ: the model's file, and the history without its two columns of time. To be freed. */
char *run_outcome(const run *r, size_t *size);

#endif

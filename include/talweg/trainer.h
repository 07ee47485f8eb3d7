/* Talweg: the trainer. Runs epochs over data sets, measures, calls back, keeps a history. Everything it does can also
 * be done by hand with tw_loader and tw_program. For classifiers: the model's output are logits [N, classes]. They take
 * no softmax at the end, since the loss, a cross-entropy, does that itself: fit logs a warning where there is one. */
#ifndef TALWEG_TRAINER_H
#define TALWEG_TRAINER_H

#include <talweg/data.h>
#include <talweg/model.h>
#include <talweg/optim.h>
#include <talweg/program.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_trainer tw_trainer;

/** What was measured over some samples; averages are weighted by samples. */
typedef struct tw_metrics {
    double loss;     /**< mean cross-entropy; while training that of the smoothed labels, if they are */
    double top1;     /**< share classified right, 0 .. 1; a row with not-a-number counts as wrong */
    double top5;     /**< share with the right class among the first five */
    int64_t samples; /**< how many samples that was */
} tw_metrics;

/** Handed to callbacks. */
typedef struct tw_progress {
    int epoch, epochs;          /**< epoch from 0 */
    int64_t step, steps;        /**< batches done in this epoch, batches an epoch */
    int64_t updates;            /**< updates committed in all */
    double learning_rate;       /**< of the last update */
    double images_per_second;   /**< of this epoch's training so far */
    double seconds;             /**< since fit began */
    double seconds_left;        /**< estimate for the rest of fit, at the speed of this call; -1 while unknown, never
                                     negative else */
    tw_metrics train;           /**< this epoch so far */
    tw_metrics test;            /**< after the last evaluation; samples 0: none yet */
} tw_progress;

/** Called on the thread that fits. Return true to stop after this step or epoch. */
typedef bool (*tw_progress_fn)(void *user, const tw_progress *progress);

/** What fit does when the device refuses memory that a plan counted on: in a run, and, where memory_limit is given,
 *  before the first. Without one, fit on a GPU begins with what it gets: that is what memory_limit 0 means. */
typedef enum tw_on_out_of_memory {
    TW_OUT_OF_MEMORY_STOP = 0, /**< fit returns OUT_OF_MEMORY with a breakdown; the model is as it was after the last
                                    update, and all still works */
    TW_OUT_OF_MEMORY_FIT = 1   /**< fit plans anew for what is left, and goes on from the same step with the same
                                    data */
} tw_on_out_of_memory;

typedef struct tw_trainer_options {
    size_t size;
    int epochs;                     /**< 0: 1; INT_MAX: until stopped */
    int batch;                      /**< 0: 64. More than the training set has: one update an epoch, with all samples */
    tw_optimizer_options optimizer; /**< size may stay 0; kind SGD and no momentum by default. schedule.total 0: all
                                         updates of fit */
    double warmup_epochs;           /**< adds to schedule.warmup */
    uint64_t seed;                  /**< order and augmentation; 0: the model's */
    int workers;                    /**< loader threads. 0: the data set goes to the device and programs gather their
                                         batches there; one that the device has no room for beside the programs is
                                         streamed (same numbers; a log line says so) */
    bool no_shuffle;
    bool drop_last;                 /**< leave out a shorter last batch in training; fit refuses it (ARGUMENT) where no
                                         batch is left */
    bool flip;                      /**< as tw_loader_options */
    int crop_padding;
    tw_normalization normalization; /**< channels 0: the model's, or, where it has none, measured on the training set at
                                         fit */
    bool no_normalization;          /**< feed values as they are (u8 / 255) */
    float label_smoothing;
    int evaluation_batch;           /**< 0: 256, or the training batch if larger */
    int evaluate_every;             /**< epochs between evaluations; 0: 1; the last epoch always is */
    tw_progress_fn on_step;         /**< after every update, also one that was left out or undone (on_non_finite) */
    tw_progress_fn on_epoch;        /**< after every epoch and its evaluation */
    void *user;
    int accumulate;                 /**< batches an update, whose gradients are summed as if they were one
                                         (tw_window_open); 0: 1. The last update of an epoch takes what is left, and
                                         counts its samples right. Schedules, on_step and stops go by updates */
    const char *checkpoint;         /**< fit writes a checkpoint to this file, when stopped too; NULL: nowhere */
    int64_t checkpoint_every;       /**< updates between checkpoints; 0: one after every epoch. Only with
                                         checkpoint */
    bool run_ahead;                 /**< with on_step on a GPU: the next steps may be under way when it is called. That
                                         keeps the device busy, but what the callback reads of the model is up to a few
                                         updates newer than its progress, a stop takes effect after those, and the model
                                         must not be evaluated there, nor its programs made or run (STATE). Without
                                         on_step steps always run ahead; on the CPU never */
    tw_precision precision;         /**< of training and evaluation */
    const tw_precision_rule *precision_rules; /**< copied */
    int precision_rule_count;
    tw_loss_scaling loss_scaling;   /**< all 0: the defaults in F16, none elsewhere; otherwise in every precision */
    tw_non_finite on_non_finite;    /**< batches without an update are left out of the epoch's measures if their loss is
                                         not finite */
    int64_t snapshot_every;         /**< TW_NON_FINITE_ROLL_BACK: updates between snapshots; 0: 100 */
    tw_recompute recompute;
    size_t memory_limit;            /**< bytes of the device's memory that training may take, all in all: parameters,
                                         gradients or their sums, optimizer, snapshots, activations, workspaces, slots,
                                         resident sets, and programs of the model that the caller made. Kept by changing
                                         the plan, which is logged: smaller workspaces, then recomputation or batches in
                                         parts of one size, whichever is cheaper (parts last where there are norms that
                                         are not frozen, whose statistics are then those of a part), smaller batches to
                                         measure with, and sets that are streamed. Not counted: other models of the
                                         context, resident sets that the caller made, trials of implementations
                                         (autotune), and what driver and libraries take for themselves. 0: what is free
                                         on a GPU, less if it refuses that, and what the context's caps leave */
    tw_on_out_of_memory on_out_of_memory;
} tw_trainer_options;
#define TW_TRAINER_OPTIONS_INIT \
    {sizeof(tw_trainer_options), 0, 0, TW_OPTIMIZER_OPTIONS_INIT, 0, 0, 0, false, false, false, 0, {0, {0}, {0}}, false, 0, 0, 0, NULL, NULL, NULL, 0, NULL, 0, false, \
     TW_PRECISION_F32, NULL, 0, {0, 0, 0, 0, 0, 0, 0}, TW_NON_FINITE_STOP, 0, TW_RECOMPUTE_AUTO, 0, TW_OUT_OF_MEMORY_STOP}

/** A trainer for a built model (borrowed). Adds labels, loss and measures to the model's graph under "trainer.", once
 *  for all trainers of the model. Samples go into the model's first input: into an image [N,C,H,W] of that very shape,
 *  into any other as many numbers, in C,H,W order. Errors: STATE, ARGUMENT (also for a model that needs a second input,
 *  or has other values under the trainer's names), SHAPE (the output is not [N, classes]). */
TW_API TW_WARN_UNUSED tw_status tw_trainer_create(tw_trainer **out, tw_model *model, const tw_trainer_options *options);
/** Frees a trainer, before its model. NULL is fine. */
TW_API void tw_trainer_destroy(tw_trainer *trainer);

/** Trains for the options' epochs; test may be NULL. Returns TW_OK, TW_STOPPED if a stop was asked for (the model keeps
 *  what was learned), or the first error: LABEL (looked for before the first step: sample, label, classes), NUMERIC
 *  (names epoch, step, loss, the first value that is not finite and its samples; the step changed nothing), MISMATCH (a
 *  data set that does not fit the model), OUT_OF_MEMORY. All memory is taken before the first step, but for the
 *  history's beyond 1024 epochs, which is doubled between epochs as they come: so INT_MAX epochs mean "until I stop".
 *  May be called again: goes on with further epochs, numbered on; an epoch that was broken off is begun again (to go on
 *  in the middle of it: tw_trainer_load). Learning rates follow the
 *  model's count of updates; where schedule.total is 0, the schedule is spread over the updates done and to come. */
TW_API TW_WARN_UNUSED tw_status tw_trainer_fit(tw_trainer *trainer, const tw_dataset *train, const tw_dataset *test);

/** Measures the model on a data set, in its order, without changing anything. Normalises as fit did, as the options
 *  say, or as the model says (tw_model_get_normalization).
 *  Errors: STATE if how to normalise is not known yet; NUMERIC if the loss is not finite; LABEL, MISMATCH. */
TW_API TW_WARN_UNUSED tw_status tw_trainer_evaluate(tw_trainer *trainer, const tw_dataset *dataset, tw_metrics *out);

/** Predicted class of every sample of a data set, in its order; classes holds tw_dataset_count values; -1 where logits
 *  hold not-a-number.
 *  Labels are not looked at. Errors: STATE, MISMATCH as tw_trainer_evaluate. */
TW_API TW_WARN_UNUSED tw_status tw_trainer_predict(tw_trainer *trainer, const tw_dataset *dataset, int32_t *classes);

/** matrix[actual * classes + predicted] = number of samples; samples with not-a-number are left out. matrix holds
 *  classes x classes values. */
TW_API TW_WARN_UNUSED tw_status tw_trainer_confusion(tw_trainer *trainer, const tw_dataset *dataset, int64_t *matrix);

/** Writes a checkpoint: a safetensors file of weights, running statistics and optimizer state, and in its metadata the
 *  counters, the place in the epoch, what was measured of it so far, the history, the options and a fingerprint of the
 *  data. May be called from callbacks, and after a fit that was stopped. Written beside and renamed. Errors: FILE;
 *  UNSUPPORTED (a parameter's name begins with "optimizer."). */
TW_API TW_WARN_UNUSED tw_status tw_trainer_save(const tw_trainer *trainer, const char *path);
/** Takes a trainer, whose model is built alike and whose options are alike, to where a checkpoint was written. The next
 *  fit goes on with the fit that was interrupted, at the very step, until the options' epochs are done since that fit
 *  began; given the same data, the result is byte for byte that of a fit without interruption. epochs, workers,
 *  evaluation, callbacks and threads may differ.
 *  Where it cannot be exact, because machine, library or plan are others, the log warns and tw_trainer_is_exact says
 *  so.
 *  Errors: FILE (not there, or cannot be read: to tell a first start, look for the file); FORMAT; MISMATCH (names the
 *  options or tensors that differ, with both values); STATE in a callback. The trainer is unchanged then. */
TW_API TW_WARN_UNUSED tw_status tw_trainer_load(tw_trainer *trainer, const char *path);
/** Is what was learned, as far as is known, byte for byte what one fit without interruption would have learned? Machine
 *  and library are compared by tw_trainer_load, the plan and the schedule's length when fit begins; weights changed in
 *  between are noticed. False for NULL. */
TW_API bool tw_trainer_is_exact(const tw_trainer *trainer);

/** Asks fit to stop after the step under way (between fits: the next one after its first). Safe from a signal handler
 *  and from other threads. */
TW_API void tw_trainer_stop(tw_trainer *trainer);

/** One row of the history: an epoch. */
typedef struct tw_history_row {
    int epoch; /**< from 1 */
    double learning_rate;     /**< of its last update */
    double seconds;           /**< its evaluation included */
    double images_per_second; /**< of its training */
    tw_metrics train, test; /**< test.samples 0: not evaluated */
} tw_history_row;

/** Epochs done so far. */
TW_API int tw_trainer_count_history(const tw_trainer *trainer);
/** Row `index` of the history. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_trainer_get_history(const tw_trainer *trainer, int index, tw_history_row *out);
/** Writes the history as CSV:
 *  epoch,learning_rate,seconds,images_per_second,train_loss,train_top1,train_top5,test_loss,test_top1,test_top5.
 *  Written beside and renamed, so that a good file is never lost. Errors: FILE. */
TW_API TW_WARN_UNUSED tw_status tw_trainer_save_history(const tw_trainer *trainer, const char *path);
/** Draws the history as an SVG picture: loss and accuracy of train and test over epochs. Errors: FILE, STATE if there
 *  are no epochs. */
TW_API TW_WARN_UNUSED tw_status tw_trainer_save_curve(const tw_trainer *trainer, const char *path);

/** The normalisation in use: given, the model's, or measured by fit; channels 0: none yet. */
TW_API tw_normalization tw_trainer_get_normalization(const tw_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif

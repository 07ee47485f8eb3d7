/* The inside of a trainer, as its files share it: trainer.c makes the object, trainer_check.c sees to it that it can,
 * programs.c keeps its programs, room.c keeps them within memory, feed.c brings data to them, fit.c trains, recovery.c
 * is for numbers that are not finite, evaluate.c measures and predicts, history.c and curve.c write it down,
 * checkpoint.c writes where it stands, with fields.c, and goes back there. */
#ifndef TWI_TRAINER_TRAINER_H
#define TWI_TRAINER_TRAINER_H

#include "base/atomic_file.h"
#include "base/context.h"
#include <talweg/io.h>
#include <talweg/program.h>
#include <talweg/trainer.h>

#include <stdatomic.h>

/* What a program of the trainer is for. */
typedef enum twi_use {
    TWI_USE_TRAIN,    /* loss, its gradients, the update; ranks */
    TWI_USE_EVALUATE, /* plain loss; ranks */
    TWI_USE_PREDICT   /* classes */
} twi_use;

typedef struct twi_cached {
    tw_program *program; /* NULL: the place is free */
    twi_use use;
    int holders;    /* feeds that work with it */
    uint64_t asked; /* when it was last wanted */
} twi_cached;

/* Full and shorter last batch of fit's two data sets and of one more evaluated in a callback; and two to spare. */
enum { TWI_CACHED_PROGRAMS = 8 };

/* Sums over samples, from which averages are made. */
typedef struct twi_tally {
    double loss;
    int64_t top1, top5, samples;
} twi_tally;

/* What fit trains on, and the programs that do it. */
typedef struct twi_origin {
    int64_t samples;
    int channels, height, width, classes;
    uint64_t data;    /* hash of samples and labels */
    int trainable;    /* parameters that learn */
    int64_t schedule; /* updates its schedule is spread over */
    uint64_t plan;    /* of the training programs */
} twi_origin;

/* Where training stands: what a checkpoint holds beside the model's tensors and the history. */
typedef struct twi_position {
    int first_epoch;       /* epochs that were done when the fit under way began */
    uint64_t first_update; /* and updates */
    int epoch;             /* epochs that are done, evaluations included */
    int64_t step;          /* steps of the next one that are done */
    twi_tally tally;       /* of these steps */
    double training;       /* seconds they took */
    double elapsed;        /* seconds since the epoch began, with what callbacks took */
    twi_origin origin;
    bool exact; /* not a bit differs from what one run without interruption would have */
} twi_position;

struct tw_trainer {
    tw_model *model;
    twi_memory *memory;
    tw_trainer_options options; /* defaults filled in; optimizer with the schedule of the fit under way */
    tw_schedule schedule;       /* as it was given */
    tw_value *input, *labels, *loss, *plain_loss, *rank, *argmax;
    int classes;
    twi_cached cached[TWI_CACHED_PROGRAMS];
    uint64_t asked;
    int32_t *results; /* what was read of one batch: ranks or classes */
    size_t result_capacity;
    tw_normalization normalization; /* channels 0: not known yet, or none wanted */
    tw_history_row *history;        /* the first position.epoch rows are part of the position */
    int history_count, history_capacity;
    twi_position position;
    bool loaded;             /* the next fit goes on from the position */
    uint64_t loaded_version; /* of the model's store then */
    int parts;               /* that a batch is run in, each as a batch of its own in one window */
    size_t limit;            /* bytes of the device that the model, its programs and the sets of samples may take; 0:
                                none */
    size_t beside;           /* of these, what the largest program of training leaves to the others */
    int64_t largest;         /* its batch */
    size_t aside, placed;    /* of these, what sets take that are resident or are going to be; and what is there of
                                it */
    bool no_reserve;         /* programs may take all that is free */
    uint64_t plans_refused;  /* the model's, when what is tried now began */
    bool rehearses;          /* programs and sets are only planned (room.c) */
    char *checkpoint;        /* where fit writes it; NULL: nowhere */
    tw_precision_rule *rules; /* the options', copied, with their names behind them */
    bool fitting;
    bool warned; /* twi_trainer_warn */
    atomic_bool stop; /* written by signal handlers and other threads */
};

/* Samples of a run in training, and the runs of a whole window. */
static inline int64_t twi_trainer_run_batch(const tw_trainer *trainer) {
    return trainer->options.batch / trainer->parts;
}
static inline int64_t twi_trainer_window(const tw_trainer *trainer) {
    return (int64_t)trainer->options.accumulate * trainer->parts;
}

/* Is nothing to run with what is made? */
static inline bool twi_trainer_only_plans(const tw_trainer *trainer) {
    return trainer->rehearses || tw_model_get_context(trainer->model)->plans_only;
}

/* ---- trainer_check.c ---- */

/* Will these options and this model do? Errors: STATE, ARGUMENT, SHAPE. */
tw_status twi_trainer_check(const tw_model *model, const tw_trainer_options *options);
/* Logs, once a trainer, what fits and is a mistake all the same. */
void twi_trainer_warn(tw_trainer *trainer);

/* ---- programs.c ---- */

/* The program for a use, a batch and samples like those of the source (NULL: it is fed), made if it is not there; it
 * stays until it is let go. It may gather from another resident set than the source's, or from one that is gone:
 * twi_program_set_resident comes before a run. */
tw_status twi_trainer_hold(tw_trainer *trainer, twi_use use, int64_t batch, const tw_source_options *source,
                           tw_program **out);
/* Ends a hold; NULL is fine. The program stays for the next one who wants it, as long as there is room. */
void twi_trainer_let_go(tw_trainer *trainer, const tw_program *program);
/* Destroys the programs of a use that nobody holds. */
void twi_trainer_forget(tw_trainer *trainer, twi_use use);
/* Gives up the programs of all uses that nobody holds, for want of memory; false: there was none. */
bool twi_trainer_spare(tw_trainer *trainer);

/* ---- feed.c ---- */

/* A data set on its way through the programs of one use. */
typedef struct twi_feed {
    tw_trainer *trainer; /* NULL: the feed is closed */
    const tw_dataset *dataset;
    twi_use use;
    int64_t samples;               /* of an epoch */
    int64_t batch;                 /* of a full run */
    tw_loader *loader;             /* makes the batches; NULL where programs gather them: */
    tw_resident *resident;         /* the data set on the device */
    int32_t *order;                /* of its samples in this epoch */
    bool certain;                  /* it is resident, whatever is left: the slots of a streamed one would take no
                                      less */
    size_t aside, placed;          /* its part of the trainer's */
    int64_t first;                 /* where in it this epoch was begun */
    tw_program *full, *short_last; /* NULL where no batch has that length */
} twi_feed;

/* One batch in its program, ready to run. */
typedef struct twi_fed {
    tw_program *program; /* NULL: the epoch is over */
    int count;
    int64_t first; /* place of its first sample in the epoch */
} twi_fed;

/* Does a data set fit the model? `what` begins the message, e.g. "the training set". Errors: MISMATCH, LABEL. */
tw_status twi_trainer_check_data(const tw_trainer *trainer, const tw_dataset *dataset, bool labelled, const char *what);
/* Batches an epoch of training. */
int64_t twi_trainer_count_steps(const tw_trainer *trainer, const tw_dataset *dataset);
/* Takes all memory that going through a data set needs. One that does not fit beside the programs, in what is left
 * (room.c), is streamed instead, which is logged. On failure the feed is closed. */
tw_status twi_feed_open(twi_feed *feed, tw_trainer *trainer, twi_use use, const tw_dataset *dataset);
/* Both of a fit, in the order in which it takes its memory; test_set may be NULL. On failure they may be open. */
tw_status twi_feed_open_fit(twi_feed *train, twi_feed *test, tw_trainer *trainer, const tw_dataset *train_set, const tw_dataset *test_set);
/* Begins an epoch at a batch, both from 0. */
tw_status twi_feed_start(twi_feed *feed, int64_t epoch, int64_t first_batch);
tw_status twi_feed_next(twi_feed *feed, twi_fed *out);
/* A closed feed is fine. */
void twi_feed_close(twi_feed *feed);

/* ---- recovery.c ---- */

struct twi_landed;
/* After a batch that was not waited for failed, at `step` of an epoch (both from 0): has its run repeated, and fails
 * once more with what was found. */
tw_status twi_feed_blame(twi_feed *feed, int64_t epoch, int64_t step, const twi_fed *fed, const struct twi_landed *landed,
                         tw_status status);
/* Fails once more, with the numbers of the samples that the model's culprit names; `first` is the place in the epoch of
 * the first sample of the batch or window. */
tw_status twi_feed_name_samples(const twi_feed *feed, int64_t epoch, int64_t first, tw_status status);
/* Says to the plans to come whether there will be snapshots: those of a fit, where it rolls back. */
void twi_recovery_expect(const tw_trainer *trainer, bool fits);
/* Room for snapshots, where the trainer rolls back; the first, unless a checkpoint was loaded that has one. */
tw_status twi_recovery_begin(const tw_trainer *trainer, bool loaded);
/* Updates until a snapshot is due; INT64_MAX: there are none. */
int64_t twi_recovery_until(const tw_trainer *trainer);
/* Takes a snapshot if one is due. No batch may be on its way. */
tw_status twi_recovery_note(const tw_trainer *trainer);
/* After a failure, with the text that says so: goes back to the snapshot, or fails again if that is not wanted or of no
 * use. */
tw_status twi_recovery_return(const tw_trainer *trainer, tw_status status);

/* ---- evaluate.c ---- */

/* Adds what a run of a training or evaluation program found. */
tw_status twi_tally_add(twi_tally *tally, tw_trainer *trainer, const twi_fed *fed);
tw_status twi_tally_add_landed(twi_tally *tally, const tw_trainer *trainer, const struct twi_landed *landed);
/* Waits for the batches on their way, and takes the position past them, up to one that failed. */
tw_status twi_position_settle(const tw_trainer *trainer, twi_position *position);
tw_metrics twi_tally_metrics(const twi_tally *tally);
/* Runs a whole data set through evaluation programs. If `stoppable`, breaks off where a stop is asked for, and *out has
 * no samples. */
tw_status twi_trainer_measure(twi_feed *feed, bool stoppable, tw_metrics *out);

/* ---- history.c ---- */

/* Room for `epochs` further rows; what is too small is doubled at least. */
tw_status twi_history_reserve(tw_trainer *trainer, int epochs);
void twi_history_add(tw_trainer *trainer, const tw_history_row *row);
/* Writes a file through `write`, with numbers as the C locale writes them, whatever the program's locale is. */
tw_status twi_history_save(const tw_trainer *trainer, const char *path,
                           void (*write)(const tw_trainer *trainer, twi_atomic_file *file));

/* ---- checkpoint.c ---- */

/* Can checkpoints be written, as far as one knows before? Errors: FILE, UNSUPPORTED. */
tw_status twi_checkpoint_check(const tw_trainer *trainer);
/* Holds what fit is about to train on against what it was before a checkpoint was written: other data are refused,
 * another plan or schedule is logged, and ends exactness. Errors: MISMATCH. */
tw_status twi_checkpoint_compare(tw_trainer *trainer, const twi_origin *now);

#endif

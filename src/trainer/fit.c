/* Training: epochs, steps, evaluations in between, progress and stopping. Everything is made before the first step;
 * from then on nothing is allocated, but for the history of a very long fit, which grows between epochs. */
#include "base/clock.h"
#include "base/text.h"
#include "data/dataset.h"
#include "pipeline.h"
#include "program/model.h"
#include "room.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* What a sample costs in evaluation, as a share of training, until one has been timed: forward, but no backward. */
static const double evaluation_share = 1.0 / 3;

/* Of the history, made before the first step: how many epochs will really be done nobody knows. */
enum { ROWS_AT_ONCE = 1024 };

typedef struct spent {
    double seconds;
    int64_t samples;
} spent;

/* The steps of `progress` are runs: where a batch is run in parts there are several a batch. Callbacks, messages and
 * positions tell batches. */
typedef struct fit {
    tw_trainer *trainer;
    twi_room room;
    uint64_t attempts;     /* of the model after the last update */
    twi_position *at;      /* the trainer's */
    twi_feed train, test;  /* test is closed if there is no test set */
    twi_pipeline pipeline; /* of this epoch's training */
    tw_progress progress;
    twi_tally tally; /* of this epoch */
    double began, epoch_began;
    spent training, testing; /* in this call; what came before says nothing of its speed */
    spent epoch;             /* training in this epoch, in earlier calls too */
    bool stopping;
} fit;

static double now(void) { return 1e-9 * (double)twi_clock(); }

/* ---- progress ---- */

/* Evaluations from this epoch's own on, those before `epoch` being done. */
static int64_t evaluations_from(const fit *f, int epoch) {
    const int every = f->trainer->options.evaluate_every, end = f->progress.epochs;
    if (!f->test.dataset || epoch >= end) return 0;
    return end / every - epoch / every + (end % every != 0);
}

static bool evaluation_due(const fit *f, int epoch) {
    return evaluations_from(f, epoch) > evaluations_from(f, epoch + 1);
}

/* At the speed so far of this very call: a fit that goes on from an earlier one must not count its steps as its own. */
static double seconds_left(const fit *f, int evaluated) {
    const tw_progress *p = &f->progress;
    if (!f->training.samples) return -1;
    const double sample = f->training.seconds / (double)f->training.samples;
    const double tested =
        f->testing.samples ? f->testing.seconds / (double)f->testing.samples : sample * evaluation_share;
    const double steps = (double)(p->epochs - p->epoch) * (double)p->steps - (double)p->step;
    const double mean_batch = (double)f->tally.samples / (double)p->step;
    const double tests =
        (double)evaluations_from(f, evaluated) * (double)(f->test.dataset ? tw_dataset_count(f->test.dataset) : 0);
    return steps * mean_batch * sample + tests * tested;
}

static void update_progress(fit *f, int evaluated) {
    tw_progress *p = &f->progress;
    p->updates = (int64_t)tw_model_get_updates(f->trainer->model);
    p->learning_rate = tw_model_get_learning_rate(f->trainer->model);
    p->images_per_second = f->epoch.seconds > 0 ? (double)f->epoch.samples / f->epoch.seconds : 0;
    p->seconds = now() - f->began;
    p->seconds_left = seconds_left(f, evaluated);
    p->train = twi_tally_metrics(&f->tally);
}

/* Batches that runs of an epoch make up. */
static int64_t batches(const fit *f, int64_t runs) {
    const int parts = f->trainer->parts;
    return (runs + parts - 1) / parts;
}

/* Calls back, and notes whether to stop. */
static void report(fit *f, tw_progress_fn call, int evaluated) {
    if (call) {
        update_progress(f, evaluated);
        tw_progress told = f->progress;
        told.step = batches(f, told.step);
        told.steps = batches(f, told.steps);
        if (call(f->trainer->options.user, &told)) f->stopping = true;
    }
    if (atomic_exchange(&f->trainer->stop, false)) f->stopping = true;
}

/* ---- checkpoints ---- */

static tw_status keep(const fit *f) {
    const tw_trainer *trainer = f->trainer;
    return trainer->checkpoint ? tw_trainer_save(trainer, trainer->checkpoint) : TW_OK;
}

/* Where a stop ends an epoch early, too; the end of an epoch has its own. */
static bool keep_due(const fit *f) {
    const int64_t every = f->trainer->options.checkpoint_every;
    if (f->stopping && f->progress.step < f->progress.steps) return true;
    return every && tw_model_get_updates(f->trainer->model) % (uint64_t)every == 0;
}

/* ---- an epoch ---- */

static bool accumulates(const fit *f) { return twi_trainer_window(f->trainer) > 1; }

/* Are there no runs left for an update to take, once `step` of the epoch are done? */
static bool settled(const fit *f, int64_t step) {
    return step % twi_trainer_window(f->trainer) == 0 || step == f->progress.steps;
}

/* Samples of the window that begins with the next batch: fewer at the end of an epoch. */
static int64_t window_samples(const fit *f) {
    const tw_trainer_options *o = &f->trainer->options;
    const int64_t batch = twi_trainer_run_batch(f->trainer), begin = f->progress.step * batch,
                  count = tw_dataset_count(f->train.dataset), end = begin + twi_trainer_window(f->trainer) * batch,
                  last = o->drop_last ? count - count % o->batch : count;
    return (end < last ? end : last) - begin;
}

/* One batch of a window, and the update that ends it. */
static tw_status run_in_window(fit *f, const twi_fed *fed) {
    const int64_t step = f->progress.step;
    if (settled(f, step)) TWI_TRY(tw_window_open(f->trainer->model, window_samples(f)));
    TWI_TRY(tw_program_run_gradients(fed->program));
    return settled(f, step + 1) ? tw_program_run_update(fed->program) : TW_OK;
}

/* Batches that may be on their way at once: none beyond the update that a checkpoint or a snapshot is due after, and
 * none beyond one that is called back for, unless that was asked for. */
static int64_t ahead(const fit *f) {
    const tw_trainer_options *o = &f->trainer->options;
    const int64_t every = o->checkpoint_every;
    if (f->stopping) return 0;
    if (o->on_step && !o->run_ahead) return 1;
    const int64_t snapshot = twi_recovery_until(f->trainer);
    const int64_t kept =
        every ? every - (int64_t)(tw_model_get_updates(f->trainer->model) % (uint64_t)every) : INT64_MAX;
    return kept < snapshot ? kept : snapshot;
}

static tw_status next_in_window(fit *f, twi_fed *fed) {
    TWI_TRY(twi_feed_next(&f->train, fed));
    if (!fed->program) return TW_OK;
    tw_status status = run_in_window(f, fed);
    const int64_t window = twi_trainer_window(f->trainer), first = f->progress.step / window * window;
    if (status)
        return twi_feed_name_samples(&f->train, f->progress.epoch, first * twi_trainer_run_batch(f->trainer), status);
    return twi_tally_add(&f->tally, f->trainer, fed);
}

static tw_status next_ahead(fit *f, twi_fed *fed) {
    twi_landed landed;
    tw_status status = twi_pipeline_next(&f->pipeline, ahead(f), fed, &landed);
    if (status && fed->program)
        return twi_feed_blame(&f->train, f->progress.epoch, f->progress.step, fed, &landed, status);
    TWI_TRY(status);
    return fed->program ? twi_tally_add_landed(&f->tally, f->trainer, &landed) : TW_OK;
}

static void count_step(fit *f, int samples, double began) {
    const double seconds = now() - began;
    f->progress.step++;
    f->training.seconds += seconds;
    f->training.samples += samples;
    f->epoch.seconds += seconds;
    f->epoch.samples += samples;
}

/* After an update: only there can training be gone on with. */
static void note_position(fit *f) {
    f->at->step = batches(f, f->progress.step);
    f->attempts = f->trainer->model->store.attempts;
    f->at->tally = f->tally;
    f->at->training = f->epoch.seconds;
    f->at->elapsed = now() - f->epoch_began;
}

/* Where the trainer rolls back, training goes on there with what follows the batch that failed, or its window. */
static tw_status recover(fit *f, tw_status status) {
    tw_progress *p = &f->progress;
    const int64_t every = twi_trainer_window(f->trainer), next = (p->step / every + 1) * every;
    TWI_TRY(twi_recovery_return(f->trainer, status));
    tw_window_close(f->trainer->model);
    p->step = next < p->steps ? next : p->steps;
    TWI_TRY(twi_feed_start(&f->train, p->epoch, p->step));
    twi_pipeline_close(&f->pipeline);
    TWI_TRY(twi_pipeline_open(&f->pipeline, &f->train));
    p->step--; /* counted as one step */
    return TW_OK;
}

static tw_status train_batches(fit *f) {
    tw_progress *p = &f->progress;
    double began = now();
    while (!f->stopping || f->pipeline.count) { /* what is on its way when a stop is asked for is part of the epoch */
        twi_fed fed;
        tw_status status = accumulates(f) ? next_in_window(f, &fed) : next_ahead(f, &fed);
        if (status)
            status = twi_fail_within(status, "epoch %d, step %lld", p->epoch + 1, (long long)batches(f, p->step + 1));
        if (status) TWI_TRY(recover(f, status));
        if (!fed.program) break;
        const double done = now();
        count_step(f, fed.count, began);
        began = done; /* so that the callback's time counts, with the next step */
        if (!settled(f, p->step)) continue;
        note_position(f);
        if (!f->pipeline.count) TWI_TRY(twi_recovery_note(f->trainer));
        report(f, f->trainer->options.on_step, p->epoch);
        if (!f->pipeline.count && keep_due(f)) TWI_TRY(keep(f));
    }
    return TW_OK;
}

static tw_status train_part_of_epoch(fit *f) {
    const int64_t runs = f->at->step * f->trainer->parts;
    f->progress.step = runs < f->progress.steps ? runs : f->progress.steps;
    f->tally = f->at->tally;
    f->epoch = (spent){f->at->training, f->tally.samples};
    TWI_TRY(twi_feed_start(&f->train, f->progress.epoch, f->progress.step));
    TWI_TRY(twi_pipeline_open(&f->pipeline, &f->train));
    tw_status status = train_batches(f);
    twi_pipeline_close(&f->pipeline);
    return status;
}

/* ---- when memory runs out ---- */

static int64_t count_runs(const fit *f) { return (f->train.samples + f->train.batch - 1) / f->train.batch; }

/* After a failure for want of memory: all as after the last update, and programs that take less. */
static tw_status replan(fit *f) {
    tw_trainer *trainer = f->trainer;
    const bool over = f->progress.step == f->progress.steps;
    tw_window_close(trainer->model);
    TWI_TRY(twi_room_reopen(trainer, &f->room));
    trainer->model->store.attempts = f->attempts;
    f->progress.steps = count_runs(f);
    if (over) f->progress.step = f->progress.steps;
    return TW_OK;
}

static bool goes_on(const fit *f, tw_status status) {
    return status == TW_ERROR_OUT_OF_MEMORY && f->trainer->options.on_out_of_memory == TW_OUT_OF_MEMORY_FIT;
}

static tw_status train_epoch(fit *f) {
    tw_status status;
    f->attempts = f->trainer->model->store.attempts;
    while (goes_on(f, status = train_part_of_epoch(f))) TWI_TRY(replan(f));
    return status;
}

static tw_status measure_epoch(fit *f) {
    tw_status status;
    while (goes_on(f, status = twi_trainer_measure(&f->test, true, &f->progress.test))) TWI_TRY(replan(f));
    return status;
}

static tw_status evaluate_epoch(fit *f) {
    const double began = now();
    tw_status status = measure_epoch(f);
    f->testing.seconds += now() - began;
    f->testing.samples += f->progress.test.samples;
    return status ? twi_fail_within(status, "evaluation after epoch %d", f->progress.epoch + 1) : TW_OK;
}

static void note_epoch(fit *f, bool evaluated) {
    update_progress(f, f->progress.epoch + 1);
    const tw_progress *p = &f->progress;
    tw_history_row row = {.epoch = p->epoch + 1,
                          .learning_rate = p->learning_rate,
                          .images_per_second = p->images_per_second,
                          .train = p->train};
    row.seconds = now() - f->epoch_began;
    if (evaluated) row.test = p->test;
    twi_history_add(f->trainer, &row);
}

static tw_status stopped(const fit *f) {
    const tw_progress *p = &f->progress;
    return TWI_FAIL(
        TW_STOPPED,
        "tw_trainer_fit: stopped on request in epoch %d after step %lld of %lld; the model keeps what it learned",
        p->epoch + 1, (long long)batches(f, p->step), (long long)batches(f, p->steps));
}

/* An epoch whose evaluation is due and was broken off has its row, but whoever goes on from here makes up for it. */
static void end_epoch(fit *f, bool whole) {
    if (whole)
        *f->at = (twi_position){.first_epoch = f->at->first_epoch,
                                .first_update = f->at->first_update,
                                .epoch = f->progress.epoch + 1,
                                .origin = f->at->origin,
                                .exact = f->at->exact};
}

static tw_status run_epoch(fit *f) {
    tw_progress *p = &f->progress;
    TWI_TRY(twi_history_reserve(f->trainer, 1)); /* it is there, unless the fit is very long */
    f->epoch_began = now() - f->at->elapsed;
    TWI_TRY(train_epoch(f));
    if (p->step < p->steps) return stopped(f);
    const bool due = evaluation_due(f, p->epoch), evaluated = due && !f->stopping;
    tw_status status = evaluated ? evaluate_epoch(f) : TW_OK;
    note_epoch(f, evaluated);
    TWI_TRY(status);
    end_epoch(f, !due || (evaluated && p->test.samples));
    if (!f->stopping) report(f, f->trainer->options.on_epoch, p->epoch + 1);
    if (f->stopping || !f->trainer->options.checkpoint_every || p->epoch + 1 == p->epochs) TWI_TRY(keep(f));
    return f->stopping ? stopped(f) : TW_OK;
}

/* ---- what is settled before the first step ---- */

static tw_status measure_normalization(tw_trainer *trainer, const tw_dataset *train) {
    tw_normalization *n = &trainer->normalization;
    const int channels = tw_dataset_get_channels(train);
    if (trainer->options.no_normalization || n->channels) return TW_OK;
    if (channels > TW_MAX_CHANNELS)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED,
                        "%d channels; at most %d can be normalised: set no_normalization and give normalised samples",
                        channels, TW_MAX_CHANNELS);
    tw_normalization measured = {.channels = channels};
    TWI_TRY(tw_dataset_measure(train, measured.mean, measured.deviation));
    *n = measured;
    return TW_OK;
}

/* The model keeps what it was trained with, for its file and for other trainers: u8 / 255 alone is mean 0, deviation
 * 1. */
static tw_status note_recipe(const tw_trainer *trainer, const tw_dataset *train) {
    tw_normalization used = trainer->normalization;
    const int channels = tw_dataset_get_channels(train);
    if (!used.channels && channels <= TW_MAX_CHANNELS) {
        used.channels = channels;
        for (int c = 0; c < channels; c++) used.deviation[c] = 1;
    }
    TWI_TRY(tw_model_set_normalization(trainer->model, &used));
    if (tw_model_count_class_names(trainer->model)) return TW_OK;
    const int known = tw_dataset_get_classes(train), count = known < trainer->classes ? known : trainer->classes;
    const char **names;
    TWI_TRY(twi_get(trainer->memory, &names, (size_t)count, sizeof *names, "class names"));
    for (int i = 0; i < count; i++) names[i] = tw_dataset_get_class_name(train, i);
    tw_status status = tw_model_set_class_names(trainer->model, names, count);
    twi_put(trainer->memory, names);
    return status;
}

/* A cosine that ended with the last fit would leave nothing to learn with: it is spread anew over all updates, those
 * before this fit and its own. */
static void settle_schedule(tw_trainer *trainer, uint64_t first_update, int64_t steps) {
    tw_schedule *schedule = &trainer->options.optimizer.schedule;
    const int64_t every = trainer->options.accumulate, updates = (steps + every - 1) / every; /* an epoch */
    *schedule = trainer->schedule;
    schedule->warmup += (int64_t)llround(trainer->options.warmup_epochs * (double)updates);
    if (!schedule->total) schedule->total = (int64_t)first_update + trainer->options.epochs * updates;
}

/* ---- where it begins ---- */

static twi_position new_position(const tw_trainer *trainer) {
    return (twi_position){.first_epoch = trainer->history_count,
                          .first_update = tw_model_get_updates(trainer->model),
                          .epoch = trainer->history_count,
                          .exact = trainer->position.exact};
}

/* Odd, or 0 where runs of the program are never the same. */
static uint64_t plan_of(const tw_program *program) {
    const uint64_t hash = tw_program_get_plan_hash(program);
    return !program || hash ? hash | 1 : 0;
}

static twi_origin origin_of(const fit *f) {
    const tw_dataset *data = f->train.dataset;
    const twi_store *store = &f->trainer->model->store;
    twi_origin origin = {.samples = tw_dataset_count(data),
                         .channels = tw_dataset_get_channels(data),
                         .height = tw_dataset_get_height(data),
                         .width = tw_dataset_get_width(data),
                         .classes = tw_dataset_get_classes(data),
                         .data = twi_dataset_hash(data),
                         .schedule = f->trainer->options.optimizer.schedule.total};
    for (int i = 0; i < store->count; i++)
        origin.trainable += store->parameter[i].learned && store->parameter[i].trainable;
    origin.plan = plan_of(f->train.full) * plan_of(f->train.short_last);
    return origin;
}

static tw_status take_position(fit *f, const twi_position *start) {
    tw_trainer *trainer = f->trainer;
    const twi_origin origin = origin_of(f);
    if (trainer->loaded) TWI_TRY(twi_checkpoint_compare(trainer, &origin));
    const int64_t steps = batches(f, f->progress.steps);
    if (start->step > steps || (start->step % trainer->options.accumulate && start->step != steps))
        return TWI_FAIL(TW_ERROR_MISMATCH, "the checkpoint was written after step %lld of %lld, where no update ends",
                        (long long)start->step, (long long)steps);
    const bool exact = trainer->position.exact;
    trainer->position = *start;
    trainer->position.exact = exact;
    trainer->position.origin = origin;
    trainer->loaded = false;
    return TW_OK;
}

static tw_status begin(fit *f, const tw_dataset *train, const tw_dataset *test) {
    tw_trainer *trainer = f->trainer;
    const tw_trainer_options *o = &trainer->options;
    TWI_TRY(twi_trainer_check_data(trainer, train, true, "the training set"));
    if (test) TWI_TRY(twi_trainer_check_data(trainer, test, true, "the test set"));
    TWI_TRY(twi_checkpoint_check(trainer));
    twi_trainer_warn(trainer);
    const twi_position start = trainer->loaded ? trainer->position : new_position(trainer);
    const int countable = INT_MAX - start.first_epoch; /* of INT_MAX epochs some may have been done */
    f->progress.epoch = start.epoch;
    f->progress.epochs = start.first_epoch + (o->epochs < countable ? o->epochs : countable);
    const int left = f->progress.epochs - start.epoch;
    TWI_TRY(measure_normalization(trainer, train));
    TWI_TRY(twi_history_reserve(trainer, left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE));
    settle_schedule(trainer, start.first_update, twi_trainer_count_steps(trainer, train));
    twi_trainer_forget(trainer, TWI_USE_TRAIN); /* schedule and frozen parameters may have changed */
    TWI_TRY(twi_room_open(trainer, &f->room));
    f->progress.steps = count_runs(f);
    TWI_TRY(note_recipe(trainer, train));
    TWI_TRY(take_position(f, &start));
    const twi_log *log = &tw_model_get_context(trainer->model)->log;
    if (left <= 0) {
        twi_log_line(log, TW_LOG_INFO, "fit: epoch %d was the last: nothing is left to do", f->progress.epochs);
        return TW_OK;
    }
    const int64_t steps = batches(f, f->progress.steps);
    twi_log_line(log, TW_LOG_INFO,
                 "fit: %lld sample%s, %s, batch %d, %d an update, %lld step%s an epoch, epochs %d to %d, seed %llu",
                 (long long)tw_dataset_count(train), twi_plural(tw_dataset_count(train)),
                 o->no_shuffle ? "in their order" : "shuffled", o->batch, o->accumulate, (long long)steps,
                 twi_plural(steps), f->progress.epoch + 1, f->progress.epochs, (unsigned long long)o->seed);
    return TW_OK;
}

static tw_status run(fit *f) {
    for (; f->progress.epoch < f->progress.epochs; f->progress.epoch++) TWI_TRY(run_epoch(f));
    return TW_OK;
}

tw_status tw_trainer_fit(tw_trainer *trainer, const tw_dataset *train, const tw_dataset *test) {
    if (!trainer || !train)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_fit: %s is NULL", trainer ? "the training set" : "trainer");
    if (trainer->fitting)
        return TWI_FAIL(TW_ERROR_STATE, "tw_trainer_fit: called from a callback of a fit that is under way");
    fit f;
    memset(&f, 0, sizeof f);
    f.trainer = trainer;
    f.at = &trainer->position;
    f.began = now();
    trainer->fitting = true;
    const tw_normalization normalization = trainer->normalization;
    const twi_store_mark held = twi_store_note(&trainer->model->store);
    f.room = (twi_room){&f.train, &f.test, train, test};
    tw_status status = begin(&f, train, test);
    const bool begun = status == TW_OK;
    if (begun) status = run(&f);
    twi_room_leave(trainer, &f.room, begun ? NULL : &held);
    if (!begun) trainer->normalization = normalization;   /* what was measured of data that taught nothing */
    if (accumulates(&f)) tw_window_close(trainer->model); /* one that failed is still open */
    trainer->fitting = false;
    if (status == TW_OK || status == TW_STOPPED) return status;
    return twi_fail_within(status, "tw_trainer_fit");
}

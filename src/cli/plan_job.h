/* What `talweg plan` is asked to plan, and one plan of it with all that it was made from. */
#ifndef TWI_CLI_PLAN_JOB_H
#define TWI_CLI_PLAN_JOB_H

#include "cli.h"

typedef struct twi_job {
    const char *model;       /* of the zoo, or a model file */
    const char *device;      /* "auto", "cpu", "cuda:0", a card's key, or a card's file */
    int channels, height, width, classes; /* 0: the model's own */
    tw_trainer_options trainer;
    const char *optimizer;   /* its name */
    int64_t samples, test_samples;
    bool streamed, floats;
    int threads;
} twi_job;

typedef struct twi_planned {
    const char *model;   /* the job's */
    tw_context *context;
    tw_model *net;
    tw_plan *plan;
    tw_card card;
    bool measured;       /* the card's rates are the machine's own, measured just now */
    int64_t channels, height, width, classes, weights, batch;
    tw_plan_memory memory;
    tw_plan_time time;
    size_t room; /* what was asked to be filled; 0: the card's memory */
} twi_planned;

/* Is the model one of the zoo, whose images and classes can be chosen? A file has its own. */
bool twi_job_is_named(const twi_job *job);
/* Plans a batch of the job. card NULL: for the job's device. On failure *out is empty, and tw_last_error says why. */
tw_status twi_job_plan(twi_planned *out, const twi_job *job, const tw_card *card, int64_t batch);
void twi_planned_drop(twi_planned *planned);
/* Measures the CPU that is planned for. */
tw_status twi_planned_measure(twi_planned *planned, const twi_job *job);
/* What the device has to have for it, in bytes. */
size_t twi_planned_needs(const twi_planned *planned);

/* ---- plan_search.c ---- */

/* The largest batch whose needs are at most `room`, planned in *best, and the next batch's needs. best->plan is NULL if
 * not even one sample fits; then *next_needs is what one needs. Batches beyond 2^24 are not looked at: *next_needs is 0
 * where that one fits. */
tw_status twi_job_search(twi_planned *best, size_t *next_needs, const twi_job *job, size_t room);
/* A row for every card that is known, with the batch of the job. */
tw_status twi_job_print_cards(const twi_job *job, bool json);

/* ---- plan_print.c ---- */

void twi_planned_print(const twi_planned *planned, const twi_job *job);
/* "1.25 GiB" and "1.25 TB", in columns of their own: of 1024 and of 1000. */
enum { TWI_AMOUNT_TEXT = 32 };
const char *twi_amount_bytes(double bytes, char out[TWI_AMOUNT_TEXT]);
/* Three amounts in the unit of the first, with digits enough to tell from it the third, which is more if it is not 0. */
void twi_amounts_apart(size_t room, size_t fits, size_t beyond, char out[3][TWI_AMOUNT_TEXT]);
const char *twi_amount(double value, const char *unit, char out[TWI_AMOUNT_TEXT]);
const char *twi_amount_seconds(double seconds, char out[TWI_AMOUNT_TEXT]);
/* To three digits: a plan is not better than that. */
double twi_amount_rounded(double value);
/* "bytes", "arithmetic" or "both": what most of the time waits for. */
const char *twi_bound_by(const tw_plan_time *time);

/* ---- plan_json.c ---- */

void twi_planned_print_json(const twi_planned *planned, const twi_job *job);
void twi_card_print_json(const twi_planned *planned);

#endif

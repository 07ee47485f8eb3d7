/* Many plans of one job: the largest batch for some memory, and all cards beside each other. */
#include "plan_job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* No card holds more samples of anything. */
static const int64_t batch_most = (int64_t)1 << 24;

/* Plans a batch; *fits: its needs are at most `room`. */
static tw_status try_batch(twi_planned *out, const twi_job *job, int64_t batch, size_t room, bool *fits) {
    tw_status status = twi_job_plan(out, job, NULL, batch);
    *fits = status == TW_OK && twi_planned_needs(out) <= room;
    return status;
}

/* Doubles until it no longer fits, halves the gap, and then looks at every next batch: a library may choose another way
 * to do a larger one, and need less for it. */
tw_status twi_job_search(twi_planned *best, size_t *next_needs, const twi_job *job, size_t room) {
    twi_planned tried;
    int64_t low = 0, high = 1;
    bool fits = true;
    *best = (twi_planned){0};
    for (; high <= batch_most; high *= 2) {
        tw_status status = try_batch(&tried, job, high, room, &fits);
        if (status) return status;
        *next_needs = twi_planned_needs(&tried);
        twi_planned_drop(&tried);
        if (!fits) break;
        low = high;
    }
    if (fits) high = batch_most + 1; /* all that is looked at */
    while (low && high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        tw_status status = try_batch(&tried, job, middle, room, &fits);
        if (status) return status;
        twi_planned_drop(&tried);
        *(fits ? &low : &high) = middle;
    }
    for (int64_t batch = low; batch > 0 && batch <= batch_most; batch++) {
        tw_status status = try_batch(&tried, job, batch, room, &fits);
        if (status) return status;
        if (!fits) {
            *next_needs = twi_planned_needs(&tried);
            twi_planned_drop(&tried);
            return TW_OK;
        }
        twi_planned_drop(best);
        *best = tried;
        best->room = room;
    }
    if (low) *next_needs = 0;
    return TW_OK;
}

static void print_row(const twi_planned *p) {
    char needs[TWI_AMOUNT_TEXT], memory[TWI_AMOUNT_TEXT], update[TWI_AMOUNT_TEXT], epoch[TWI_AMOUNT_TEXT];
    printf("%-11s %9s %9s  %-4s %10s %10.0f  %-10s %10s\n", p->card.key,
           twi_amount_bytes((double)p->card.memory_bytes, memory),
           twi_amount_bytes((double)twi_planned_needs(p), needs), p->memory.fits ? "yes" : "no",
           twi_amount_seconds(p->time.update_seconds, update), twi_amount_rounded(p->time.images_per_second),
           twi_bound_by(&p->time), twi_amount_seconds(p->time.epoch_seconds, epoch));
}

static void print_head(const twi_planned *p, const twi_job *job) {
    printf("%s, batch %lld, %s, %s: planned for each card, not measured\n\n", job->model, (long long)p->batch,
           tw_precision_name(job->trainer.precision), job->optimizer);
    printf("%-11s %9s %9s  %-4s %10s %10s  %-10s %10s\n", "card", "memory", "needs", "fits", "update", "images/s",
           "waits for", "epoch");
}

static void print_foot(bool estimated, bool samples) {
    printf("\nneeds: the planned peak and an estimate of 512 MiB for driver and libraries; 15/16 of the memory are "
           "counted on\n"
           "update, images/s, epoch: at best, by the roofline of the card's data sheet: launches and the host are left "
           "out\n");
    if (estimated)
        printf("workspaces are the most that the libraries may take: the CUDA back end is not here to be asked\n");
    if (!samples) printf("epoch: give --samples\n");
}

tw_status twi_job_print_cards(const twi_job *job, bool json) {
    bool estimated = false;
    for (int i = 0; i < tw_card_count(); i++) {
        tw_card card = TW_CARD_INIT;
        twi_planned planned;
        tw_status status = tw_card_get(&card, i);
        if (status == TW_OK) status = twi_job_plan(&planned, job, &card, job->trainer.batch);
        if (status) return status;
        estimated = estimated || planned.memory.workspace_estimated;
        if (json) {
            fputs(i ? ",\n " : "[", stdout);
            twi_card_print_json(&planned);
        } else {
            if (i == 0) print_head(&planned, job);
            print_row(&planned);
        }
        twi_planned_drop(&planned);
    }
    if (json)
        puts("]");
    else
        print_foot(estimated, job->samples > 0);
    return TW_OK;
}

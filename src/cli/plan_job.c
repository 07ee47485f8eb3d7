/* From a job to a plan: the device, the model, the trainer's options. */
#include "plan_job.h"
#include "workload.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- models ---- */

static tw_status build(twi_planned *p, const twi_job *job, const twi_workload *network) {
    tw_status status = tw_model_create(&p->net, p->context);
    if (status) return status;
    tw_value *x = tw_input(p->net, job->channels ? job->channels : network->channels,
                           job->height ? job->height : network->own_side, job->width ? job->width : network->own_side);
    return tw_model_build(p->net, network->build(p->net, x, job->classes ? job->classes : network->classes), NULL);
}

bool twi_job_is_named(const twi_job *job) { return twi_workload_find(job->model); }

static tw_status open_model(twi_planned *p, const twi_job *job) {
    const twi_workload *network = twi_workload_find(job->model);
    if (network) return build(p, job, network);
    const tw_status status = tw_model_open(&p->net, p->context, job->model, NULL);
    if (status && access(job->model, F_OK))
        fprintf(stderr, "talweg plan: networks by name are " TWI_WORKLOAD_NAMES "\n");
    return status;
}

/* ---- devices ---- */

static bool is_file(const char *device) {
    const size_t length = strlen(device);
    return length > 5 && strcmp(device + length - 5, ".json") == 0;
}

static tw_status open_device(twi_planned *p, const twi_job *job, const tw_card *card) {
    const tw_context_options *options = TW_OPTIONS(context, .threads = job->threads);
    tw_card loaded = TW_CARD_INIT;
    if (!card && is_file(job->device)) {
        tw_status status = tw_card_load(&loaded, job->device);
        if (status) return status;
        card = &loaded;
    }
    if (card) return tw_context_create_for_card(&p->context, card, options);
    char name[128]; /* as it is printed, or without "plan:" */
    snprintf(name, sizeof name, "%s%s", strncmp(job->device, "plan:", 5) ? "plan:" : "", job->device);
    const tw_status status = tw_context_create(&p->context, name, options);
    if (status && strncmp(name, "plan:cuda", 9) == 0)
        fprintf(stderr,
                "talweg plan: a card that is not here is planned for by its name, such as --device h200 (talweg "
                "plan --list-devices)\n");
    return status;
}

/* ---- the plan ---- */

/* card NULL: times by the figures of the device. */
static tw_status make_plan(twi_planned *p, const twi_job *job, const tw_card *card) {
    tw_trainer_options trainer = job->trainer;
    trainer.batch = (int)p->batch;
    if (job->streamed && !trainer.workers) trainer.workers = 1;
    tw_plan_destroy(p->plan);
    p->plan = NULL;
    tw_status status = tw_plan_create(&p->plan, p->net,
                                      TW_OPTIONS(plan, .trainer = &trainer, .samples = job->samples, .card = card,
                                                 .test_samples = job->test_samples, .floats = job->floats));
    if (status == TW_OK) status = tw_plan_get_memory(p->plan, &p->memory);
    return status ? status : tw_plan_get_time(p->plan, NULL, &p->time);
}

static void describe(twi_planned *p) {
    const tw_value *input = tw_model_get_input(p->net);
    const bool image = tw_value_get_rank(input) == 4;
    p->channels = image ? tw_value_get_dim(input, 1) : 0;
    p->height = image ? tw_value_get_dim(input, 2) : 0;
    p->width = image ? tw_value_get_dim(input, 3) : tw_value_get_dim(input, 1);
    p->classes = tw_value_get_dim(tw_model_get_output(p->net), 1);
    p->weights = tw_model_count_weights(p->net);
}

tw_status twi_job_plan(twi_planned *out, const twi_job *job, const tw_card *card, int64_t batch) {
    *out = (twi_planned){.model = job->model,
                         .batch = batch,
                         .card = TW_CARD_INIT,
                         .memory = TW_PLAN_MEMORY_INIT,
                         .time = TW_PLAN_TIME_INIT};
    tw_status status = open_device(out, job, card);
    if (status == TW_OK) status = tw_card_of_context(&out->card, out->context);
    if (status == TW_OK) status = open_model(out, job);
    if (status == TW_OK) status = make_plan(out, job, NULL);
    if (status == TW_OK)
        describe(out);
    else
        twi_planned_drop(out);
    return status;
}

void twi_planned_drop(twi_planned *planned) {
    tw_plan_destroy(planned->plan);
    tw_model_destroy(planned->net);
    tw_context_destroy(planned->context);
    *planned = (twi_planned){0};
}

tw_status twi_planned_measure(twi_planned *p, const twi_job *job) {
    tw_ceilings ceilings = TW_CEILINGS_INIT;
    if (p->card.capability) return TW_OK;
    tw_status status = tw_context_measure(p->context, 0, &ceilings);
    if (status) return status;
    p->card.f32 = ceilings.flops;
    p->card.bf16 = ceilings.bf16_flops;
    p->card.bandwidth = ceilings.memory_bandwidth;
    p->measured = true;
    return make_plan(p, job, &p->card); /* again, so that kinds and layers have their times */
}

size_t twi_planned_needs(const twi_planned *planned) {
    return planned->memory.peak_bytes + planned->memory.overhead_bytes;
}

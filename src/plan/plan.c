/* A plan as an object: goes with a trainer through what fit does before its first step, on data sets without samples,
 * in a context where memory is only counted. So there is no second account of what training takes. */
#include "plan.h"
#include "base/options.h"
#include "backend/planning.h"
#include "program/model.h"
#include "trainer/room.h"

#include <limits.h>
#include <string.h>

static tw_status check(const tw_model *model, const tw_plan_options *o) {
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_plan_create: build the model first (tw_model_build)");
    if (!model->context->planning)
        return TWI_FAIL(TW_ERROR_STATE,
                        "tw_plan_create: the model's context, on \"%s\", runs; plan in one that was opened on "
                        "\"plan:%s\"",
                        model->context->device_name, model->context->device_name);
    if (o->samples < 0 || o->samples >= INT32_MAX)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_plan_create: samples is %lld; give 0 .. %d", (long long)o->samples,
                        INT32_MAX - 1);
    if (o->test_samples < 0 || o->test_samples >= INT32_MAX)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_plan_create: test_samples is %lld; give 0 .. %d",
                        (long long)o->test_samples, INT32_MAX - 1);
    return TW_OK;
}

/* Samples of the input's shape. The addresses are those of nothing, and nobody looks at them: the data set's own kind
 * of input is copied by the back end, which only plans. */
static tw_dataset without_samples(const tw_plan *plan, int64_t count, bool floats) {
    static unsigned char nothing;
    static int32_t no_labels;
    const tw_value *input = tw_model_get_input(plan->model);
    tw_dataset set = {.context = plan->model->context,
                      .dtype = floats ? TW_F32 : TW_U8,
                      .count = count,
                      .channels = 1,
                      .height = 1,
                      .classes = plan->trainer->classes,
                      .images = &nothing,
                      .labels = &no_labels};
    const bool image = tw_value_get_rank(input) == 4;
    set.channels = image ? (int)input->shape.dim[1] : 1;
    set.height = image ? (int)input->shape.dim[2] : 1;
    set.width = image ? (int)input->shape.dim[3] : (int)twi_shape_count_from(&input->shape, 1);
    return set;
}

/* fit would measure what is not given; only that there are so many channels matters here. */
static void assume_normalization(tw_trainer *trainer, int channels) {
    tw_normalization *n = &trainer->normalization;
    if (trainer->options.no_normalization || n->channels || channels > TW_MAX_CHANNELS) return;
    n->channels = channels;
    for (int c = 0; c < channels; c++) n->deviation[c] = 1;
}

static tw_status open_feeds(tw_plan *plan, const tw_plan_options *o) {
    tw_trainer *trainer = plan->trainer;
    const int64_t batch = trainer->options.batch;
    if (!o->samples && !trainer->options.workers) trainer->options.workers = 1; /* streamed: no set is counted */
    plan->samples = o->samples;
    plan->train_set = without_samples(plan, o->samples ? o->samples : batch, o->floats);
    plan->test_set = without_samples(plan, o->test_samples, o->floats);
    assume_normalization(trainer, plan->train_set.channels);
    trainer->options.optimizer.schedule.total = INT64_MAX;
    /* With what fit would do to keep a limit. */
    const twi_room room = {&plan->train, &plan->test, &plan->train_set, o->test_samples ? &plan->test_set : NULL};
    return twi_room_open(trainer, &room);
}

/* Counted from the model alone, whatever was planned for it before. */
static tw_status fill(tw_plan *plan, const tw_plan_options *o) {
    TWI_TRY(twi_model_forget_programs(plan->model));
    twi_planning_forget_peak(plan->model->context);
    TWI_TRY(tw_trainer_create(&plan->trainer, plan->model, o->trainer));
    TWI_TRY(open_feeds(plan, o));
    plan->program = plan->train.full ? plan->train.full : plan->train.short_last;
    twi_plan_account(plan);
    return twi_plan_list(plan);
}

static tw_status choose_card(tw_plan *plan, const tw_plan_options *o) {
    plan->card = (tw_card)TW_CARD_INIT;
    if (o->card) return twi_options_read(&plan->card, sizeof plan->card, o->card, "tw_plan_create: card");
    return tw_card_of_context(&plan->card, plan->model->context);
}

tw_status tw_plan_create(tw_plan **out, tw_model *model, const tw_plan_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_plan_create: out is NULL");
    *out = NULL;
    if (!model) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_plan_create: model is NULL");
    tw_plan_options o;
    TWI_TRY(twi_options_read(&o, sizeof o, options, "tw_plan_create"));
    TWI_TRY(check(model, &o));
    twi_memory *memory = model->context->memory;
    tw_plan *plan;
    TWI_TRY(twi_get(memory, &plan, 1, sizeof *plan, "plan"));
    plan->model = model;
    plan->memory = memory;
    tw_status status = choose_card(plan, &o);
    if (status == TW_OK) status = fill(plan, &o);
    if (status) {
        tw_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return TW_OK;
}

void tw_plan_destroy(tw_plan *plan) {
    if (!plan) return;
    const twi_room room = {&plan->train, &plan->test, &plan->train_set, NULL};
    if (plan->trainer) twi_room_leave(plan->trainer, &room, NULL);
    tw_trainer_destroy(plan->trainer);
    twi_put(plan->memory, plan->step);
    twi_put(plan->memory, plan->kind);
    twi_put(plan->memory, plan->layer);
    twi_put(plan->memory, plan);
}

tw_status tw_plan_get_memory(const tw_plan *plan, tw_plan_memory *out) {
    if (!plan || !out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_plan_get_memory: %s is NULL", plan ? "out" : "plan");
    return twi_options_write(out, &plan->held, sizeof plan->held, "tw_plan_get_memory");
}

tw_program *tw_plan_get_program(const tw_plan *plan) { return plan ? plan->program : NULL; }

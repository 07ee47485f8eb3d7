/* What a trainer is made of: whether its options and its model will do. Everything that can be known before there is
 * data is looked at here; feed.c looks at the data. */
#include "trainer.h"
#include "base/options.h"
#include "data/sampler.h"
#include "program/program.h"
#include "program/update.h"

#include <string.h>

static tw_status refuse(const char *field, double value, const char *range) {
    return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: %s is %g; give %s", field, value, range);
}

static tw_status refuse_count(const char *field, int64_t value, const char *range) {
    return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: %s is %lld; give %s", field, (long long)value, range);
}

/* ---- options ---- */

/* Warmups are added up at fit: a sum of such cannot overflow. */
static const int64_t most_warmup = 1000000000000000;

static tw_status check_optimizer(const tw_trainer_options *o) {
    tw_optimizer_options optimizer = o->optimizer;
    TWI_TRY(twi_options_check_within(o->optimizer.size, sizeof o->optimizer, "optimizer"));
    if (!optimizer.schedule.total) optimizer.schedule.total = INT64_MAX; /* fit knows how many updates there will be */
    TWI_TRY(twi_optimizer_check(&optimizer));
    if (optimizer.schedule.warmup > most_warmup)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "schedule.warmup is %lld updates; give at most %lld",
                        (long long)optimizer.schedule.warmup, (long long)most_warmup);
    return TW_OK;
}

static tw_status check_guard(const tw_trainer_options *o) {
    tw_loss_scaling filled;
    if (o->on_non_finite == TW_NON_FINITE_IGNORE)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "on_non_finite: TW_NON_FINITE_IGNORE is for programs, since a trainer always looks; give it "
                        "TW_NON_FINITE_STOP, TW_NON_FINITE_SKIP or TW_NON_FINITE_ROLL_BACK");
    if (o->on_non_finite < TW_NON_FINITE_STOP || o->on_non_finite > TW_NON_FINITE_ROLL_BACK)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "on_non_finite %d is none of TW_NON_FINITE_...", (int)o->on_non_finite);
    if (o->snapshot_every < 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "snapshot_every is %lld; give at least 1 update, or 0 for 100",
                        (long long)o->snapshot_every);
    return twi_loss_scaling_fill(&filled, &o->loss_scaling);
}

static tw_status check_options(const tw_trainer_options *o) {
    if ((unsigned)o->recompute > TW_RECOMPUTE_BLOCKS)
        return refuse_count("recompute", (int64_t)o->recompute, "one of TW_RECOMPUTE_...");
    if ((unsigned)o->on_out_of_memory > TW_OUT_OF_MEMORY_FIT)
        return refuse_count("on_out_of_memory", (int64_t)o->on_out_of_memory, "one of TW_OUT_OF_MEMORY_...");
    if (o->epochs < 0) return refuse_count("epochs", o->epochs, "at least 1, or 0 for 1");
    if (o->batch < 0) return refuse_count("batch", o->batch, "at least 1, or 0 for 64");
    if (o->evaluation_batch < 0)
        return refuse_count("evaluation_batch", o->evaluation_batch, "at least 1, or 0 for 256");
    if (o->accumulate < 0) return refuse_count("accumulate", o->accumulate, "at least 1 batch an update, or 0 for 1");
    if (o->evaluate_every < 0) return refuse_count("evaluate_every", o->evaluate_every, "at least 1 epoch, or 0 for 1");
    if (o->checkpoint_every < 0)
        return refuse_count("checkpoint_every", o->checkpoint_every, "at least 1 update, or 0 for every epoch");
    if (o->checkpoint_every && !o->checkpoint)
        return TWI_FAIL(
            TW_ERROR_ARGUMENT,
            "tw_trainer_create: checkpoint_every is %lld, but no `checkpoint` names a file: name one, or leave "
            "both out",
            (long long)o->checkpoint_every);
    if (!(o->warmup_epochs >= 0 && o->warmup_epochs < 1e6))
        return refuse("warmup_epochs", o->warmup_epochs, "0 .. 1000000");
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1))
        return refuse("label_smoothing", (double)o->label_smoothing, "0 .. 1");
    if (o->workers < 0 || o->workers > TWI_MAX_WORKERS)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: workers is %d; give 0 .. %d", o->workers,
                        TWI_MAX_WORKERS);
    tw_status status = check_optimizer(o);
    if (status == TW_OK) status = check_guard(o);
    if (status == TW_OK && !o->no_normalization) status = twi_normalization_check(&o->normalization);
    return status ? twi_fail_within(status, "tw_trainer_create") : TW_OK;
}

/* ---- the model ---- */

/* The trainer feeds the model's first input alone. *other becomes any other that the output is made from. */
static tw_status find_other_input(const tw_model *model, const tw_value **other) {
    const twi_graph *graph = &model->graph;
    const tw_value *first = tw_model_get_input(model);
    bool *needed; /* of each value */
    *other = NULL;
    TWI_TRY(twi_get(graph->memory, &needed, (size_t)graph->value_count, sizeof *needed, "values of the output"));
    twi_graph_mark_needed(graph, model->output, needed);
    for (int i = 0; i < graph->value_count && !*other; i++)
        if (needed[i] && graph->value[i]->kind == TWI_VALUE_INPUT && graph->value[i] != first) *other = graph->value[i];
    twi_put(graph->memory, needed);
    return TW_OK;
}

static tw_status check_model(const tw_model *model) {
    char shape[TWI_SHAPE_TEXT];
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_trainer_create: build the model first (tw_model_build)");
    TWI_TRY(twi_graph_status(&model->graph));
    const tw_value *input = tw_model_get_input(model), *output = model->output, *other;
    if (!input)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: the model has no input to feed; make one with tw_input");
    if (output->shape.rank != 2 || !output->batched)
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "tw_trainer_create: the model's output '%s' is %s; a classifier's output are logits [N, "
                        "classes]: end it with tw_dense",
                        output->name, twi_shape_text(&output->shape, shape));
    TWI_TRY(find_other_input(model, &other));
    if (other)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_trainer_create: the model's output '%s' needs the input '%s', but a trainer feeds the "
                        "model's first input alone ('%s'): train it with tw_program",
                        output->name, other->name, input->name);
    return TW_OK;
}

/* ---- both ---- */

static tw_status check_precision(const tw_model *model, const tw_trainer_options *o) {
    tw_precision any;
    tw_status status = twi_precision_check(model, o->precision, o->precision_rules, o->precision_rule_count, &any);
    return status ? twi_fail_within(status, "tw_trainer_create") : TW_OK;
}

/* An image input says what samples there can be; for any other the loader knows only when it sees the data. */
static tw_status check_samples(const tw_value *input, const tw_trainer_options *o) {
    const bool image = tw_value_get_rank(input) == 4;
    const int64_t channels = image ? tw_value_get_dim(input, 1) : 0, height = image ? tw_value_get_dim(input, 2) : 0,
                  width = image ? tw_value_get_dim(input, 3) : 0;
    if (o->crop_padding < 0) return refuse_count("crop_padding", o->crop_padding, "at least 0");
    if (image && (o->crop_padding > height || o->crop_padding > width))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_trainer_create: crop_padding is %d; give 0 .. %lld, the smaller side of a sample",
                        o->crop_padding, (long long)(height < width ? height : width));
    if (image && !o->no_normalization && o->normalization.channels && o->normalization.channels != channels)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_trainer_create: normalization is given for %d channels, the model's input '%s' has %lld",
                        o->normalization.channels, tw_value_get_name(input), (long long)channels);
    return TW_OK;
}

tw_status twi_trainer_check(const tw_model *model, const tw_trainer_options *options) {
    TWI_TRY(check_options(options));
    TWI_TRY(check_model(model));
    TWI_TRY(check_precision(model, options));
    return check_samples(tw_model_get_input(model), options);
}

void twi_trainer_warn(tw_trainer *trainer) {
    const tw_value *output = tw_model_get_output(trainer->model);
    if (trainer->warned || !output->producer || strcmp(output->producer->op->name, "softmax") != 0) return;
    trainer->warned = true;
    twi_log_line(&tw_model_get_context(trainer->model)->log, TW_LOG_WARNING,
                 "fit: the model's last op is softmax '%s', but the loss takes logits and does a softmax itself: over "
                 "probabilities it learns badly; leave it out",
                 output->name);
}

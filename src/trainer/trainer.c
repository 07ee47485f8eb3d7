/* The trainer as an object: its options, and what it adds to the model's graph. */
#include "trainer.h"
#include "base/options.h"
#include "program/model.h"
#include "program/update.h"

#include <math.h>
#include <stdio.h>

enum { DEFAULT_BATCH = 64, DEFAULT_EVALUATION_BATCH = 256 };

static tw_status refuse(const char *field, double value, const char *range) {
    return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: %s is %g; give %s", field, value, range);
}

static tw_status refuse_count(const char *field, int value, const char *range) {
    return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: %s is %d; give %s", field, value, range);
}

static tw_status check_options(const tw_trainer_options *o) {
    if (o->epochs < 0) return refuse_count("epochs", o->epochs, "at least 1, or 0 for 1");
    if (o->batch < 0) return refuse_count("batch", o->batch, "at least 1, or 0 for 64");
    if (o->evaluation_batch < 0)
        return refuse_count("evaluation_batch", o->evaluation_batch, "at least 1, or 0 for 256");
    if (o->evaluate_every < 0) return refuse_count("evaluate_every", o->evaluate_every, "at least 1 epoch, or 0 for 1");
    if (!(o->warmup_epochs >= 0 && o->warmup_epochs < 1e6))
        return refuse("warmup_epochs", o->warmup_epochs, "0 .. 1000000");
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1))
        return refuse("label_smoothing", (double)o->label_smoothing, "0 .. 1");
    tw_optimizer_options optimizer = o->optimizer;
    if (!optimizer.schedule.total) optimizer.schedule.total = INT64_MAX; /* fit knows how many updates there will be */
    tw_status status = twi_optimizer_check(&optimizer);
    return status ? twi_fail_within(status, "tw_trainer_create") : TW_OK;
}

static void fill_defaults(tw_trainer_options *o, const tw_model *model) {
    if (!o->epochs) o->epochs = 1;
    if (!o->batch) o->batch = DEFAULT_BATCH;
    if (!o->evaluation_batch)
        o->evaluation_batch = o->batch > DEFAULT_EVALUATION_BATCH ? o->batch : DEFAULT_EVALUATION_BATCH;
    if (!o->evaluate_every) o->evaluate_every = 1;
    if (!o->seed) o->seed = tw_model_get_seed(model);
    o->optimizer.size = sizeof o->optimizer;
}

static tw_status check_model(tw_model *model) {
    const tw_value *output = tw_model_get_output(model);
    char shape[TWI_SHAPE_TEXT];
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_trainer_create: build the model first (tw_model_build)");
    TWI_TRY(twi_graph_status(&model->graph));
    if (!tw_model_get_input(model))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: the model has no input to feed; make one with tw_input");
    if (output->shape.rank != 2 || !output->batched)
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "tw_trainer_create: the model's output '%s' is %s; a classifier's output are logits [N, "
                        "classes]: end it with tw_dense",
                        output->name, twi_shape_text(&output->shape, shape));
    return TW_OK;
}

/* ---- what is added to the graph: once for all trainers of a model, found again by name ---- */

#define SCOPE "trainer"

static tw_value *loss_of(tw_trainer *trainer, float smoothing) {
    char name[32] = "loss", full[sizeof SCOPE + sizeof name];
    if (smoothing > 0) snprintf(name, sizeof name, "loss_smoothed_%.9g", (double)smoothing);
    snprintf(full, sizeof full, SCOPE ".%s", name);
    tw_value *found = tw_model_find(trainer->model, full);
    tw_value *logits = tw_model_get_output(trainer->model);
    return found ? found
                 : tw_cross_entropy(trainer->model, logits, trainer->labels,
                                    TW_OPTIONS(cross_entropy, .name = name, .label_smoothing = smoothing));
}

static void add_measures(tw_trainer *trainer) {
    tw_model *model = trainer->model;
    tw_value *logits = tw_model_get_output(model);
    tw_scope_begin(model, SCOPE);
    trainer->labels = tw_model_find(model, SCOPE ".labels");
    if (!trainer->labels) trainer->labels = tw_input_labels(model, "labels");
    trainer->plain_loss = loss_of(trainer, 0);
    trainer->loss = loss_of(trainer, trainer->options.label_smoothing);
    trainer->rank = tw_model_find(model, SCOPE ".rank1");
    if (!trainer->rank) trainer->rank = tw_class_rank(model, logits, trainer->labels);
    trainer->argmax = tw_model_find(model, SCOPE ".argmax1");
    if (!trainer->argmax) trainer->argmax = tw_argmax(model, logits);
    tw_scope_end(model);
}

/* A failure must not stay in the model, which worked before and goes on working. */
static tw_status extend_graph(tw_trainer *trainer) {
    twi_graph *graph = &trainer->model->graph;
    const int values = graph->value_count, nodes = graph->node_count;
    add_measures(trainer);
    tw_status status = twi_graph_status(graph);
    if (status) twi_graph_cut(graph, values, nodes);
    return status;
}

/* ---- the object ---- */

tw_status tw_trainer_create(tw_trainer **out, tw_model *model, const tw_trainer_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: out is NULL");
    *out = NULL;
    if (!model) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: model is NULL");
    tw_trainer_options chosen;
    TWI_TRY(twi_options_read(&chosen, sizeof chosen, options, "tw_trainer_create"));
    TWI_TRY(check_options(&chosen));
    TWI_TRY(check_model(model));
    twi_memory *memory = tw_model_get_context(model)->memory;
    tw_trainer *trainer;
    TWI_TRY(twi_get(memory, &trainer, 1, sizeof *trainer, "trainer"));
    trainer->model = model;
    trainer->memory = memory;
    trainer->options = chosen;
    trainer->schedule = chosen.optimizer.schedule;
    fill_defaults(&trainer->options, model);
    if (!chosen.no_normalization) trainer->normalization = chosen.normalization;
    trainer->input = tw_model_get_input(model);
    trainer->classes = (int)tw_value_get_dim(tw_model_get_output(model), 1);
    atomic_init(&trainer->stop, false);
    tw_status status = extend_graph(trainer);
    if (status) {
        twi_put(memory, trainer);
        return status;
    }
    *out = trainer;
    return TW_OK;
}

void tw_trainer_destroy(tw_trainer *trainer) {
    if (!trainer) return;
    for (int i = 0; i < TWI_CACHED_PROGRAMS; i++) tw_program_destroy(trainer->cached[i].program);
    twi_put(trainer->memory, trainer->results);
    twi_put(trainer->memory, trainer->history);
    twi_put(trainer->memory, trainer);
}

void tw_trainer_stop(tw_trainer *trainer) {
    if (trainer) atomic_store(&trainer->stop, true);
}

tw_normalization tw_trainer_get_normalization(const tw_trainer *trainer) {
    return trainer ? trainer->normalization : (tw_normalization){0};
}

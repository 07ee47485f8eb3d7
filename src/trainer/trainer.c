/* The trainer as an object: its options, and what it adds to the model's graph. */
#include "trainer.h"
#include "backend/attrs.h"
#include "base/options.h"
#include "program/model.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_BATCH = 64, DEFAULT_EVALUATION_BATCH = 256, DEFAULT_SNAPSHOT = 100 };

static void fill_defaults(tw_trainer_options *o, const tw_model *model) {
    if (!o->epochs) o->epochs = 1;
    if (!o->batch) o->batch = DEFAULT_BATCH;
    if (!o->evaluation_batch)
        o->evaluation_batch = o->batch > DEFAULT_EVALUATION_BATCH ? o->batch : DEFAULT_EVALUATION_BATCH;
    if (!o->evaluate_every) o->evaluate_every = 1;
    if (!o->accumulate) o->accumulate = 1;
    if (!o->snapshot_every) o->snapshot_every = DEFAULT_SNAPSHOT;
    if (!o->seed) o->seed = tw_model_get_seed(model);
    o->optimizer.size = sizeof o->optimizer;
}

/* ---- what is added to the graph: once for all trainers of a model, found again by name ---- */

#define SCOPE "trainer"

enum { NAME_ROOM = 32 };

/* What has the name: NULL if there is none yet. Anything but what the trainer itself would make is refused. */
static tw_value *find_own(tw_trainer *trainer, const char *name, bool (*is_own)(const tw_trainer *, const tw_value *)) {
    char full[sizeof SCOPE + NAME_ROOM];
    snprintf(full, sizeof full, SCOPE ".%s", name);
    tw_value *value = tw_model_find(trainer->model, full);
    if (!value || is_own(trainer, value)) return value;
    return twi_graph_fail(&trainer->model->graph,
                          TWI_FAIL(TW_ERROR_ARGUMENT,
                                   "tw_trainer_create: '%s' is something else in this model, but the trainer's own "
                                   "values have such names: give it a name that does not begin with '" SCOPE ".'",
                                   full));
}

static bool is_made_by(const tw_trainer *trainer, const tw_value *value, const char *op) {
    const twi_node *node = value->producer;
    return value->kind == TWI_VALUE_RESULT && strcmp(node->op->name, op) == 0 && value->output == 0 &&
           node->input[0] == tw_model_get_output(trainer->model) &&
           (node->input_count < 2 || node->input[1] == trainer->labels);
}

static bool is_labels(const tw_trainer *trainer, const tw_value *value) {
    return value->kind == TWI_VALUE_INPUT && value->store == TWI_I32 && value->shape.rank == 1 && value->batched &&
           value != trainer->input;
}

static bool is_rank(const tw_trainer *trainer, const tw_value *value) {
    return is_made_by(trainer, value, "class_rank");
}

static bool is_argmax(const tw_trainer *trainer, const tw_value *value) { return is_made_by(trainer, value, "argmax"); }

static bool smooths(const tw_trainer *trainer, const tw_value *value, float smoothing) {
    if (!is_made_by(trainer, value, "cross_entropy")) return false;
    const twi_cross_entropy_attrs *attrs = value->producer->attrs;
    return attrs->label_smoothing == smoothing;
}

static bool is_plain_loss(const tw_trainer *trainer, const tw_value *value) { return smooths(trainer, value, 0); }

static bool is_smoothed_loss(const tw_trainer *trainer, const tw_value *value) {
    return smooths(trainer, value, trainer->options.label_smoothing);
}

static tw_value *loss_of(tw_trainer *trainer, float smoothing) {
    char name[NAME_ROOM] = "loss";
    if (smoothing > 0) snprintf(name, sizeof name, "loss_smoothed_%.9g", (double)smoothing);
    tw_value *own = find_own(trainer, name, smoothing > 0 ? is_smoothed_loss : is_plain_loss);
    tw_value *logits = tw_model_get_output(trainer->model);
    return own ? own
               : tw_cross_entropy(trainer->model, logits, trainer->labels,
                                  TW_OPTIONS(cross_entropy, .name = name, .label_smoothing = smoothing));
}

static void add_measures(tw_trainer *trainer) {
    tw_model *model = trainer->model;
    tw_value *logits = tw_model_get_output(model);
    tw_scope_begin(model, SCOPE);
    trainer->labels = find_own(trainer, "labels", is_labels);
    if (!trainer->labels) trainer->labels = tw_input_labels(model, "labels");
    trainer->plain_loss = loss_of(trainer, 0);
    trainer->loss = loss_of(trainer, trainer->options.label_smoothing);
    trainer->rank = find_own(trainer, "rank1", is_rank);
    if (!trainer->rank) trainer->rank = tw_class_rank(model, logits, trainer->labels);
    trainer->argmax = find_own(trainer, "argmax1", is_argmax);
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

/* The options' rules in one block, names behind them. */
static tw_status copy_rules(tw_trainer *trainer) {
    tw_trainer_options *o = &trainer->options;
    size_t bytes = (size_t)o->precision_rule_count * sizeof *trainer->rules;
    if (!o->precision_rule_count) return TW_OK;
    for (int i = 0; i < o->precision_rule_count; i++) bytes += strlen(o->precision_rules[i].layer) + 1;
    TWI_TRY(twi_get(trainer->memory, &trainer->rules, 1, bytes, "precision rules"));
    char *name = (char *)(trainer->rules + o->precision_rule_count);
    for (int i = 0; i < o->precision_rule_count; i++) {
        const size_t length = strlen(o->precision_rules[i].layer) + 1;
        memcpy(name, o->precision_rules[i].layer, length);
        trainer->rules[i] = (tw_precision_rule){name, o->precision_rules[i].precision};
        name += length;
    }
    o->precision_rules = trainer->rules;
    return TW_OK;
}

tw_status tw_trainer_create(tw_trainer **out, tw_model *model, const tw_trainer_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: out is NULL");
    *out = NULL;
    if (!model) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_create: model is NULL");
    tw_trainer_options chosen;
    TWI_TRY(twi_options_read(&chosen, sizeof chosen, options, "tw_trainer_create"));
    TWI_TRY(twi_trainer_check(model, &chosen));
    twi_memory *memory = tw_model_get_context(model)->memory;
    tw_trainer *trainer;
    TWI_TRY(twi_get(memory, &trainer, 1, sizeof *trainer, "trainer"));
    trainer->model = model;
    trainer->memory = memory;
    trainer->options = chosen;
    trainer->schedule = chosen.optimizer.schedule;
    fill_defaults(&trainer->options, model);
    if (!chosen.no_normalization)
        trainer->normalization =
            chosen.normalization.channels ? chosen.normalization : tw_model_get_normalization(model);
    trainer->input = tw_model_get_input(model);
    trainer->classes = (int)tw_value_get_dim(tw_model_get_output(model), 1);
    trainer->position.exact = true;
    trainer->parts = 1;
    trainer->limit = chosen.memory_limit;
    atomic_init(&trainer->stop, false);
    tw_status status = chosen.checkpoint ? twi_get_text(memory, &trainer->checkpoint, chosen.checkpoint) : TW_OK;
    if (status == TW_OK) status = copy_rules(trainer);
    if (status == TW_OK) status = extend_graph(trainer);
    if (status) {
        twi_put(memory, trainer->rules);
        twi_put(memory, trainer->checkpoint);
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
    twi_put(trainer->memory, trainer->checkpoint);
    twi_put(trainer->memory, trainer->rules);
    twi_put(trainer->memory, trainer);
}

void tw_trainer_stop(tw_trainer *trainer) {
    if (trainer) atomic_store(&trainer->stop, true);
}

tw_normalization tw_trainer_get_normalization(const tw_trainer *trainer) {
    return trainer ? trainer->normalization : (tw_normalization){0};
}

/* What an update does: bytes and FLOPs of its steps, by kind and by layer, and the time that a card's figures allow for
 * them.
 * The roofline: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009. */
#include "plan.h"
#include "base/options.h"
#include "program/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often an update runs the program, which is of a part where batches are run in parts. */
static int64_t runs_of(const tw_plan *plan) {
    return (int64_t)plan->trainer->options.accumulate * plan->trainer->parts;
}

static double times_of(const tw_plan *plan, const twi_planned_step *step) {
    return step->updates ? 1 : (double)runs_of(plan);
}

/* ---- steps ---- */

/* What its values are stored in says what it multiplies, and of f32 the step itself. */
static twi_rate rate_of(const twi_call *call) {
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand *operand = &call->operand[o];
        if (operand->store != TWI_REAL || !operand->shape.rank) continue;
        if (operand->dtype == TW_BF16) return TWI_RATE_BF16;
        if (operand->dtype == TW_F16) return TWI_RATE_F16;
    }
    return call->tf32 ? TWI_RATE_TF32 : TWI_RATE_F32;
}

static double rate_on(const tw_card *card, twi_rate rate) {
    const double rates[TWI_RATES] = {card->f32, card->tf32, card->bf16, card->f16};
    return rates[rate] > 0 ? rates[rate] : card->f32;
}

/* NaN where a figure that matters is unknown. */
static double seconds_on(const tw_card *card, const twi_planned_step *step, bool *waits_for_bytes) {
    const double rate = rate_on(card, step->rate);
    if (!(card->bandwidth > 0) || (step->flops > 0 && !(rate > 0))) return NAN;
    const double bytes = step->bytes / card->bandwidth, flops = step->flops > 0 ? step->flops / rate : 0;
    *waits_for_bytes = bytes >= flops;
    return bytes > flops ? bytes : flops;
}

/* ---- lists ---- */

/* Names that are too long are cut. */
static bool is_called(const twi_planned_work *work, const char *name, size_t length) {
    const size_t kept = length < sizeof work->name ? length : sizeof work->name - 1;
    return strlen(work->name) == kept && strncmp(work->name, name, kept) == 0;
}

/* The entry of a name, which is added if it is new; the list has room. */
static int entry(twi_planned_work *list, int *count, const char *name, size_t length) {
    for (int i = 0; i < *count; i++)
        if (is_called(&list[i], name, length)) return i;
    snprintf(list[*count].name, sizeof list->name, "%.*s", (int)length, name);
    list[*count].sum = (tw_plan_work)TW_PLAN_WORK_INIT;
    return (*count)++;
}

/* The layer that a node of that name is part of. */
static const char *layer_of(const tw_plan *plan, const char *label) {
    const twi_graph *graph = &plan->model->graph;
    const tw_value *made = twi_graph_find(graph, label);
    for (int i = 0; made && i < graph->node_count; i++)
        if (graph->node[i]->op->completes && graph->node[i]->input[0] == made) return graph->node[i]->name;
    return label;
}

static int add_layer(tw_plan *plan, const char *label) {
    const char *layer = layer_of(plan, label);
    return entry(plan->layer, &plan->layer_count, layer, strlen(layer));
}

static void add_step(tw_plan *plan, const twi_step *step) {
    twi_planned_step *planned = &plan->step[plan->step_count++];
    twi_call call;
    twi_program_call(plan->program, step, 0, &call);
    *planned = (twi_planned_step){
        .kind = entry(plan->kind, &plan->kind_count, step->kernel->name, strcspn(step->kernel->name, ".")),
        .layer = step->node ? add_layer(plan, step->label) : -1,
        .updates = step->segment >= plan->program->update_segment,
        .rate = rate_of(&call),
        .bytes = twi_program_step_bytes(plan->program, step),
        .flops = twi_program_step_flops(plan->program, step),
    };
}

static void add_to(tw_plan_work *sum, const twi_planned_step *step, double times, double seconds) {
    sum->steps++;
    sum->bytes += times * step->bytes;
    sum->flops += times * step->flops;
    sum->seconds += times * seconds;
}

static void add_memory(void *user, const char *label, twi_share share, size_t bytes) {
    tw_plan *plan = user;
    if (share != TWI_SHARE_ACTIVATION && share != TWI_SHARE_GRADIENT) return;
    const char *layer = layer_of(plan, label);
    for (int i = 0; i < plan->layer_count; i++)
        if (is_called(&plan->layer[i], layer, strlen(layer))) plan->layer[i].sum.memory_bytes += bytes;
}

/* All that is kept for a learned element, in bytes. */
static double bytes_an_element(const tw_plan *plan) {
    const twi_store *store = &plan->model->store;
    const tw_plan_memory *held = &plan->held;
    if (!store->learned_count) return 0;
    return (double)store->real_size +
           (double)(held->copy_bytes + held->gradient_bytes + held->optimizer_bytes) / (double)store->learned_count;
}

static void add_parameters(tw_plan *plan) {
    const twi_store *store = &plan->model->store;
    const double learned = bytes_an_element(plan), kept = 2 * (double)store->real_size; /* with its shadow */
    for (int p = 0; p < store->count; p++) {
        const twi_parameter *parameter = &store->parameter[p];
        const char *dot = strrchr(parameter->name, '.');
        const size_t length = dot ? (size_t)(dot - parameter->name) : strlen(parameter->name);
        const double elements = (double)twi_shape_count(&parameter->shape);
        for (int i = 0; i < plan->layer_count; i++)
            if (is_called(&plan->layer[i], parameter->name, length))
                plan->layer[i].sum.memory_bytes += (size_t)(elements * (parameter->learned ? learned : kept));
    }
}

static int by_bytes(const void *a, const void *b) {
    const twi_planned_work *x = a, *y = b;
    if (x->sum.bytes != y->sum.bytes) return x->sum.bytes < y->sum.bytes ? 1 : -1;
    return strcmp(x->name, y->name);
}

static int by_memory(const void *a, const void *b) {
    const twi_planned_work *x = a, *y = b;
    if (x->sum.memory_bytes != y->sum.memory_bytes) return x->sum.memory_bytes < y->sum.memory_bytes ? 1 : -1;
    return strcmp(x->name, y->name);
}

tw_status twi_plan_list(tw_plan *plan) {
    const tw_program *program = plan->program;
    const size_t room = (size_t)program->step_count;
    twi_account account;
    TWI_TRY(twi_get(plan->memory, &plan->step, room, sizeof *plan->step, "steps of a plan"));
    TWI_TRY(twi_get(plan->memory, &plan->kind, room, sizeof *plan->kind, "kinds of a plan"));
    TWI_TRY(twi_get(plan->memory, &plan->layer, room, sizeof *plan->layer, "layers of a plan"));
    for (int i = 0; i < program->step_count; i++) add_step(plan, &program->step[i]);
    for (int i = 0; i < plan->step_count; i++) {
        const twi_planned_step *step = &plan->step[i];
        bool bytes;
        const double seconds = seconds_on(&plan->card, step, &bytes), times = times_of(plan, step);
        add_to(&plan->kind[step->kind].sum, step, times, seconds);
        if (step->layer >= 0) add_to(&plan->layer[step->layer].sum, step, times, seconds);
    }
    twi_program_account(program, &account, add_memory, plan);
    add_parameters(plan);
    if (plan->kind_count) qsort(plan->kind, (size_t)plan->kind_count, sizeof *plan->kind, by_bytes);
    if (plan->layer_count) qsort(plan->layer, (size_t)plan->layer_count, sizeof *plan->layer, by_memory);
    for (int i = 0; i < plan->kind_count; i++) plan->kind[i].sum.name = plan->kind[i].name;
    for (int i = 0; i < plan->layer_count; i++) plan->layer[i].sum.name = plan->layer[i].name;
    return TW_OK;
}

/* ---- what is asked for ---- */

int tw_plan_count_kinds(const tw_plan *plan) { return plan ? plan->kind_count : 0; }
int tw_plan_count_layers(const tw_plan *plan) { return plan ? plan->layer_count : 0; }

static tw_status get(const twi_planned_work *list, int count, int index, tw_plan_work *out, const char *what) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: out is NULL", what);
    if (index < 0 || index >= count)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: index %d is outside 0 .. %d", what, index, count - 1);
    return twi_options_write(out, &list[index].sum, sizeof list[index].sum, what);
}

tw_status tw_plan_get_kind(const tw_plan *plan, int index, tw_plan_work *out) {
    return get(plan ? plan->kind : NULL, tw_plan_count_kinds(plan), index, out, "tw_plan_get_kind");
}

tw_status tw_plan_get_layer(const tw_plan *plan, int index, tw_plan_work *out) {
    return get(plan ? plan->layer : NULL, tw_plan_count_layers(plan), index, out, "tw_plan_get_layer");
}

/* A shorter last batch counts by its samples, which is what its bytes and FLOPs go by. */
static double epoch_seconds(const tw_plan *plan, double gradients, double update) {
    const tw_trainer_options *o = &plan->trainer->options;
    const int64_t full = plan->samples / o->batch, rest = o->drop_last ? 0 : plan->samples % o->batch;
    const int64_t batches = full + (rest != 0), updates = (batches + o->accumulate - 1) / o->accumulate;
    if (!plan->samples) return NAN;
    return gradients * ((double)full + (double)rest / (double)o->batch) + update * (double)updates;
}

tw_status tw_plan_get_time(const tw_plan *plan, const tw_card *card, tw_plan_time *out) {
    static const char what[] = "tw_plan_get_time";
    if (!plan || !out) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", what, plan ? "out" : "plan");
    tw_card chosen = plan->card;
    if (card) TWI_TRY(twi_options_read(&chosen, sizeof chosen, card, what));
    tw_plan_time time = {.batches = plan->trainer->options.accumulate,
                         .parts = plan->trainer->parts,
                         .precision = plan->program->precision};
    double part[2] = {0, 0}, waiting = 0; /* a batch's gradients, the update */
    for (int i = 0; i < plan->step_count; i++) {
        const twi_planned_step *step = &plan->step[i];
        bool bytes = false;
        const double seconds = seconds_on(&chosen, step, &bytes), times = times_of(plan, step);
        part[step->updates] += seconds;
        waiting += bytes ? times * seconds : 0;
        time.bytes += times * step->bytes;
        time.flops += times * step->flops;
    }
    const int64_t batch = tw_program_get_batch(plan->program);
    time.update_seconds = part[0] * (double)runs_of(plan) + part[1];
    time.byte_share = waiting / time.update_seconds;
    /* Where there is only a shorter batch, the program is of that one. */
    time.epoch_seconds = epoch_seconds(plan, part[0] * (double)plan->trainer->options.batch / (double)batch, part[1]);
    time.images_per_second = (double)(batch * runs_of(plan)) / time.update_seconds;
    return twi_options_write(out, &time, sizeof time, what);
}

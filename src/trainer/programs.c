/* The trainer's programs: one for each use and batch size, kept for the next who wants it. */
#include "trainer.h"
#include "program/resident.h"

#include <stddef.h>

typedef struct recipe {
    bool train, optimized;
    size_t loss, output; /* where the trainer has the value; loss NONE: without */
} recipe;

#define NONE SIZE_MAX

static const recipe recipes[] = {
    [TWI_USE_TRAIN] = {true, true, offsetof(tw_trainer, loss), offsetof(tw_trainer, rank)},
    [TWI_USE_EVALUATE] = {false, false, offsetof(tw_trainer, plain_loss), offsetof(tw_trainer, rank)},
    [TWI_USE_PREDICT] = {false, false, NONE, offsetof(tw_trainer, argmax)},
};

static tw_value *value_at(const tw_trainer *trainer, size_t offset) {
    return *(tw_value *const *)(const void *)((const char *)trainer + offset);
}

/* How training programs are to scale their losses; NULL: as their precision has it. */
static const tw_loss_scaling *scaling_of(const tw_trainer_options *options) {
    const tw_loss_scaling *s = &options->loss_scaling;
    const bool given = s->initial != 0 || s->growth != 0 || s->backoff != 0 || s->growth_interval || s->minimum != 0 ||
                       s->maximum != 0 || s->patience;
    return given ? s : NULL;
}

static tw_status make(tw_trainer *trainer, twi_use use, int64_t batch, const tw_source_options *source,
                      tw_program **out) {
    const recipe *r = &recipes[use];
    tw_value *output = value_at(trainer, r->output);
    tw_loss loss = {r->loss == NONE ? NULL : value_at(trainer, r->loss), 1};
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.train = r->train;
    options.losses = &loss;
    options.loss_count = loss.value != NULL;
    options.outputs = &output;
    options.output_count = 1;
    if (r->optimized) {
        options.optimizer = &trainer->options.optimizer;
        options.accumulate = twi_trainer_window(trainer) > 1;
        options.recompute = trainer->options.recompute;
        options.loss_scaling = scaling_of(&trainer->options);
        /* A trainer that rolls back wants to be told, as one that stops. */
        options.on_non_finite =
            trainer->options.on_non_finite == TW_NON_FINITE_SKIP ? TW_NON_FINITE_SKIP : TW_NON_FINITE_STOP;
    }
    const bool largest = use == TWI_USE_TRAIN && batch == trainer->largest;
    options.memory_limit = trainer->limit - (largest ? trainer->beside : 0);
    options.source = source;
    options.precision = trainer->options.precision;
    options.precision_rules = trainer->options.precision_rules;
    options.precision_rule_count = trainer->options.precision_rule_count;
    const twi_surroundings around = {
        .streamed = !source, .rehearsed = trainer->rehearses, .aside = trainer->aside, .placed = trainer->placed};
    return twi_program_create(out, trainer->model, batch, &options, &around);
}

/* Room to read the results of a batch into. */
static tw_status reserve_results(tw_trainer *trainer, int64_t batch) {
    if ((size_t)batch <= trainer->result_capacity || twi_trainer_only_plans(trainer)) return TW_OK;
    TWI_TRY(
        twi_grow(trainer->memory, &trainer->results, (size_t)batch, sizeof *trainer->results, "results of a batch"));
    trainer->result_capacity = (size_t)batch;
    return TW_OK;
}

static void destroy(twi_cached *cached) {
    tw_program_destroy(cached->program);
    *cached = (twi_cached){0};
}

static twi_cached *find(tw_trainer *trainer, twi_use use, int64_t batch, const tw_source_options *source) {
    for (int i = 0; i < TWI_CACHED_PROGRAMS; i++) {
        twi_cached *cached = &trainer->cached[i];
        if (cached->program && cached->use == use && tw_program_get_batch(cached->program) == batch &&
            twi_program_gathers_as(cached->program, source))
            return cached;
    }
    return NULL;
}

/* A free place, or that of the program longest unwanted. */
static twi_cached *make_room(tw_trainer *trainer) {
    twi_cached *oldest = NULL;
    for (int i = 0; i < TWI_CACHED_PROGRAMS; i++) {
        twi_cached *cached = &trainer->cached[i];
        if (!cached->program) return cached;
        if (!cached->holders && (!oldest || cached->asked < oldest->asked)) oldest = cached;
    }
    if (oldest) destroy(oldest);
    return oldest;
}

tw_status twi_trainer_hold(tw_trainer *trainer, twi_use use, int64_t batch, const tw_source_options *source,
                           tw_program **out) {
    *out = NULL;
    TWI_TRY(reserve_results(trainer, batch));
    twi_cached *cached = find(trainer, use, batch, source);
    if (!cached) {
        cached = make_room(trainer);
        if (!cached)
            return TWI_FAIL(TW_ERROR_STATE, "trainer: all of its %d programs are at work", TWI_CACHED_PROGRAMS);
        TWI_TRY(make(trainer, use, batch, source, &cached->program));
        cached->use = use;
    }
    cached->holders++;
    cached->asked = ++trainer->asked;
    *out = cached->program;
    return TW_OK;
}

void twi_trainer_let_go(tw_trainer *trainer, const tw_program *program) {
    for (int i = 0; program && i < TWI_CACHED_PROGRAMS; i++)
        if (trainer->cached[i].program == program) trainer->cached[i].holders--;
}

void twi_trainer_forget(tw_trainer *trainer, twi_use use) {
    for (int i = 0; i < TWI_CACHED_PROGRAMS; i++) {
        twi_cached *cached = &trainer->cached[i];
        if (cached->program && cached->use == use && !cached->holders) destroy(cached);
    }
}

bool twi_trainer_spare(tw_trainer *trainer) {
    bool any = false;
    for (int i = 0; i < TWI_CACHED_PROGRAMS; i++) {
        twi_cached *cached = &trainer->cached[i];
        if (!cached->program || cached->holders) continue;
        destroy(cached);
        any = true;
    }
    if (any) twi_model_trim(trainer->model);
    return any;
}

/* Times the implementations that take a call, in turn, each on one thread as the runner would call it, and remembers
 * the fastest. Whatever keeps one of them from being tried only leaves it out. */
#include "trial.h"
#include "base/choices.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/text.h"
#include "onednn.h"

#include <stdio.h>
#include <string.h>

enum { CANDIDATES = 8, ROUNDS_LEAST = 3, ROUNDS_MOST = 8 };
#define ROUND_NANOSECONDS 200000       /* a round repeats its calls until they take that long */
#define CANDIDATE_NANOSECONDS 30000000 /* rounds end then */
#define HOPELESS 4.0                   /* times as slow as the best in the first call: not tried further */
#define GAIN 0.97 /* of the preferred one's time: what another one must at least be down to, or noise would choose */

typedef struct candidate {
    twi_cpu_site site;
    twi_cpu_workspace workspace;
    void *part[TWI_MAX_OPERANDS]; /* sums in a layout of its own */
    int64_t best;                 /* nanoseconds of a call */
    int64_t spent;
    bool out; /* not tried further */
} candidate;

typedef struct trial {
    tw_context *context;
    const twi_call *main, *tail;
    twi_call call;
    twi_control control;
    void *operand[TWI_MAX_OPERANDS];
    candidate candidate[CANDIDATES];
    int count;
} trial;

/* ---- memory ---- */

static tw_status borrow(const trial *t, void *out, size_t bytes) {
    *(void **)out = NULL;
    return bytes ? t->context->backend->get(t->context, out, bytes, "trial of implementations") : TW_OK;
}

static void give_back(const trial *t, void *memory) { t->context->backend->put(t->context, memory); }

static size_t element_bytes(const twi_operand *o) {
    if (o->store == TWI_U8) return 1;
    return o->store == TWI_REAL ? tw_dtype_size((tw_dtype)o->dtype) : 4;
}

static size_t operand_bytes(const twi_operand *o) {
    if (o->shape.rank == 0) return 0; /* absent */
    const int64_t block = o->lanes ? o->lanes : 1, samples = (o->shape.dim[0] + block - 1) / block * block;
    if (o->store == TWI_BITS) return (size_t)(samples * twi_bits_bytes(twi_sample_count(o)));
    if (o->lanes) return (size_t)(samples * twi_sample_count(o)) * element_bytes(o);
    int64_t last = 0;
    for (int axis = 0; axis < o->shape.rank; axis++) last += (o->shape.dim[axis] - 1) * o->stride[axis];
    return (size_t)(last + 1) * element_bytes(o);
}

/* Small numbers of both signs, for what looks at signs; labels, bits and the like stay 0. */
static void fill(void *data, const twi_operand *o, size_t bytes) {
    if (element_bytes(o) != sizeof(float) || o->store == TWI_I32 || o->store == TWI_BITS) return;
    float *value = data;
    for (size_t i = 0; i < bytes / sizeof *value; i++) value[i] = (float)(i * 37 % 101) / 101 - 0.5f;
}

static tw_status borrow_operands(trial *t) {
    for (int o = 0; o < t->call.operand_count; o++) {
        const size_t bytes = operand_bytes(&t->call.operand[o]);
        TWI_TRY(borrow(t, &t->operand[o], bytes));
        t->call.operand[o].data = t->operand[o];
        if (t->operand[o]) fill(t->operand[o], &t->call.operand[o], bytes);
    }
    return TW_OK;
}

static tw_status borrow_workspace(const trial *t, candidate *c) {
    TWI_TRY(borrow(t, &c->workspace.shared, c->site.shared_bytes));
    TWI_TRY(borrow(t, &c->workspace.scratch, c->site.worker_bytes));
    for (int o = 0; o < t->call.operand_count; o++) TWI_TRY(borrow(t, &c->part[o], c->site.partial_bytes[o]));
    return TW_OK;
}

static void drop_candidate(const trial *t, candidate *c) {
    if (c->site.impl->release) c->site.impl->release(&c->site);
    give_back(t, c->workspace.shared);
    give_back(t, c->workspace.scratch);
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) give_back(t, c->part[o]);
}

/* ---- candidates ---- */

/* The next one, if it can be prepared and has its memory. */
static void admit(trial *t, const twi_cpu_site *site, const twi_cpu_impl *impl) {
    candidate *c = &t->candidate[t->count];
    *c = (candidate){.site = *site};
    c->site.impl = impl;
    tw_status status = impl->prepare ? impl->prepare(&c->site, t->main, t->tail) : TW_OK;
    if (status == TW_OK) {
        t->count++;
        status = borrow_workspace(t, c);
        if (status == TW_OK) return;
        t->count--;
        drop_candidate(t, c);
    }
    twi_log_line(&t->context->log, TW_LOG_DEBUG, "cpu: %s is not tried by %s: %s", site->kernel->name, impl->name,
                 tw_last_error());
    tw_clear_error();
}

static int count_candidates(const twi_cpu_site *site, const twi_call *main, const twi_cpu_impl *list[CANDIDATES]) {
    int count = 0;
    const twi_cpu_impl *impl = twi_cpu_find_impl(site->kernel->name, main, site->isa, NULL);
    for (; impl && count < CANDIDATES; impl = twi_cpu_find_impl_after(impl, site->kernel->name, main, site->isa, NULL))
        list[count++] = impl;
    return count;
}

/* ---- timing ---- */

static void call_once(const trial *t, candidate *c, bool first) {
    twi_call call = t->call;
    call.first = first;
    for (int o = 0; o < call.operand_count; o++)
        if (c->part[o]) call.operand[o].data = c->part[o];
    c->site.impl->run(&c->site, &call, &c->workspace);
}

/* The first call loads code and data, and tells how many make a round. */
static void warm_up(const trial *t, candidate *c) {
    if (c->site.impl->begin) c->site.impl->begin(&c->site, &t->call, &c->workspace);
    call_once(t, c, true);
    const int64_t began = twi_clock();
    call_once(t, c, false);
    c->best = twi_clock() - began;
    if (c->best < 1) c->best = 1;
}

static void time_round(const trial *t, candidate *c) {
    const int64_t calls = 1 + ROUND_NANOSECONDS / c->best, began = twi_clock();
    for (int64_t i = 0; i < calls; i++) call_once(t, c, i == 0);
    const int64_t took = twi_clock() - began;
    c->spent += took;
    if (took / calls < c->best) c->best = took / calls > 0 ? took / calls : 1;
    if (c->spent > CANDIDATE_NANOSECONDS) c->out = true;
}

/* In turn, so that whatever else the machine does meets all of them. */
static void time_all(void *argument, int worker, int workers) {
    trial *t = argument;
    (void)worker, (void)workers;
    const int threads = twi_onednn_enter();
    int64_t best = INT64_MAX;
    for (int i = 0; i < t->count; i++) {
        warm_up(t, &t->candidate[i]);
        if (t->candidate[i].best < best) best = t->candidate[i].best;
    }
    for (int i = 0; i < t->count; i++) t->candidate[i].out = (double)t->candidate[i].best > HOPELESS * (double)best;
    for (int round = 0; round < ROUNDS_MOST; round++)
        for (int i = 0; i < t->count; i++)
            if (round < ROUNDS_LEAST || !t->candidate[i].out) time_round(t, &t->candidate[i]);
    twi_onednn_leave(threads);
}

/* The first, which is preferred, unless another one is clearly faster. */
static const twi_cpu_impl *fastest(const trial *t) {
    const candidate *best = &t->candidate[0];
    for (int i = 1; i < t->count; i++)
        if ((double)t->candidate[i].best < GAIN * (double)best->best) best = &t->candidate[i];
    for (int i = 0; i < t->count; i++)
        twi_log_line(&t->context->log, TW_LOG_DEBUG, "cpu: %s by %s: %.1f us%s", t->call.kernel->name,
                     t->candidate[i].site.impl->name, 1e-3 * (double)t->candidate[i].best,
                     &t->candidate[i] == best ? ", taken" : "");
    return best->site.impl;
}

static tw_status try_all(trial *t, const twi_cpu_site *site, const twi_cpu_impl *const *list, int count) {
    TWI_TRY(borrow_operands(t));
    for (int i = 0; i < count; i++) admit(t, site, list[i]);
    if (t->count > 1) twi_pool_run_alone(t->context->pool, time_all, t);
    return TW_OK;
}

/* *out NULL: it could not be held. */
static tw_status hold(tw_context *context, const twi_cpu_site *site, const twi_call *main, const twi_call *tail,
                      const twi_cpu_impl *const *list, int count, const twi_cpu_impl **out) {
    trial *t;
    TWI_TRY(twi_get(context->memory, &t, 1, sizeof *t, "trial of implementations"));
    t->context = context;
    t->main = main;
    t->tail = tail;
    t->call = *main;
    t->call.control = &t->control;
    tw_status status = try_all(t, site, list, count);
    if (status == TW_OK && t->count > 1 && !t->control.fault.code) *out = fastest(t);
    for (int i = 0; i < t->count; i++) drop_candidate(t, &t->candidate[i]);
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) give_back(t, t->operand[o]);
    twi_put(context->memory, t);
    return status;
}

/* ---- what is remembered ---- */

/* All that the time of a call depends on, as a line of text. */
static tw_status describe(tw_context *context, const twi_call *main, const twi_cpu_impl *const *list, int count,
                          char **out) {
    twi_text text;
    twi_text_init(&text, context->memory);
    twi_text_add(&text, "%s", main->kernel->name);
    for (int i = 0; i < count; i++)
        if (list[i]->describe) {
            list[i]->describe(main, &text);
            break;
        }
    for (int o = 0; o < main->operand_count; o++) {
        const twi_operand *operand = &main->operand[o];
        twi_text_add(&text, " %d.%d.%d:", operand->store, operand->dtype, operand->lanes);
        for (int axis = 0; axis < operand->shape.rank; axis++)
            twi_text_add(&text, "%s%lld/%lld", axis ? "," : "", (long long)operand->shape.dim[axis],
                         (long long)operand->stride[axis]);
    }
    return twi_text_take(&text, out);
}

static const twi_cpu_impl *named(const twi_cpu_impl *const *list, int count, const char *name) {
    for (int i = 0; name && i < count; i++)
        if (strcmp(list[i]->name, name) == 0) return list[i];
    return NULL;
}

tw_status twi_cpu_tune(tw_context *context, twi_choices *choices, const twi_cpu_site *site, const twi_call *main,
                       const twi_call *tail, const twi_cpu_impl **out) {
    *out = NULL;
    const twi_cpu_impl *list[CANDIDATES];
    const int count = count_candidates(site, main, list);
    if (count < 2) return TW_OK;
    char *key;
    TWI_TRY(describe(context, main, list, count, &key));
    *out = named(list, count, twi_choices_find(choices, key));
    tw_status status = TW_OK;
    if (!*out && !context->plans_only) {
        if (hold(context, site, main, tail, list, count, out)) {
            twi_log_line(&context->log, TW_LOG_DEBUG, "cpu: %s is not tried: %s", site->kernel->name, tw_last_error());
            tw_clear_error();
        }
        if (*out) status = twi_choices_put(choices, key, (*out)->name);
    }
    twi_put(context->memory, key);
    return status;
}

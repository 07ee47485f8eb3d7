/* Plans a program within a limit of memory: smaller workspaces first, then forward steps that are done again. Each
 * change is logged with what it saves and costs. Batches in parts, which change what a run is, are the trainer's; what
 * a plan takes is counted in need.c. */
#include "account.h"
#include "recompute.h"
#include "base/text.h"

#include <stdio.h>

enum { KIB = 1024 };

/* What a workspace may take, from no limit to next to nothing. */
static const size_t workspace_limits[] = {TWI_NO_LIMIT, (size_t)65536 * KIB, (size_t)16384 * KIB, (size_t)4096 * KIB,
                                          (size_t)64 * KIB};
enum { WORKSPACE_LIMITS = sizeof workspace_limits / sizeof *workspace_limits };

/* Workspaces below this share of the limit are not worth making slower steps for. */
enum { WORKSPACE_SHARE = 8 };

typedef struct fitting {
    tw_program *program;
    size_t limit; /* TWI_NO_LIMIT: none */
    tw_recompute recompute;
    size_t floor;  /* bytes of the smallest plan that was seen */
    size_t before; /* of the one before the change under way */
    bool scheduled;
} fitting;

/* ---- plans ---- */

static bool fits(fitting *f) {
    const size_t bytes = twi_program_bytes(f->program) + f->program->aside;
    if (bytes < f->floor) f->floor = bytes;
    return bytes <= f->limit;
}

static void tell(fitting *f, const char *what) {
    char before[TWI_QUANTITY_TEXT], now[TWI_QUANTITY_TEXT];
    const size_t bytes = twi_program_bytes(f->program);
    twi_log_line(&twi_program_context(f->program)->log, TW_LOG_INFO, "plan of batch %lld: %s: %s instead of %s",
                 (long long)f->program->batch, what, twi_quantity((double)bytes, "B", now),
                 twi_quantity((double)f->before, "B", before));
    f->before = bytes;
}

/* Back to what fusion left: implementations are given back, chunks and groups are open again. */
static void forget_plan(tw_program *program) {
    tw_context *context = twi_program_context(program);
    for (int i = 0; i < program->step_count; i++) {
        context->backend->release(context, &program->step[i].choice);
        program->step[i].chunk = 0;
        program->step[i].groups = 0;
    }
    for (int i = 0; i < program->buffer_count; i++) {
        program->buffer[i].over = -1;
        program->buffer[i].lanes = 0;
        program->buffer[i].unturned = false;
    }
}

static tw_status plan_under(fitting *f, size_t workspace_limit) {
    tw_program *program = f->program;
    if (f->scheduled) forget_plan(program);
    program->workspace_limit = workspace_limit;
    TWI_TRY(f->scheduled ? twi_schedule_segments(program) : twi_pass_schedule(program));
    f->scheduled = true;
    TWI_TRY(twi_program_record(program, TW_PASS_SCHEDULE));
    if (program->fuse) twi_pass_lanes(program);
    TWI_TRY(twi_pass_choose(program));
    twi_schedule_groups(program);
    TWI_TRY(twi_program_record(program, TW_PASS_CHOOSE));
    return twi_pass_memory_plan(program);
}

/* ---- recomputation ---- */

enum { TRIALS = 8 };

/* Of the choices that the estimate makes under a limit between two, the one with the most memory that still fits. */
static tw_status search_fitting(fitting *f, const twi_outline *outline, size_t low, size_t high, bool *dropped,
                                bool *found) {
    for (int i = 0; i < TRIALS; i++) {
        bool possible;
        const size_t middle = low + (high - low) / 2;
        TWI_TRY(twi_recompute_choose(outline, middle, dropped, &possible));
        if (possible) TWI_TRY(twi_recompute_apply(outline, dropped));
        if (possible && fits(f)) {
            *found = true;
            low = middle;
        } else {
            high = middle;
        }
    }
    bool possible;
    TWI_TRY(twi_recompute_choose(outline, low, dropped, &possible));
    return twi_recompute_apply(outline, possible ? dropped : NULL);
}

/* The estimate only ranks: the smallest of some plans near its least. */
static tw_status search_least(fitting *f, const twi_outline *outline, size_t low, bool *dropped, size_t *best_limit) {
    size_t best = SIZE_MAX;
    for (int i = 0; i < TRIALS; i++) {
        bool possible;
        const size_t limit = low + low / 16 * (size_t)(i * i) / 4;
        TWI_TRY(twi_recompute_choose(outline, limit, dropped, &possible));
        if (!possible) continue;
        TWI_TRY(twi_recompute_apply(outline, dropped));
        (void)fits(f); /* notes the floor */
        if (twi_program_bytes(f->program) >= best) continue;
        best = twi_program_bytes(f->program);
        *best_limit = limit;
    }
    bool possible;
    TWI_TRY(twi_recompute_choose(outline, *best_limit, dropped, &possible));
    return twi_recompute_apply(outline, possible ? dropped : NULL);
}

static tw_status choose_dropped(fitting *f, twi_outline *outline, bool *dropped, bool *done) {
    size_t low, high, least = 0;
    TWI_TRY(twi_recompute_price(outline));
    TWI_TRY(twi_recompute_bounds(outline, &low, &high));
    const size_t plain = twi_program_bytes(f->program);
    TWI_TRY(search_least(f, outline, low, dropped, &least));
    *done = fits(f);
    if (*done && f->recompute == TW_RECOMPUTE_AUTO) TWI_TRY(search_fitting(f, outline, least, high, dropped, done));
    /* What saves nothing is not done; nor what does not save enough, since the next limit of workspaces begins with the
     * steps as they were. */
    if (!*done || twi_program_bytes(f->program) >= plain) return twi_recompute_apply(outline, NULL);
    return twi_recompute_finish(outline);
}

static tw_status recompute(fitting *f, bool *done) {
    twi_outline outline;
    bool *dropped = NULL;
    TWI_TRY(twi_outline_open(&outline, f->program));
    tw_status status = twi_get(outline.memory, &dropped, (size_t)outline.forward_count + 1, sizeof *dropped, "choice");
    if (status == TW_OK) status = choose_dropped(f, &outline, dropped, done);
    twi_put(outline.memory, dropped);
    twi_outline_close(&outline);
    TWI_TRY(status);
    const twi_recomputed *r = &f->program->recomputed;
    if (r->steps) {
        char what[96];
        snprintf(what, sizeof what, "%d forward steps are done again in the backward, %.1f %% more work", r->steps,
                 100 * r->work);
        tell(f, what);
    }
    return TW_OK;
}

/* ---- keeping the limit ---- */

tw_status twi_program_refuse(const tw_program *program, size_t limit, size_t floor, tw_recompute recompute) {
    const twi_store_need need = twi_program_store_need(program);
    const size_t fixed = need.parameters + need.gradients + need.state + program->aside;
    char data[TWI_QUANTITY_TEXT + sizeof ", resident data "] = "", most[TWI_QUANTITY_TEXT];
    if (program->aside)
        snprintf(data, sizeof data, ", resident data %s", twi_quantity((double)program->aside, "B", most));
    char limit_text[TWI_QUANTITY_TEXT], floor_text[TWI_QUANTITY_TEXT], parameters[TWI_QUANTITY_TEXT],
        gradients[TWI_QUANTITY_TEXT], state[TWI_QUANTITY_TEXT], rest[TWI_QUANTITY_TEXT];
    return TWI_FAIL(
        TW_ERROR_OUT_OF_MEMORY,
        "the memory limit of %s (%zu bytes) cannot be kept: the least that batch %lld%s was planned with is %s (%zu "
        "bytes): parameters %s, gradients %s, optimizer and snapshots %s%s, activations and workspaces %s; raise the "
        "limit, or use a "
        "smaller batch or model",
        twi_quantity((double)limit, "B", limit_text), limit, (long long)program->batch,
        recompute == TW_RECOMPUTE_OFF && program->train ? ", without recomputation," : "",
        twi_quantity((double)floor, "B", floor_text), floor, twi_quantity((double)need.parameters, "B", parameters),
        twi_quantity((double)need.gradients, "B", gradients), twi_quantity((double)need.state, "B", state), data,
        twi_quantity((double)(floor - fixed), "B", rest));
}

/* Would a plan under this limit be the one there is? */
static bool changes_nothing(const tw_program *program, size_t workspace_limit) {
    return twi_program_saves_workspace(program) && twi_program_workspace_bytes(program) <= workspace_limit;
}

static tw_status fit(fitting *f) {
    tw_program *program = f->program;
    for (int i = 0; i < WORKSPACE_LIMITS; i++) {
        const bool last = i + 1 == WORKSPACE_LIMITS;
        bool done = false;
        if (i && changes_nothing(program, workspace_limits[i]) && !last) continue;
        TWI_TRY(plan_under(f, workspace_limits[i]));
        if (!i) f->before = twi_program_bytes(program);
        done = fits(f);
        if (i && twi_program_bytes(program) < f->before) {
            char what[64], most[TWI_QUANTITY_TEXT];
            snprintf(what, sizeof what, "workspaces of at most %s",
                     twi_quantity((double)workspace_limits[i], "B", most));
            tell(f, what);
        }
        if (done && f->recompute != TW_RECOMPUTE_BLOCKS) return TW_OK;
        if (!done && !last && twi_program_workspace_bytes(program) > f->limit / WORKSPACE_SHARE) continue;
        if (f->recompute != TW_RECOMPUTE_OFF && program->train) TWI_TRY(recompute(f, &done));
        if (done) return TW_OK;
    }
    program->model->plans_refused++;
    if (f->floor < program->model->least_refused) program->model->least_refused = f->floor;
    return twi_program_refuse(program, f->limit, f->floor, f->recompute);
}

tw_status twi_program_plan(tw_program *program, const tw_program_options *options) {
    fitting f = {.program = program,
                 .limit = options->memory_limit ? options->memory_limit : TWI_NO_LIMIT,
                 .recompute = options->recompute,
                 .floor = SIZE_MAX};
    return fit(&f);
}

/* How fit keeps within memory: how many parts a batch is run in, and what is done when there is less than was thought.
 * What there is, is found in room_left.c. Workspaces and recomputation are the programs' own (src/program/budget.c); a
 * batch in parts is a window of smaller batches, whose gradients are summed. */
#include "room.h"
#include "base/text.h"
#include "program/recompute.h"

#include <stdio.h>

enum {
    BESIDE = 4,        /* steps below a limit that are tried, */
    BESIDE_SHARE = 32, /* each this share of it */
    FLOOR_TRIALS = 64,
    WHY_TEXT = 1024
};

static tw_context *context_of(const tw_trainer *trainer) { return tw_model_get_context(trainer->model); }

/* ---- what was refused ---- */

void twi_room_try(tw_trainer *trainer) { trainer->plans_refused = trainer->model->plans_refused; }

bool twi_room_stops(const tw_trainer *trainer) {
    return trainer->options.memory_limit && trainer->options.on_out_of_memory == TW_OUT_OF_MEMORY_STOP &&
           trainer->plans_refused == trainer->model->plans_refused;
}

/* ---- limits ---- */

/* Programs that were made without the limit, or for batches in other parts, go. */
static void clear(tw_trainer *trainer) {
    twi_trainer_forget(trainer, TWI_USE_TRAIN);
    twi_trainer_forget(trainer, TWI_USE_EVALUATE);
    twi_trainer_forget(trainer, TWI_USE_PREDICT);
    twi_model_trim(trainer->model);
}

static size_t limit_of(const tw_trainer *trainer) { return twi_room_limit(trainer, trainer->options.memory_limit); }

void twi_room_enter(tw_trainer *trainer) {
    if (trainer->fitting) return;
    trainer->no_reserve = true;
    trainer->limit = limit_of(trainer);
}

static void begin(tw_trainer *trainer) {
    const size_t limit = limit_of(trainer);
    twi_recovery_expect(trainer, true);
    if (trainer->parts != 1 || (limit && limit < twi_model_bytes(trainer->model))) clear(trainer);
    trainer->parts = 1;
    trainer->limit = limit;
}

/* Less than was tried, by a tenth at least: so the floor is reached, and named, if nothing else helps. */
static void lower(tw_trainer *trainer, size_t tried, const char *why) {
    char limit[TWI_QUANTITY_TEXT];
    size_t less = tried - tried / 10;
    if (trainer->limit && trainer->limit < less) less = trainer->limit;
    trainer->limit = twi_room_limit(trainer, less ? less : 1);
    twi_log_line(&context_of(trainer)->log, TW_LOG_WARNING,
                 "fit: there is less memory than was planned with; planned anew for %s (%s)",
                 twi_quantity((double)trainer->limit, "B", limit), why);
}

/* ---- feeds ---- */

static tw_status open_feeds(tw_trainer *trainer, const twi_room *room) {
    return twi_feed_open_fit(room->train, room->test, trainer, room->train_set, room->test_set);
}

static void close_feeds(tw_trainer *trainer, const twi_room *room) {
    twi_feed_close(room->test);
    twi_feed_close(room->train);
    clear(trainer);
}

/* Is there a program of a whole batch, or of a part that one is run in? */
static bool has_largest(const tw_trainer *trainer) {
    for (int i = 0; i < TWI_CACHED_PROGRAMS; i++) {
        const twi_cached *cached = &trainer->cached[i];
        if (cached->program && cached->use == TWI_USE_TRAIN &&
            tw_program_get_batch(cached->program) == trainer->largest)
            return true;
    }
    return false;
}

static const tw_program *largest_of(const twi_room *room) {
    return room->train->full ? room->train->full : room->train->short_last;
}

/* ---- rehearsals ---- */

/* Feeds are opened, but programs and sets are only planned, one beside the other, and nothing is told. */
static twi_log begin_rehearsal(tw_trainer *trainer) {
    twi_log *log = &context_of(trainer)->log;
    const twi_log kept = *log;
    trainer->rehearses = true;
    log->fn = NULL;
    return kept;
}

static void end_rehearsal(tw_trainer *trainer, const twi_room *room, const twi_log *log) {
    close_feeds(trainer, room);
    context_of(trainer)->log = *log;
    trainer->rehearses = false;
}

/* ---- programs beside each other ---- */

static void tell_beside(const tw_trainer *trainer, const char *why) {
    char limit[TWI_QUANTITY_TEXT];
    twi_log_line(&context_of(trainer)->log, TW_LOG_INFO,
                 "fit: not all programs fit beside that of a whole batch, which is planned anew for %s (%s)",
                 twi_quantity((double)(trainer->limit - trainer->beside), "B", limit), why);
}

/* How much is lacking then says nothing of the limit, unless it is the others that lack it. */
static tw_status open_with_less(tw_trainer *trainer, const twi_room *room, size_t beside) {
    char why[WHY_TEXT];
    size_t *refused = &trainer->model->least_refused;
    const size_t before = *refused;
    snprintf(why, sizeof why, "%s", tw_last_error());
    close_feeds(trainer, room);
    trainer->beside = beside;
    tell_beside(trainer, why);
    *refused = SIZE_MAX;
    tw_status status = open_feeds(trainer, room);
    *refused = has_largest(trainer) ? *refused < before ? *refused : before : before;
    return status;
}

/* Programs share an arena and workspaces, each as large as the largest: those of a shorter batch can want too much
 * beside those of a whole one, which had the limit to itself. Then the whole one is planned for a little less, before
 * parts are thought of. */
static tw_status open_beside(tw_trainer *trainer, const twi_room *room) {
    trainer->beside = 0;
    tw_status status = open_feeds(trainer, room);
    for (int less = 1; less <= BESIDE && status == TW_ERROR_OUT_OF_MEMORY && trainer->limit &&
                       !twi_room_stops(trainer) && has_largest(trainer);
         less++)
        status = open_with_less(trainer, room, trainer->limit / BESIDE_SHARE * (size_t)less);
    if (status) trainer->beside = 0;
    return status;
}

tw_status twi_room_rehearse(tw_trainer *trainer, const twi_room *room, twi_rehearsal *out) {
    const twi_log log = begin_rehearsal(trainer);
    size_t arena, scratch;
    tw_status status = open_beside(trainer, room);
    if (status == TW_OK) {
        const tw_program *program = largest_of(room);
        twi_model_shared_need(trainer->model, NULL, &arena, &scratch);
        *out =
            (twi_rehearsal){tw_program_get_stats(program), program->batch, twi_program_bytes(program), arena + scratch};
    }
    end_rehearsal(trainer, room, &log);
    return status;
}

/* ---- parts ---- */

/* Would parts learn something else than the batch? */
static bool has_statistics(const tw_trainer *trainer) { return twi_model_has_batch_statistics(trainer->model); }

typedef struct choice {
    int parts; /* 0: none fits */
    double cost;
    size_t bytes;
} choice;

/* Of a batch, in as many parts as there are; of all samples, where they are fewer. */
static double cost_of(const tw_trainer *trainer, const twi_rehearsal *r) {
    const int runs = r->batch == twi_trainer_run_batch(trainer) ? trainer->parts : 1;
    return runs * twi_cost_of(r->stats.flops, r->stats.bytes, r->stats.steps);
}

/* Plans the parts of a batch, and takes them if the batch costs less that way. */
static tw_status consider(tw_trainer *trainer, const twi_room *room, int parts, choice *best, bool *plain) {
    twi_rehearsal found;
    const int before = trainer->parts;
    trainer->parts = parts;
    tw_status status = twi_room_rehearse(trainer, room, &found);
    const double cost = status ? 0 : cost_of(trainer, &found);
    trainer->parts = before;
    if (status) return status;
    *plain = !found.stats.recomputed_steps;
    if (!best->parts || cost < best->cost) *best = (choice){parts, cost, found.bytes};
    return TW_OK;
}

/* Beside the plan that no limit would have asked for. */
static tw_status tell_parts(tw_trainer *trainer, const twi_room *room, const choice *chosen) {
    const size_t limit = trainer->limit;
    char now[TWI_QUANTITY_TEXT], plain[TWI_QUANTITY_TEXT];
    twi_rehearsal whole;
    trainer->limit = 0;
    trainer->parts = 1;
    tw_status status = twi_room_rehearse(trainer, room, &whole);
    const double cost = status ? 1 : cost_of(trainer, &whole);
    trainer->limit = limit;
    trainer->parts = chosen->parts;
    if (status) return status;
    twi_log_line(
        &context_of(trainer)->log, TW_LOG_INFO,
        "fit: batches of %d are run in %d parts of %d, whose gradients are summed, %.1f %% more work: %s instead "
        "of %s%s",
        trainer->options.batch, trainer->parts, (int)twi_trainer_run_batch(trainer), 100 * (chosen->cost / cost - 1),
        twi_quantity((double)chosen->bytes, "B", now), twi_quantity((double)whole.bytes, "B", plain),
        has_statistics(trainer) ? "; batch norm takes the statistics of each part, not of the batch: frozen "
                                  "(tw_model_set_statistics_frozen), it would learn the same"
                                : "");
    return TW_OK;
}

/* Parts are of one size. The first that fits without recomputing anything ends the search: more would only cost more.
 * With statistics over the batch, the fewest that fit: they are a last resort. short_of: why there must be more than
 * before. */
static tw_status choose_parts(tw_trainer *trainer, const twi_room *room, int fewest, tw_status short_of) {
    const int batch = trainer->options.batch;
    choice best = {0, 0, 0};
    bool plain = false;
    tw_status status = TW_OK;
    for (int parts = fewest; parts <= batch && !plain && !(best.parts && has_statistics(trainer)); parts++) {
        if (status && status != TW_ERROR_OUT_OF_MEMORY) return status;
        if (batch % parts == 0) status = consider(trainer, room, parts, &best, &plain);
    }
    if (!best.parts) return status ? status : twi_fail_within(short_of, "there are no more parts than samples");
    if (best.parts == trainer->parts) return TW_OK;
    trainer->parts = best.parts;
    return trainer->parts > 1 ? tell_parts(trainer, room, &best) : TW_OK;
}

/* Parts are thought of only where a batch does not fit as it is, or costs something to fit: planning takes time. */
static bool better_in_parts(const tw_trainer *trainer, const twi_room *room, tw_status status) {
    const tw_program *program = room->train->full;
    if (status == TW_ERROR_OUT_OF_MEMORY) return trainer->limit && !twi_room_stops(trainer);
    return status == TW_OK && trainer->options.recompute == TW_RECOMPUTE_AUTO && program && trainer->parts == 1 &&
           program->recomputed.steps && !has_statistics(trainer);
}

/* ---- the floor ---- */

/* A number of parts, and what is known to be the least that it needs. */
typedef struct way {
    int parts;
    size_t least;
} way;

static int list_ways(int batch, size_t least, way *out) {
    int count = 0;
    for (int parts = 1; parts <= batch; parts++) {
        if (batch % parts != 0) continue;
        if (out) out[count] = (way){parts, least};
        count++;
    }
    return count;
}

/* Is the least that is known of a way enough? If so, the thread's last error tells it; else more is known. */
static bool is_enough(tw_trainer *trainer, const twi_room *room, way *w, size_t refused) {
    trainer->limit = w->least;
    trainer->parts = w->parts;
    trainer->model->least_refused = SIZE_MAX;
    const twi_log log = begin_rehearsal(trainer);
    const bool enough = open_beside(trainer, room) == TW_OK;
    if (enough) (void)twi_program_refuse(largest_of(room), refused, w->least, trainer->options.recompute);
    end_rehearsal(trainer, room, &log);
    if (!enough) w->least = trainer->model->least_refused > w->least ? trainer->model->least_refused : SIZE_MAX;
    return enough;
}

/* Of all ways to run a batch the one that needs the least, found from below: what a rehearsal lacks is tried next. */
static bool find_floor(tw_trainer *trainer, const twi_room *room, way *ways, int count, size_t refused, size_t *floor) {
    for (int i = 0; i < FLOOR_TRIALS + count; i++) {
        way *least = &ways[0];
        for (int k = 1; k < count; k++)
            if (ways[k].least < least->least) least = &ways[k];
        if (least->least == SIZE_MAX) return false;
        *floor = least->least;
        if (is_enough(trainer, room, least, refused)) return true;
    }
    return false;
}

/* After a limit was refused: what each program needs for itself is less than what they need together. */
static tw_status name_floor(tw_trainer *trainer, const twi_room *room, tw_status status) {
    const size_t limit = trainer->limit;
    const int count = list_ways(trainer->options.batch, limit, NULL);
    char why[WHY_TEXT];
    way *ways;
    snprintf(why, sizeof why, "%s", tw_last_error());
    close_feeds(trainer, room);
    TWI_TRY(twi_get(trainer->memory, &ways, (size_t)count, sizeof *ways, "ways to run a batch"));
    list_ways(trainer->options.batch, limit, ways);
    size_t floor;
    /* Where a plan does keep the limit it was something else that failed: what a context's cap leaves for the records of
     * programs, which no plan counts. */
    if (!find_floor(trainer, room, ways, count, limit, &floor) || floor <= limit) status = TWI_FAIL(status, "%s", why);
    twi_put(trainer->memory, ways);
    trainer->limit = limit;
    trainer->parts = 1;
    return status;
}

/* ---- opening ---- */

/* Under the limit there is. *floor: there is no plan that keeps the limit. */
static tw_status open_under(tw_trainer *trainer, const twi_room *room, bool *floor) {
    *floor = false;
    for (bool looked = false;; looked = true) {
        tw_status status = open_beside(trainer, room);
        if (!better_in_parts(trainer, room, status) || (looked && !status)) return status;
        close_feeds(trainer, room);
        status = choose_parts(trainer, room, status ? trainer->parts + 1 : 1, status);
        *floor = status != TW_OK;
        TWI_TRY(status);
    }
}

/* Bytes that the plan of a batch wants. */
static tw_status planned_bytes(tw_trainer *trainer, const twi_room *room, size_t *out) {
    twi_rehearsal found;
    TWI_TRY(twi_room_rehearse(trainer, room, &found));
    *out = found.bytes;
    return TW_OK;
}

static tw_status open_until(tw_trainer *trainer, const twi_room *room, bool *floor) {
    for (;;) {
        char why[WHY_TEXT];
        size_t tried = trainer->limit;
        trainer->model->least_refused = SIZE_MAX;
        tw_status status = open_under(trainer, room, floor);
        *floor = *floor && trainer->model->least_refused != SIZE_MAX;
        const bool opened = status == TW_OK;
        if (opened) status = twi_room_check_saving(trainer);
        if (status != TW_ERROR_OUT_OF_MEMORY || *floor ||
            (!opened && trainer->options.on_out_of_memory != TW_OUT_OF_MEMORY_FIT))
            return status;
        snprintf(why, sizeof why, "%s", tw_last_error());
        close_feeds(trainer, room);
        if (!tried) TWI_TRY(planned_bytes(trainer, room, &tried));
        lower(trainer, tried, why);
    }
}

static tw_status open_or_name(tw_trainer *trainer, const twi_room *room) {
    bool floor;
    tw_status status = open_until(trainer, room, &floor);
    return status == TW_ERROR_OUT_OF_MEMORY && floor ? name_floor(trainer, room, status) : status;
}

tw_status twi_room_open(tw_trainer *trainer, const twi_room *room) {
    bool floor;
    trainer->no_reserve = false;
    begin(trainer);
    const size_t limit = trainer->limit;
    tw_status status = open_until(trainer, room, &floor);
    if (status != TW_ERROR_OUT_OF_MEMORY || !limit || twi_room_stops(trainer)) return status;
    close_feeds(trainer, room);
    trainer->no_reserve = true;
    if (limit_of(trainer) <= limit) return floor ? name_floor(trainer, room, status) : status;
    begin(trainer);
    return open_or_name(trainer, room);
}

tw_status twi_room_reopen(tw_trainer *trainer, const twi_room *room) {
    const size_t tried = twi_model_bytes(trainer->model) + trainer->placed;
    char why[WHY_TEXT];
    snprintf(why, sizeof why, "%s", tw_last_error());
    close_feeds(trainer, room);
    lower(trainer, tried, why);
    return open_or_name(trainer, room);
}

void twi_room_leave(tw_trainer *trainer, const twi_room *room, const twi_store_mark *held) {
    twi_feed_close(room->test);
    twi_feed_close(room->train);
    twi_recovery_expect(trainer, false);
    if (!held) return;
    clear(trainer);
    twi_store_return(&trainer->model->store, held);
}

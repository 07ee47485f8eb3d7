/* The end of a training program: gradients, or their sums over a window (sums.c), are looked at; then the update:
 * learning rate, one optimizer step over the flat parameter array, and the commit of the counters. */
#include "program.h"
#include "update.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

/* What a number may be; not-a-number never is. */
typedef struct limit {
    const char *field;
    double value, least, most;
    const char *range;
} limit;

static double peak_rate(const tw_optimizer_options *o) {
    const double presets[] = {[TW_SGD] = 0.01, [TW_ADAMW] = 0.001};
    return o->learning_rate > 0 ? o->learning_rate : presets[o->kind];
}

static tw_status check_numbers(const tw_optimizer_options *o) {
    static const char *const finite = "a finite float, 0 or more", *const share = "0 or more and below 1";
    const double below_1 = nextafterf(1, 0), peak = peak_rate(o);
    char to_peak[64];
    snprintf(to_peak, sizeof to_peak, "a number from 0 to the learning rate, %g", peak);
    const limit limits[] = {
        {"learning_rate", o->learning_rate, 0, FLT_MAX, finite},
        {"momentum", o->momentum, 0, below_1, share},
        {"beta1", o->beta1, 0, below_1, share},
        {"beta2", o->beta2, 0, below_1, share},
        {"epsilon", o->epsilon, 0, 1, "a number from 0 to 1"},
        {"weight_decay", o->weight_decay, 0, FLT_MAX, finite},
        {"clip_norm", o->clip_norm, 0, FLT_MAX, finite},
        {"schedule.minimum", o->schedule.minimum, 0, peak, to_peak},
        {"schedule.factor", o->schedule.factor, 0, 1, "a number from 0 to 1"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (!(limits[i].value >= limits[i].least && limits[i].value <= limits[i].most))
            return TWI_FAIL(TW_ERROR_ARGUMENT, "optimizer: %s is %g; it must be %s", limits[i].field, limits[i].value,
                            limits[i].range);
    return TW_OK;
}

/* What was set for another kind than the one that was chosen: 0 is what everything is that was left out. */
static tw_status check_used(const tw_optimizer_options *o) {
    static const char *const kinds[] = {[TW_SGD] = "TW_SGD", [TW_ADAMW] = "TW_ADAMW"};
    static const char *const schedules[] = {[TW_SCHEDULE_CONSTANT] = "TW_SCHEDULE_CONSTANT",
                                            [TW_SCHEDULE_STEP] = "TW_SCHEDULE_STEP",
                                            [TW_SCHEDULE_COSINE] = "TW_SCHEDULE_COSINE"};
    const char *const kind = kinds[o->kind], *const schedule = schedules[o->schedule.kind];
    const struct {
        const char *field;
        bool set;
        const char *of, *chosen;
    } fields[] = {
        {"momentum", o->momentum != 0, kinds[TW_SGD], kind},
        {"nesterov", o->nesterov, kinds[TW_SGD], kind},
        {"beta1", o->beta1 != 0, kinds[TW_ADAMW], kind},
        {"beta2", o->beta2 != 0, kinds[TW_ADAMW], kind},
        {"epsilon", o->epsilon != 0, kinds[TW_ADAMW], kind},
        {"schedule.every", o->schedule.every != 0, schedules[TW_SCHEDULE_STEP], schedule},
        {"schedule.factor", o->schedule.factor != 0, schedules[TW_SCHEDULE_STEP], schedule},
        {"schedule.minimum", o->schedule.minimum != 0, schedules[TW_SCHEDULE_COSINE], schedule},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].set && fields[i].of != fields[i].chosen)
            return TWI_FAIL(TW_ERROR_ARGUMENT,
                            "optimizer: %s is for %s, but %skind is %s: leave it out, or choose that", fields[i].field,
                            fields[i].of, fields[i].chosen == kind ? "" : "schedule.", fields[i].chosen);
    return TW_OK;
}

tw_status twi_optimizer_check(const tw_optimizer_options *o) {
    if (o->kind != TW_SGD && o->kind != TW_ADAMW)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "optimizer: kind %d is neither TW_SGD nor TW_ADAMW", (int)o->kind);
    TWI_TRY(check_numbers(o));
    const tw_schedule *s = &o->schedule;
    if (s->kind < TW_SCHEDULE_CONSTANT || s->kind > TW_SCHEDULE_COSINE)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "optimizer: schedule kind %d is none of TW_SCHEDULE_...", (int)s->kind);
    if (s->warmup < 0 || s->total < 0 || s->every < 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "optimizer: schedule warmup, total and every must not be negative");
    TWI_TRY(check_used(o));
    if (o->nesterov && o->momentum <= 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "optimizer: nesterov needs momentum above 0");
    if (s->kind == TW_SCHEDULE_COSINE && s->total == 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "optimizer: a cosine schedule needs `total`, the number of updates in all");
    if (s->kind == TW_SCHEDULE_COSINE && s->total < s->warmup)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "optimizer: warmup %lld is longer than the schedule's total %lld",
                        (long long)s->warmup, (long long)s->total);
    if (s->kind == TW_SCHEDULE_STEP && s->every == 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "optimizer: a step schedule needs `every`, the updates between drops");
    return TW_OK;
}

void twi_schedule_fill(twi_schedule_attrs *attrs, const tw_optimizer_options *o) {
    attrs->kind = o->schedule.kind;
    attrs->base = peak_rate(o);
    attrs->minimum = o->schedule.minimum;
    attrs->warmup = o->schedule.warmup;
    attrs->total = o->schedule.total;
    attrs->every = o->schedule.every;
    attrs->factor = o->schedule.factor > 0 ? o->schedule.factor : 0.1;
}

/* Elements of a row of a gradient that is measured where it is made; 0: it is not. */
static int64_t measured_row(const tw_program *program, int value) {
    const twi_buffer *gradient = &program->buffer[program->gradient_buffer[value]];
    return gradient->measured ? twi_shape_count_from(&gradient->shape, 1) : 0;
}

/* Does every parameter have a segment of its own in that list? Where workers have caches, since an update goes by shares
 * of segments (twi_update_share); and where the guard looks under clipping, so that the norm is summed over the same
 * blocks wherever gradients are kept. */
static bool are_apart(const tw_program *program, const twi_flat_list *list) {
    return list->attrs == program->guarded ? program->guard.clip > 0 : twi_program_context(program)->backend->chunked;
}

/* The parameters that get a gradient; neighbours in the flat array that are updated alike may become one segment. */
static void fill_segments(const tw_program *program, const twi_flat_list *list) {
    const twi_store *store = &program->model->store;
    twi_update_attrs *attrs = list->attrs;
    twi_update_segment *segments = (twi_update_segment *)attrs->segment;
    const bool apart = are_apart(program, list);
    attrs->segment_count = 0;
    for (int v = 0; v < program->model->graph.value_count; v++) {
        const tw_value *value = program->model->graph.value[v];
        if (value->kind != TWI_VALUE_PARAMETER || program->gradient_buffer[v] < 0) continue;
        const twi_parameter *parameter = &store->parameter[value->parameter];
        if (!parameter->trainable) continue;
        float decay = parameter->decayed || list->decay_all ? list->weight_decay : 0;
        bool half = program->buffer[program->gradient_buffer[v]].source == TWI_SOURCE_HALF_GRADIENT;
        const int64_t row = attrs == program->guarded ? measured_row(program, v) : 0;
        int64_t end = parameter->offset + twi_shape_count(&parameter->shape);
        twi_update_segment *last = attrs->segment_count ? &segments[attrs->segment_count - 1] : NULL;
        if (last && !apart && last->end == parameter->offset && last->weight_decay == decay && last->half == half &&
            !last->row && !row)
            last->end = end;
        else
            segments[attrs->segment_count++] = (twi_update_segment){parameter->offset, end, decay, half, row};
    }
}

static tw_status make_segments(tw_program *program, const tw_optimizer_options *o, twi_update_attrs *attrs) {
    twi_update_segment *segments;
    twi_flat_list *list;
    const size_t most = (size_t)program->model->store.count + 1;
    TWI_TRY(twi_program_block(program, &segments, most * sizeof *segments, "update segments"));
    TWI_TRY(twi_program_block(program, &list, sizeof *list, "update segments"));
    *list = (twi_flat_list){.next = program->flat_lists, .attrs = attrs};
    if (o) {
        list->weight_decay = o->weight_decay;
        list->decay_all = o->decay_all;
    }
    attrs->segment = segments;
    program->flat_lists = list;
    fill_segments(program, list);
    return TW_OK;
}

static twi_shape shape_of_blocks(const tw_program *program) {
    return (twi_shape){1, {program->guard.blocks ? program->guard.blocks : 1}};
}

tw_status twi_lower_segments_again(tw_program *program) {
    for (const twi_flat_list *list = program->flat_lists; list; list = list->next) fill_segments(program, list);
    if (!program->guarded) return TW_OK;
    program->guard.blocks = twi_update_blocks(program->guarded);
    const twi_shape shape = shape_of_blocks(program);
    return twi_program_set_shape(program, program->guard_blocks, &shape);
}

static tw_status flat_buffer(tw_program *program, const char *name, void *const *field, int *index) {
    const twi_buffer buffer = {.name = name,
                               .store = TWI_ACC,
                               .source = TWI_SOURCE_FLAT,
                               .flat = field,
                               .parameter = -1,
                               .shape = {1, {program->model->store.learned_count}}};
    return twi_program_add_buffer(program, &buffer, index);
}

/* What the update takes: the gradients of a run, or their sums. */
static tw_status taken_gradients(tw_program *program, int *index) {
    twi_store *store = &program->model->store;
    return program->accumulate ? flat_buffer(program, "summed gradients", &store->gradient_sums, index)
                               : flat_buffer(program, "gradients", &store->gradients, index);
}

tw_status twi_lower_gradients(tw_program *program) {
    const twi_kernel *measure, *decide;
    twi_update_attrs *attrs;
    int operands[TWI_MAX_OPERANDS] = {0, 0, TWI_NO_REF}; /* halves: the precision pass */
    TWI_TRY(twi_program_kernel(program, "guard.measure", &measure));
    TWI_TRY(twi_program_kernel(program, "guard.decide", &decide));
    if (program->unguarded) { /* decided without a look */
        operands[0] = TWI_NO_REF;
        return twi_program_add_step(program, decide, &program->guard, NULL, "gradients", TWI_PART_COMMIT, operands);
    }
    TWI_TRY(twi_program_block(program, &attrs, sizeof *attrs, "guard of gradients"));
    program->guarded = attrs;
    TWI_TRY(make_segments(program, NULL, attrs));
    program->guard.blocks = twi_update_blocks(attrs);
    TWI_TRY(taken_gradients(program, &operands[0]));
    const twi_buffer blocks = {
        .name = "blocks of gradients", .store = TWI_ACC, .parameter = -1, .shape = shape_of_blocks(program)};
    TWI_TRY(twi_program_add_buffer(program, &blocks, &operands[1]));
    TWI_TRY(twi_program_add_step(program, measure, attrs, NULL, "gradients", TWI_PART_COMMIT, operands));
    program->guard_blocks = operands[1];
    return twi_program_add_step(program, decide, &program->guard, NULL, "gradients", TWI_PART_COMMIT, &operands[1]);
}

twi_moments twi_optimizer_moments(const tw_optimizer_options *o) {
    return o->kind == TW_ADAMW ? (twi_moments){1, 2} : (twi_moments){0, o->momentum > 0};
}

tw_status twi_lower_update(tw_program *program, const tw_optimizer_options *options) {
    static const char *const kernels[] = {[TW_SGD] = "sgd.update", [TW_ADAMW] = "adamw.update"};
    twi_store *store = &program->model->store;
    TWI_TRY(twi_optimizer_check(options));
    const twi_moments moments = program->moments;
    twi_schedule_attrs *schedule;
    twi_update_attrs *update;
    TWI_TRY(twi_program_block(program, &schedule, sizeof *schedule, "schedule"));
    TWI_TRY(twi_program_block(program, &update, sizeof *update, "optimizer"));
    twi_schedule_fill(schedule, options);
    update->momentum = options->momentum;
    update->nesterov = options->nesterov;
    update->beta1 = options->beta1 > 0 ? options->beta1 : 0.9f;
    update->beta2 = options->beta2 > 0 ? options->beta2 : 0.999f;
    update->epsilon = options->epsilon > 0 ? options->epsilon : 1e-8f;
    TWI_TRY(make_segments(program, options, update));

    const twi_kernel *rate, *step, *advance;
    TWI_TRY(twi_program_kernel(program, "schedule.learning_rate", &rate));
    TWI_TRY(twi_program_kernel(program, kernels[options->kind], &step));
    TWI_TRY(twi_program_kernel(program, "commit.advance", &advance));
    int operands[TWI_MAX_OPERANDS];
    for (int o = 0; o < TWI_MAX_OPERANDS; o++) operands[o] = TWI_NO_REF;
    TWI_TRY(flat_buffer(program, "parameters", &store->weights, &operands[0]));
    TWI_TRY(taken_gradients(program, &operands[1]));
    static const char *const moment_names[] = {"moment 1", "moment 2"};
    for (int i = 0; i < moments.count; i++)
        TWI_TRY(flat_buffer(program, moment_names[i], &store->moment[moments.first + i], &operands[2 + i]));
    TWI_TRY(twi_program_add_step(program, rate, schedule, NULL, "schedule", TWI_PART_UPDATE, operands));
    TWI_TRY(twi_program_add_step(program, step, update, NULL, "optimizer", TWI_PART_UPDATE, operands));
    return twi_program_add_step(program, advance, &program->guard, NULL, "commit", TWI_PART_UPDATE, operands);
}

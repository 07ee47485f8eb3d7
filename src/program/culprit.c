/* Finds where a number that is not finite came from. The run that met it changed nothing that lasts, and its random
 * numbers are named by its attempt, so it can be repeated: a checking program is made of its very steps, forward and
 * backward, in an arena of its own where every value is kept, and then all are looked at in the order they were
 * written. It is made when it is needed; where there is no memory for it, less is said. */
#include "program.h"
#include "base/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct search {
    const tw_program *program; /* whose run it was */
    tw_program *check;
    void **outside; /* per buffer: its address, if no step writes it: what was fed */
    bool *seen;     /* per buffer: looked at */
    void *host;     /* for one value */
    twi_culprit *out;
} search;

/* ---- the checking program ---- */

static bool is_kept(const twi_step *step) { return step->part == TWI_PART_FORWARD || step->part == TWI_PART_BACKWARD; }

static tw_status copy_steps(search *s) {
    const tw_program *from = s->program;
    for (int i = 0; i < from->step_count; i++) {
        const twi_step *step = &from->step[i];
        if (!is_kept(step)) continue;
        TWI_TRY(twi_program_add_step(s->check, step->kernel, step->attrs, step->node, step->label, (twi_part)step->part,
                                     step->operand));
        twi_step *copy = &s->check->step[s->check->step_count - 1];
        *copy = *step;
        copy->choice = (twi_choice){0};
        copy->constant = false; /* its own run is the only one */
    }
    return TW_OK;
}

/* All values are kept apart; what nobody writes is where the run found it. */
static tw_status copy_buffers(search *s) {
    tw_program *check = s->check;
    twi_memory *memory = twi_program_context(check)->memory;
    const size_t count = (size_t)s->program->buffer_count;
    TWI_TRY(twi_get(memory, &check->buffer, count, sizeof *check->buffer, "checking program"));
    TWI_TRY(twi_get(memory, &s->outside, count, sizeof *s->outside, "checking program"));
    TWI_TRY(twi_get(memory, &s->seen, count, sizeof *s->seen, "checking program"));
    memcpy(check->buffer, s->program->buffer, count * sizeof *check->buffer);
    check->buffer_count = check->buffer_capacity = s->program->buffer_count;
    for (int i = 0; i < check->buffer_count; i++) {
        twi_buffer *buffer = &check->buffer[i];
        buffer->pinned = buffer->last >= 0 || buffer->pinned; /* some that fusion left belong to no step */
        buffer->local = buffer->constant = false;
        buffer->lanes = 0; /* what is looked at lies sample by sample */
        buffer->unturned = false;
        if (buffer->by_features) twi_shape_row_major(&buffer->shape, buffer->stride);
        buffer->by_features = false;
        buffer->over = -1;
        buffer->copied = false;
        buffer->lent = NULL;
        if (buffer->source != TWI_SOURCE_ARENA || buffer->alias >= 0 || twi_program_uses(check, i, true)) continue;
        if (!twi_program_uses(check, i, false)) continue;
        if (check->model->arena_user != s->program)
            return TWI_FAIL(TW_ERROR_STATE, "'%s' is there no more", buffer->name);
        s->outside[i] = twi_program_address(s->program, i);
        buffer->source = TWI_SOURCE_FLAT;
        buffer->flat = &s->outside[i];
    }
    return TW_OK;
}

/* It borrows beside the plan, but not beyond the limit of the program that failed. */
static tw_status check_limit(const tw_program *program, size_t bytes) {
    const size_t held = twi_model_bytes(program->model) + program->aside;
    if (!program->memory_limit || (held <= program->memory_limit && bytes <= program->memory_limit - held))
        return TW_OK;
    return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY,
                    "looking for what is not finite takes %zu bytes, of which the memory limit of %zu leaves %zu; raise it "
                    "to be told the layer",
                    bytes, program->memory_limit, held < program->memory_limit ? program->memory_limit - held : 0);
}

static tw_status make(search *s) {
    tw_program *check = s->check;
    tw_context *context = twi_program_context(check);
    size_t scratch, bytes;
    TWI_TRY(copy_steps(s));
    TWI_TRY(copy_buffers(s));
    TWI_TRY(twi_schedule_segments(check));
    TWI_TRY(twi_pass_choose(check));
    TWI_TRY(twi_pass_memory_plan(check));
    TWI_TRY(twi_mul_size(&scratch, check->worker_bytes, (size_t)context->backend->workers(context), "worker scratch"));
    TWI_TRY(twi_add_size(&bytes, check->arena_bytes + 1, scratch + 1, "checking program"));
    TWI_TRY(check_limit(s->program, bytes));
    TWI_TRY(context->backend->get(context, &check->arena, check->arena_bytes + 1, "arena of a checking program"));
    TWI_TRY(context->backend->get(context, &check->scratch, scratch + 1, "scratch of a checking program"));
    return twi_pass_prepare(check);
}

static void destroy(search *s) {
    tw_program *check = s->check;
    tw_context *context = twi_program_context(check);
    twi_memory *memory = context->memory;
    twi_program_unprepare(check);
    for (int i = 0; i < check->step_count; i++) context->backend->release(context, &check->step[i].choice);
    context->backend->put(context, check->arena);
    context->backend->put(context, check->scratch);
    twi_program_free_blocks(check);
    twi_put(memory, check->buffer);
    twi_put(memory, check->step);
    twi_put(memory, check->segment);
    twi_put(memory, check);
    twi_put(memory, s->outside);
    twi_put(memory, s->seen);
    twi_put(memory, s->host);
}

/* The run again: the same batch, random numbers and loss scale. */
static tw_status repeat(const search *s, const twi_control *failed) {
    tw_context *context = twi_program_context(s->check);
    twi_control control = *failed;
    memset(&control.fault, 0, sizeof control.fault);
    control.bad_loss = 0;
    control.constants = 0; /* what implementations keep from run to run is not here yet */
    if (s->program->guard.scales) control.guard.scale = failed->guard.used;
    TWI_TRY(context->backend->copy_in(context, s->check->model->store.control, &control, sizeof control));
    return context->backend->run(context, s->check->prepared, 0, s->check->segment_count);
}

/* ---- looking ---- */

static double value_at(const twi_buffer_plan *plan, const void *data, int64_t i) {
    float value;
    if (plan->store != TWI_REAL || plan->dtype == TW_F32 || plan->dtype == TWI_DTYPE_DOUBLE)
        return plan->dtype == TWI_DTYPE_DOUBLE && plan->store != TWI_F32 ? ((const double *)data)[i]
                                                                         : (double)((const float *)data)[i];
    twi_convert(&value, TW_F32, (const uint16_t *)data + i, (tw_dtype)plan->dtype, 1);
    return (double)value;
}

/* Not what a training run makes of running statistics: in a window it goes on from shadows that the run itself has
 * moved. */
static bool is_looked_at(const search *s, const twi_buffer *buffer) {
    if (buffer->store != TWI_REAL && buffer->store != TWI_ACC && buffer->store != TWI_F32) return false;
    if (buffer->joined) return false; /* what is made of them tells the sample too */
    if (buffer->parameter < 0 || !s->program->train || buffer->source == TWI_SOURCE_VALUES) return true;
    return s->program->model->store.parameter[buffer->parameter].learned;
}

static const char *kind_of(const search *s, const twi_step *step, int buffer, bool outside) {
    const tw_program *program = s->program;
    if (program->buffer[buffer].input) return "input";
    for (int i = 0; i < program->loss_count; i++)
        if (program->value_buffer[program->loss[i].value->id] == buffer) return "loss";
    const int parameter = s->check->buffer[buffer].parameter;
    if (outside && parameter >= 0)
        return program->model->store.parameter[parameter].learned ? "weight" : "running statistic";
    return step->part == TWI_PART_BACKWARD && !step->again ? "gradient of" : "activation";
}

static void note_sample(twi_culprit *out, int64_t sample) {
    if (out->samples < TWI_CULPRIT_SAMPLES) out->sample[out->samples] = sample;
    out->samples++;
}

/* Sets what was found, if anything. */
static tw_status look(search *s, const twi_step *step, int operand, bool outside, int64_t first_sample) {
    const int index = twi_program_root(s->check, step->operand[operand]); /* not a view of it */
    tw_context *context = twi_program_context(s->check);
    const twi_buffer *buffer = &s->check->buffer[index];
    const twi_buffer_plan *plan = &s->check->plan.buffer[index];
    const int64_t count = twi_shape_count(&buffer->shape);
    const int64_t sample = buffer->batched ? twi_shape_count_from(&buffer->shape, 1) : 0;
    int64_t last = -1;
    if (s->seen[index] || !is_looked_at(s, buffer)) return TW_OK;
    if (outside && buffer->parameter < 0 && !s->program->buffer[index].input)
        return TW_OK; /* slots, of which one is read */
    s->seen[index] = true;
    TWI_TRY(context->backend->copy_out(context, s->host, twi_program_address(s->check, index), buffer->bytes));
    for (int64_t i = 0; i < count; i++) {
        const double value = value_at(plan, s->host, i);
        if (isfinite(value)) continue;
        if (!s->out->kind) *s->out = (twi_culprit){kind_of(s, step, index, outside), buffer->name, value, 0, {0}};
        if (!sample) break;
        if (i / sample != last) note_sample(s->out, first_sample + i / sample);
        last = i / sample;
    }
    return TW_OK;
}

static tw_status look_at_all(search *s, int64_t first_sample) {
    tw_program *check = s->check;
    size_t largest = 0;
    for (int i = 0; i < check->buffer_count; i++)
        if (check->buffer[i].bytes > largest) largest = check->buffer[i].bytes;
    TWI_TRY(twi_get(twi_program_context(check)->memory, &s->host, largest, 1, "a value to look at"));
    for (int i = 0; i < check->step_count; i++)
        for (int writes = 0; writes < 2; writes++) /* what a step reads was not finite before it */
            for (int o = 0; o < check->step[i].kernel->operand_count && !s->out->kind; o++) {
                const twi_step *step = &check->step[i];
                if (step->operand[o] < 0 || (step->kernel->operand[o].access != TWI_READ) != writes) continue;
                TWI_TRY(look(s, step, o, !writes, first_sample));
            }
    return TW_OK;
}

static tw_status find(search *s, const twi_control *failed) {
    TWI_TRY(make(s));
    TWI_TRY(repeat(s, failed));
    return look_at_all(s, failed->window_sample);
}

static void search_run(tw_program *program, const twi_control *failed, twi_culprit *out) {
    tw_model *model = program->model;
    search s = {.program = program, .out = out};
    *out = (twi_culprit){0};
    if (failed->fault.code != TW_ERROR_NUMERIC || failed->fault.sample < TWI_FAULT_RUN) return;
    if (twi_get(model->context->memory, &s.check, 1, sizeof *s.check, "checking program")) return;
    s.check->model = model;
    s.check->batch = program->batch;
    s.check->train = program->train;
    s.check->workspace_limit = program->workspace_limit;
    if (find(&s, failed)) *out = (twi_culprit){0};
    destroy(&s);
}

static void print_samples(const twi_culprit *culprit, char *text, size_t size) {
    int length = 0;
    *text = 0;
    for (int64_t i = 0; i < culprit->samples && i < TWI_CULPRIT_SAMPLES; i++)
        length += snprintf(text + length, size - (size_t)length, "%s %lld",
                           i                      ? ","
                           : culprit->samples > 1 ? " in samples"
                                                  : " in sample",
                           (long long)culprit->sample[i]);
    if (culprit->samples > TWI_CULPRIT_SAMPLES)
        snprintf(text + length, size - (size_t)length, " and %lld more",
                 (long long)culprit->samples - TWI_CULPRIT_SAMPLES);
}

tw_status twi_culprit_find(tw_program *program, const twi_control *failed, tw_status status) {
    twi_culprit *culprit = &program->model->culprit;
    char text[1024], samples[160];
    snprintf(text, sizeof text, "%s", tw_last_error());
    search_run(program, failed, culprit);
    if (!culprit->kind) return TWI_FAIL(status, "%s", text); /* what the search lacked is nobody's concern */
    print_samples(culprit, samples, sizeof samples);
    const double value = isnan(culprit->value) ? (double)NAN : culprit->value; /* its sign means nothing */
    return TWI_FAIL(status, "%s. The first that is not finite: %s '%s' holds %g%s", text, culprit->kind, culprit->name,
                    value, samples);
}

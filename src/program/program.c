/* Programs as objects: checks of what is asked for, the passes in order, and the memory that comes of the plan. */
#include "program.h"
#include "base/options.h"
#include "update.h"

#include <string.h>

static tw_status check_value(const tw_model *model, const tw_value *value, const char *list, int index) {
    if (!value) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: %s[%d] is NULL", list, index);
    if (!twi_graph_owns(&model->graph, value))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: %s[%d] belongs to another model", list, index);
    return TW_OK;
}

static tw_status check_options(const tw_model *model, int64_t batch, const tw_program_options *options) {
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_program_create: build the model first (tw_model_build)");
    TWI_TRY(twi_graph_status(&model->graph));
    if ((unsigned)options->recompute > TW_RECOMPUTE_BLOCKS)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: recompute is %d, none of TW_RECOMPUTE_...",
                        (int)options->recompute);
    if (batch < 1) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: batch %lld is below 1", (long long)batch);
    if (options->loss_count < 0 || options->output_count < 0 || options->gradient_count < 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: a count is negative");
    if ((options->loss_count && !options->losses) || (options->output_count && !options->outputs) ||
        (options->gradient_count && !options->gradients))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_program_create: losses, outputs or gradients are counted, but the list is NULL");
    if (options->loss_count + options->output_count == 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_program_create: neither losses nor outputs: there is nothing to compute; name one, such as "
                        "the model's output (tw_model_get_output)");
    if (options->train && options->loss_count == 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: training needs a loss");
    if (options->accumulate && !options->optimizer)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_program_create: accumulate needs an optimizer: its update is what ends a window");
    if (!options->train && (options->optimizer || options->gradient_count))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: optimizer and gradients need train = true");
    for (int i = 0; i < options->loss_count; i++) {
        TWI_TRY(check_value(model, options->losses[i].value, "losses", i));
        const tw_value *loss = options->losses[i].value;
        for (int k = 0; k < i; k++)
            if (options->losses[k].value == loss)
                return TWI_FAIL(
                    TW_ERROR_ARGUMENT,
                    "tw_program_create: losses[%d] and losses[%d] are both '%s'; give it once, with the sum "
                    "of the weights",
                    k, i, loss->name);
        if (loss->kind != TWI_VALUE_RESULT || loss->batched || twi_shape_count(&loss->shape) != 1)
            return TWI_FAIL(
                TW_ERROR_SHAPE,
                "tw_program_create: losses[%d] '%s' is not a batch sum; use a loss such as tw_cross_entropy", i,
                loss->name);
    }
    for (int i = 0; i < options->output_count; i++) TWI_TRY(check_value(model, options->outputs[i], "outputs", i));
    for (int i = 0; i < options->gradient_count; i++)
        TWI_TRY(check_value(model, options->gradients[i], "gradients", i));
    return TW_OK;
}

/* As large as the largest value that is fed or read. */
static tw_status get_staging(tw_program *program) {
    size_t bytes = 0;
    if (twi_program_context(program)->backend->host_memory) return TW_OK;
    for (int v = 0; v < program->value_count; v++) {
        const tw_value *value = program->model->graph.value[v];
        const int kept[] = {program->value_buffer[v], program->gradient_buffer[v]};
        const bool always[] = {value->kind == TWI_VALUE_INPUT && !twi_program_gathers(program, value),
                               value->kind == TWI_VALUE_PARAMETER};
        for (int k = 0; k < 2; k++) {
            if (kept[k] < 0) continue;
            const bool readable = always[k] || program->buffer[twi_program_root(program, kept[k])].pinned;
            size_t wanted = program->buffer[kept[k]].bytes;
            if (twi_is_half(program->buffer[kept[k]].dtype)) wanted *= 2; /* fed or summed as f32 */
            if (readable && wanted > bytes) bytes = wanted;
        }
    }
    return twi_get(twi_program_context(program)->memory, &program->staging, bytes, 1, "staging");
}

/* All that was planned, once it is known that the limit allows it. */
static tw_status take_memory(tw_program *program, const tw_program_options *options) {
    twi_store *store = &program->model->store;
    twi_program_make_room(program);
    if (program->accumulate)
        TWI_TRY(twi_store_need_gradient_sums(store));
    else if (program->train)
        TWI_TRY(twi_store_need_gradients(store));
    if (options->optimizer) TWI_TRY(twi_store_need_moments(store, program->moments));
    if (program->half_weights) TWI_TRY(twi_store_need_half_weights(store, program->half));
    if (program->half_gradients) TWI_TRY(twi_store_need_half_gradients(store, program->half));
    TWI_TRY(twi_slots_take_memory(program));
    TWI_TRY(twi_source_take_numbers(program));
    return twi_program_share_arena(program);
}

static tw_status compile(tw_program *program, const tw_program_options *options) {
    TWI_TRY(twi_pass_lower(program, options));
    TWI_TRY(twi_program_record(program, TW_PASS_LOWER));
    TWI_TRY(twi_pass_precision(program, options));
    TWI_TRY(twi_pass_layout(program));
    TWI_TRY(twi_program_record(program, TW_PASS_LAYOUT));
    if (program->fuse && !program->train) TWI_TRY(twi_pass_fold(program));
    if (program->fuse) TWI_TRY(twi_pass_fuse(program));
    TWI_TRY(twi_pass_ranges(program));
    TWI_TRY(twi_pass_features(program));
    TWI_TRY(twi_pass_merge(program, options));
    TWI_TRY(twi_pass_measure(program, options));
    TWI_TRY(twi_pass_sums(program));
    twi_pass_copies(program);
    twi_pass_constants(program);
    TWI_TRY(twi_program_record(program, TW_PASS_FUSE));
    TWI_TRY(twi_program_plan(program, options));
    if (program->plan_only) return TW_OK;
    if (!twi_program_only_plans(program)) {
        TWI_TRY(get_staging(program));
        TWI_TRY(twi_program_plan_row(program, options));
    }
    tw_status status = take_memory(program, options);
    return status == TW_ERROR_OUT_OF_MEMORY ? twi_program_tell_need(program, status) : status;
}

static tw_status start(tw_program *program, const tw_program_options *options, bool streamed) {
    tw_model *model = program->model;
    twi_memory *memory = model->context->memory;
    size_t values = (size_t)model->graph.value_count;
    TWI_TRY(twi_precision_resolve(program, options));
    program->value_count = model->graph.value_count;
    TWI_TRY(twi_get(memory, &program->value_buffer, values, sizeof *program->value_buffer, "value table"));
    TWI_TRY(twi_get(memory, &program->gradient_buffer, values, sizeof *program->gradient_buffer, "gradient table"));
    TWI_TRY(twi_get(memory, &program->fed, values, sizeof *program->fed, "fed inputs"));
    for (size_t i = 0; i < values; i++) program->value_buffer[i] = program->gradient_buffer[i] = -1;
    TWI_TRY(twi_get(memory, &program->loss, (size_t)options->loss_count, sizeof *program->loss, "losses"));
    program->loss_count = options->loss_count;
    for (int i = 0; i < options->loss_count; i++)
        program->loss[i] =
            (tw_loss){options->losses[i].value, options->losses[i].weight != 0 ? options->losses[i].weight : 1};
    tw_status guarded = twi_guard_open(program, options);
    if (guarded) return twi_fail_within(guarded, "tw_program_create");
    if (options->source) TWI_TRY(twi_source_open(program, options->source));
    if (streamed) TWI_TRY(twi_slots_open(program));
    return compile(program, options);
}

tw_status twi_program_create(tw_program **out, tw_model *model, int64_t batch, const tw_program_options *options,
                             const twi_surroundings *around) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: out is NULL");
    *out = NULL;
    if (!model) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_create: model is NULL");
    tw_status status = twi_program_check_idle(model); /* it may need more of the memory that is in use */
    if (status) return twi_fail_within(status, "tw_program_create");
    tw_program_options chosen;
    tw_optimizer_options optimizer;
    tw_source_options source;
    TWI_TRY(twi_options_read(&chosen, sizeof chosen, options, "tw_program_create"));
    if (chosen.optimizer) {
        TWI_TRY(twi_options_read(&optimizer, sizeof optimizer, chosen.optimizer, "tw_program_create: optimizer"));
        chosen.optimizer = &optimizer;
    }
    if (chosen.source) {
        TWI_TRY(twi_options_read(&source, sizeof source, chosen.source, "tw_program_create: source"));
        chosen.source = &source;
    }
    TWI_TRY(check_options(model, batch, &chosen));
    tw_program *program;
    TWI_TRY(twi_get(model->context->memory, &program, 1, sizeof *program, "program"));
    program->model = model;
    program->batch = batch;
    program->train = chosen.train;
    program->accumulate = chosen.accumulate;
    program->fuse = !chosen.no_fusion;
    program->record = chosen.record_passes;
    program->plan_only = chosen.plan_only || around->rehearsed;
    program->workspace_limit = TWI_NO_LIMIT;
    program->memory_limit = chosen.memory_limit;
    program->counted = around->rehearsed;
    program->aside = around->aside;
    program->placed = around->placed;
    if (chosen.optimizer) program->moments = twi_optimizer_moments(chosen.optimizer);
    status = start(program, &chosen, around->streamed);
    program->next = model->programs;
    model->programs = program;
    if (status) {
        tw_program_destroy(program);
        return status;
    }
    *out = program;
    return TW_OK;
}

tw_status tw_program_create(tw_program **out, tw_model *model, int64_t batch, const tw_program_options *options) {
    return twi_program_create(out, model, batch, options, &(twi_surroundings){0});
}

void tw_program_destroy(tw_program *program) {
    if (!program) return;
    tw_context *context = twi_program_context(program);
    twi_memory *memory = context->memory;
    for (tw_program **at = &program->model->programs; *at; at = &(*at)->next)
        if (*at == program) {
            *at = program->next;
            break;
        }
    if (program->model->arena_user == program) program->model->arena_user = NULL;
    if (program->model->gradients_by == program) program->model->gradients_by = NULL;
    twi_program_unprepare(program);
    for (int i = 0; i < program->step_count; i++) context->backend->release(context, &program->step[i].choice);
    twi_source_close(program);
    twi_slots_close(program);
    twi_program_free_blocks(program);
    twi_uses_close(program);
    for (int i = 0; i < TWI_PASSES; i++) twi_put(memory, program->dump[i]);
    void *const owned[] = {
        program->buffer, program->step, program->segment, program->value_buffer, program->gradient_buffer,
        program->loss,   program->fed,  program->staging, program->row,          program->times};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) twi_put(memory, owned[i]);
    twi_put(memory, program);
}

/* FNV-1a over what decides a run's bits: kernels, implementations, order, chunks, groups and places. */
static void mix(uint64_t *hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) *hash = (*hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
}

static void mix_text(uint64_t *hash, const char *text) { mix(hash, text, strlen(text) + 1); }

static void mix_operand(uint64_t *hash, const tw_program *program, int buffer) {
    mix_text(hash, buffer < 0 ? "" : program->buffer[buffer].name);
    if (buffer >= 0 && twi_is_half(program->buffer[buffer].dtype))
        mix_text(hash, tw_dtype_name((tw_dtype)program->buffer[buffer].dtype));
}

bool twi_brings_input(const tw_program *program, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->kernel->operand[o].access == TWI_WRITE && step->operand[o] >= 0 &&
            program->buffer[step->operand[o]].input)
            return true;
    return false;
}

uint64_t tw_program_get_plan_hash(const tw_program *program) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (!program) return 0;
    for (int i = 0; i < program->step_count; i++) {
        const twi_step *step = &program->step[i];
        if (step->kernel->nondeterministic) return 0;
        /* Gathered here, streamed or fed from outside, the input is the same: that decides nothing. What is done again
         * has the same bits. */
        if (twi_brings_input(program, step) || step->again) continue;
        mix_text(&hash, step->kernel->name);
        mix_text(&hash, step->choice.implementation);
        for (int o = 0; o < step->kernel->operand_count; o++) mix_operand(&hash, program, step->operand[o]);
        if (step->tf32) mix_text(&hash, "tf32");
        const twi_segment *segment = &program->segment[step->segment];
        const int64_t cut[] = {segment->samples, segment->chunk, segment->groups};
        mix(&hash, cut, sizeof cut);
    }
    return hash;
}

int64_t tw_program_get_batch(const tw_program *program) { return program ? program->batch : 0; }

/* The precision pass: which type every step computes in and every buffer is stored in. A step has one type, that of all
 * its TWI_REAL operands: f32 where its kernel says so, else that of the last rule that names its layer, else the
 * program's. A buffer has the type of the step that writes it; who wants another one reads a cast of it. Weights are
 * read from the store's copy in half precision, and weights' gradients written to its array of those, where one step
 * alone adds to them. What is marked TWI_ACC stays f32. How a half is computed with is left to the back ends. */
#include "program.h"

#include <string.h>

/* ---- what is asked for ---- */

static tw_dtype dtype_of(tw_precision precision) {
    static const tw_dtype types[] = {[TW_PRECISION_F32] = TW_F32,
                                     [TW_PRECISION_TF32] = TW_F32,
                                     [TW_PRECISION_BF16] = TW_BF16,
                                     [TW_PRECISION_F16] = TW_F16};
    return types[precision];
}

/* "layer1" names layer1 and what is within it: layer1.0.conv1. */
static bool names(const char *layer, const char *step) {
    const size_t length = strlen(layer);
    return strncmp(layer, step, length) == 0 && (step[length] == 0 || step[length] == '.');
}

static tw_status check_rule(const tw_model *model, const tw_precision_rule *rule, int index, tw_precision asked,
                            tw_precision became) {
    const twi_graph *graph = &model->graph;
    if (!rule->layer || !rule->layer[0])
        return TWI_FAIL(TW_ERROR_ARGUMENT, "precision_rules[%d] names no layer", index);
    if (rule->precision != TW_PRECISION_F32 && rule->precision != TW_PRECISION_TF32 && rule->precision != asked &&
        rule->precision != became)
        return TWI_FAIL(
            TW_ERROR_ARGUMENT,
            "precision_rules[%d]: '%s' cannot be %s in a program of %s; give f32, tf32 or the program's own", index,
            rule->layer, tw_precision_name(rule->precision), tw_precision_name(asked));
    for (int i = 0; i < graph->node_count; i++)
        if (names(rule->layer, graph->node[i]->name)) return TW_OK;
    return TWI_FAIL(TW_ERROR_ARGUMENT, "precision_rules[%d]: the model has no layer '%s'; tw_model_dump lists them",
                    index, rule->layer);
}

tw_status twi_precision_check(const tw_model *model, tw_precision precision, const tw_precision_rule *rules, int count,
                              tw_precision *out) {
    tw_context *context = model->context;
    if (precision < TW_PRECISION_F32 || precision > TW_PRECISION_AUTO)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "precision %d is none of TW_PRECISION_...", (int)precision);
    if (count < 0 || (count && !rules))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "precision_rules are counted (%d), but the list is NULL or the count negative", count);
    *out = precision;
    if (precision == TW_PRECISION_AUTO)
        *out = context->backend->computes_in(context, TW_PRECISION_BF16) ? TW_PRECISION_BF16 : TW_PRECISION_F32;
    for (int i = 0; i < count; i++) TWI_TRY(check_rule(model, &rules[i], i, precision, *out));
    return TW_OK;
}

tw_status twi_precision_resolve(tw_program *program, const tw_program_options *options) {
    tw_context *context = twi_program_context(program);
    tw_status status = twi_precision_check(program->model, options->precision, options->precision_rules,
                                           options->precision_rule_count, &program->precision);
    if (status) return twi_fail_within(status, "tw_program_create");
    if (options->precision == TW_PRECISION_AUTO) {
        const bool bf16 = program->precision == TW_PRECISION_BF16;
        twi_log_line(&context->log, TW_LOG_INFO, "precision: auto is %s, since the device %s in bf16",
                     bf16 ? "bf16" : "f32", bf16 ? "computes" : "does not compute");
    }
    bool tf32 = program->precision == TW_PRECISION_TF32;
    for (int i = 0; i < options->precision_rule_count; i++)
        tf32 = tf32 || options->precision_rules[i].precision == TW_PRECISION_TF32;
    if (tf32 && !context->backend->computes_in(context, TW_PRECISION_TF32))
        twi_log_line(&context->log, TW_LOG_INFO, "precision: the device has no TF32: tf32 is computed in f32");
    program->half = dtype_of(program->precision);
    return TW_OK;
}

/* ---- types of steps ---- */

static bool is_real_read(const twi_step *step, int o) {
    return step->operand[o] >= 0 && step->kernel->operand[o].store == TWI_REAL &&
           step->kernel->operand[o].access == TWI_READ && !step->kernel->half_of[o];
}

static bool is_real_write(const twi_step *step, int o) {
    return step->operand[o] >= 0 && step->kernel->operand[o].store == TWI_REAL &&
           step->kernel->operand[o].access != TWI_READ && !step->kernel->half_of[o];
}

static bool has_real(const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (is_real_read(step, o) || is_real_write(step, o)) return true;
    return false;
}

static tw_precision precision_of(const tw_program *program, const tw_program_options *options, const twi_step *step) {
    tw_precision precision = program->precision;
    for (int i = 0; i < options->precision_rule_count; i++)
        if (names(options->precision_rules[i].layer, step->label)) precision = options->precision_rules[i].precision;
    return precision == TW_PRECISION_AUTO ? program->precision : precision;
}

static void type_steps(tw_program *program, const tw_program_options *options) {
    tw_context *context = twi_program_context(program);
    const bool tf32 = context->backend->computes_in(context, TW_PRECISION_TF32);
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        step->dtype = TW_F32;
        if (!has_real(step) || step->kernel->types != TWI_TYPES_FOLLOW) continue;
        const tw_precision precision = precision_of(program, options, step);
        step->dtype = (uint8_t)dtype_of(precision);
        step->tf32 = tf32 && precision == TW_PRECISION_TF32;
    }
}

/* What comes from outside is in half precision if all who read it want it so. */
static bool all_want_half(const tw_program *program, int buffer) {
    bool half = false;
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++) {
            if (program->step[i].operand[o] != buffer || !is_real_read(&program->step[i], o)) continue;
            if (!twi_is_half(program->step[i].dtype)) return false;
            half = true;
        }
    return half;
}

static tw_status type_inputs(tw_program *program) {
    for (int v = 0; v < program->value_count; v++) {
        const int buffer = program->value_buffer[v];
        if (program->model->graph.value[v]->kind == TWI_VALUE_INPUT && buffer >= 0 &&
            program->buffer[buffer].store == TWI_REAL && all_want_half(program, buffer))
            TWI_TRY(twi_program_set_dtype(program, buffer, program->half));
    }
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        for (int o = 0; step->kernel->types == TWI_TYPES_READERS && o < step->kernel->operand_count; o++)
            if (is_real_write(step, o)) step->dtype = program->buffer[step->operand[o]].dtype;
    }
    return TW_OK;
}

/* ---- what steps write ---- */

static tw_status type_outputs(tw_program *program, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++) {
        if (!twi_is_half(step->dtype)) return TW_OK;
        if (is_real_write(step, o)) TWI_TRY(twi_program_set_dtype(program, step->operand[o], step->dtype));
        if (step->operand[o] < 0 || step->kernel->operand[o].store != TWI_GRADIENT ||
            program->buffer[step->operand[o]].source != TWI_SOURCE_GRADIENT)
            continue;
        program->buffer[step->operand[o]].source = TWI_SOURCE_HALF_GRADIENT;
        program->half_gradients = true;
        TWI_TRY(twi_program_set_dtype(program, step->operand[o], step->dtype));
    }
    return TW_OK;
}

/* ---- what steps read ---- */

static bool is_real(uint8_t store) { return store == TWI_REAL || store == TWI_ACC || store == TWI_F32; }

/* The same values in the other type: a parameter's copy, or a cast that is yet to be written (*cast). */
static tw_status make_twin(tw_program *program, int buffer, tw_dtype dtype, bool *cast) {
    twi_buffer twin = program->buffer[buffer];
    int index;
    *cast = twin.source != TWI_SOURCE_VALUES;
    twin.pinned = false;
    twin.store = TWI_REAL;
    twin.dtype = (uint8_t)dtype;
    if (*cast) {
        twin.source = TWI_SOURCE_ARENA;
        twin.parameter = -1;
        if (!twin.batched)
            return TWI_FAIL(TW_ERROR_INTERNAL, "'%s' is read in %s and in f32, and is no batch; please report it",
                            twin.name, tw_dtype_name(program->half));
    } else {
        twin.source = TWI_SOURCE_HALF_VALUES;
        program->half_weights = true;
    }
    TWI_TRY(twi_program_add_buffer(program, &twin, &index));
    program->buffer[buffer].twin = index;
    return TW_OK;
}

static tw_status push(tw_program *program, const twi_step *step) {
    TWI_TRY(twi_program_add_step(program, step->kernel, step->attrs, step->node, step->label, (twi_part)step->part,
                                 step->operand));
    program->step[program->step_count - 1] = *step;
    return TW_OK;
}

static tw_status add_cast(tw_program *program, int from, const twi_step *reader) {
    const int to = program->buffer[from].twin, operands[] = {from, to};
    const bool narrow = twi_is_half(program->buffer[to].dtype);
    const twi_kernel *kernel;
    TWI_TRY(twi_program_kernel(program, narrow ? "cast.narrow" : "cast.widen", &kernel));
    TWI_TRY(twi_program_add_step(program, kernel, NULL, reader->node, reader->label, (twi_part)reader->part, operands));
    program->step[program->step_count - 1].dtype = (uint8_t)program->half;
    return TW_OK;
}

/* Has a step read what it wants, by way of casts before it. */
static tw_status match_inputs(tw_program *program, twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++) {
        const int buffer = step->operand[o];
        const twi_operand_rule *rule = &step->kernel->operand[o];
        if (buffer < 0 || rule->access != TWI_READ || step->kernel->half_of[o] || !is_real(rule->store)) continue;
        const uint8_t wanted = rule->store == TWI_REAL ? step->dtype : TW_F32;
        if (program->buffer[buffer].dtype == wanted) continue;
        bool cast = false;
        if (program->buffer[buffer].twin < 0) TWI_TRY(make_twin(program, buffer, (tw_dtype)wanted, &cast));
        if (cast) TWI_TRY(add_cast(program, buffer, step));
        step->operand[o] = program->buffer[buffer].twin;
    }
    return TW_OK;
}

/* ---- flat arrays ---- */

static tw_status flat_half(tw_program *program, const char *name, void **array, int *index) {
    const twi_buffer buffer = {.name = name,
                               .store = TWI_REAL,
                               .dtype = (uint8_t)program->half,
                               .source = TWI_SOURCE_FLAT,
                               .flat = array,
                               .parameter = -1,
                               .shape = {1, {program->model->store.learned_count}}};
    return twi_program_add_buffer(program, &buffer, index);
}

/* Steps that go over the flat arrays of weights or gradients get those in half precision beside them. */
static tw_status pair_flat(tw_program *program, twi_step *step) {
    twi_store *store = &program->model->store;
    for (int o = 0; o < step->kernel->operand_count; o++) {
        const int pair = step->kernel->half_of[o] ? step->operand[step->kernel->half_of[o] - 1] : -1;
        if (pair < 0 || program->buffer[pair].source != TWI_SOURCE_FLAT) continue;
        if (program->half_weights && program->buffer[pair].flat == &store->weights)
            TWI_TRY(flat_half(program, "parameters in half precision", &store->half_weights[program->half],
                              &step->operand[o]));
        if (program->half_gradients && program->buffer[pair].flat == &store->gradients)
            TWI_TRY(flat_half(program, "gradients in half precision", &store->half_gradients[program->half],
                              &step->operand[o]));
    }
    return TW_OK;
}

/* ---- the pass ---- */

static tw_status rewrite(tw_program *program, const twi_step *steps, int count) {
    program->step_count = 0;
    for (int i = 0; i < count; i++) {
        twi_step step = steps[i];
        TWI_TRY(match_inputs(program, &step));
        TWI_TRY(push(program, &step));
    }
    for (int i = 0; i < program->step_count; i++) TWI_TRY(pair_flat(program, &program->step[i]));
    return twi_lower_segments_again(program);
}

tw_status twi_pass_precision(tw_program *program, const tw_program_options *options) {
    twi_memory *memory = twi_program_context(program)->memory;
    if (program->model->store.real_size != sizeof(float)) return TW_OK; /* the checks in double */
    type_steps(program, options);
    if (program->half == TW_F32) return TW_OK;
    TWI_TRY(type_inputs(program));
    for (int i = 0; i < program->step_count; i++) TWI_TRY(type_outputs(program, &program->step[i]));
    twi_step *steps;
    const int count = program->step_count;
    TWI_TRY(twi_get(memory, &steps, (size_t)count, sizeof *steps, "step types"));
    memcpy(steps, program->step, (size_t)count * sizeof *steps);
    tw_status status = rewrite(program, steps, count);
    twi_put(memory, steps);
    return status;
}

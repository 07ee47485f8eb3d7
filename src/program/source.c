/* The inputs that a program gathers itself, from a resident set: whether they can be, the steps that write them, and
 * how a run takes its samples. */
#include "resident.h"
#include "backend/attrs.h"

#include <string.h>

/* ---- checks ---- */

static tw_status check_input(const tw_model *model, const tw_value *value, const char *field) {
    if (!twi_graph_owns(&model->graph, value))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "source.%s belongs to another model", field);
    if (value->kind != TWI_VALUE_INPUT || !value->batched)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "source.%s: '%s' is no input with a batch axis", field, value->name);
    return TW_OK;
}

/* An image must be of the samples' very shape; an input of other rank takes as many numbers, in C,H,W order. */
static tw_status check_images(const tw_value *value, const twi_sample_kind *kind) {
    const twi_shape sample = {4, {value->shape.dim[0], kind->channels, kind->height, kind->width}};
    bool fits = value->shape.rank == 4 ? twi_shape_equal(&sample, &value->shape)
                                       : twi_shape_count(&sample) == twi_shape_count(&value->shape);
    char shape[TWI_SHAPE_TEXT];
    if (value->store != TWI_REAL) return TWI_FAIL(TW_ERROR_ARGUMENT, "source.images: '%s' takes labels", value->name);
    if (!fits)
        return TWI_FAIL(TW_ERROR_MISMATCH,
                        "source.images: '%s' is %s, but the resident samples have %d channels, height %d, width %d",
                        value->name, twi_shape_text(&value->shape, shape), kind->channels, kind->height, kind->width);
    return TW_OK;
}

static tw_status check_source(const tw_model *model, const tw_source_options *source) {
    if (!source->resident || (!source->images && !source->labels))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "source: %s",
                        source->resident ? "neither images nor labels are named" : "resident is NULL");
    const twi_sample_kind *kind = &source->resident->kind;
    if (source->resident->context != model->context)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "source: the resident set is of another context than the model");
    if (source->images) {
        TWI_TRY(check_input(model, source->images, "images"));
        TWI_TRY(check_images(source->images, kind));
    }
    if (source->labels) {
        TWI_TRY(check_input(model, source->labels, "labels"));
        if (source->labels->store != TWI_I32 || source->labels->shape.rank != 1)
            return TWI_FAIL(TW_ERROR_ARGUMENT,
                            "source.labels: '%s' does not take a label a sample: make it with "
                            "tw_input_labels",
                            source->labels->name);
    }
    tw_status status =
        twi_augment_check(&source->normalization, source->crop_padding, kind->channels, kind->height, kind->width);
    return status ? twi_fail_within(status, "source") : TW_OK;
}

/* ---- a program's source ---- */

static size_t count_numbers(const tw_program *program) {
    const twi_sample_kind *kind = &program->samples;
    return program->source.resident ? (size_t)kind->channels * (size_t)twi_pixel_numbers(kind->dtype) : 0;
}

size_t twi_source_bytes(const tw_program *program) { return count_numbers(program) * sizeof(float); }

tw_status twi_source_take_numbers(tw_program *program) {
    tw_context *context = twi_program_context(program);
    const twi_sample_kind *kind = &program->samples;
    const size_t count = count_numbers(program);
    float *numbers;
    if (!count) return TW_OK;
    TWI_TRY(context->backend->get(context, &program->pixel_numbers, count * sizeof *numbers, "normalisation"));
    TWI_TRY(twi_get(context->memory, &numbers, count, sizeof *numbers, "normalisation"));
    twi_pixel_fill(numbers, kind->dtype, kind->channels, &program->source.normalization);
    tw_status status = context->backend->copy_in(context, program->pixel_numbers, numbers, count * sizeof *numbers);
    twi_put(context->memory, numbers);
    return status;
}

tw_status twi_source_open(tw_program *program, const tw_source_options *source) {
    tw_status status = check_source(program->model, source);
    if (status) return twi_fail_within(status, "tw_program_create");
    program->source = *source;
    program->samples = source->resident->kind;
    return TW_OK;
}

void twi_source_close(tw_program *program) {
    tw_context *context = twi_program_context(program);
    context->backend->put(context, program->pixel_numbers);
}

tw_status twi_lower_gather(tw_program *program, int images, int labels) {
    static const char *const kernels[] = {[TW_F32] = "gather.floats", [TW_U8] = "gather.bytes"};
    const tw_source_options *source = &program->source;
    const twi_sample_kind *kind = &program->samples;
    const twi_kernel *gather;
    if (images >= 0) {
        twi_gather_attrs *attrs;
        TWI_TRY(twi_program_block(program, &attrs, sizeof *attrs, "gathering"));
        *attrs = (twi_gather_attrs){
            {source->seed, source->flip, source->crop_padding}, kind->channels, kind->height, kind->width};
        const twi_buffer numbers = {.name = "normalization",
                                    .store = TWI_F32,
                                    .source = TWI_SOURCE_FLAT,
                                    .flat = &program->pixel_numbers,
                                    .parameter = -1,
                                    .shape = {2, {kind->channels, twi_pixel_numbers(kind->dtype)}}};
        int operands[] = {TWI_NO_REF, images};
        TWI_TRY(twi_program_add_buffer(program, &numbers, &operands[0]));
        TWI_TRY(twi_program_kernel(program, kernels[kind->dtype], &gather));
        TWI_TRY(twi_program_add_step(program, gather, attrs, NULL, source->images->name, TWI_PART_FORWARD, operands));
    }
    if (labels < 0) return TW_OK;
    TWI_TRY(twi_program_kernel(program, "gather.labels", &gather));
    return twi_program_add_step(program, gather, NULL, NULL, source->labels->name, TWI_PART_FORWARD, &labels);
}

/* ---- runs ---- */

tw_status twi_source_check(const tw_program *program, const char *function) {
    const tw_resident *resident = program->source.resident;
    if (!resident) return TW_OK;
    const int64_t left = resident->ordered - (int64_t)resident->view.position;
    if (left >= program->batch) return TW_OK;
    return TWI_FAIL(TW_ERROR_STATE,
                    "%s: %lld samples are left of the resident set's order, the program takes %lld; begin an epoch "
                    "with tw_resident_set_order, and end it with a program for the samples left",
                    function, (long long)left, (long long)program->batch);
}

void twi_source_take(tw_program *program, twi_control *control) {
    tw_resident *resident = program->source.resident;
    if (!resident) return;
    control->resident = resident->view;
    resident->view.position += (uint64_t)program->batch;
}

void twi_source_resume(const tw_program *program, uint64_t position) {
    if (program->source.resident) program->source.resident->view.position = position;
}

/* ---- from one resident set to another ---- */

bool twi_program_gathers_as(const tw_program *program, const tw_source_options *source) {
    const tw_source_options *own = &program->source;
    if (!source || !own->resident) return !source && !own->resident;
    const twi_sample_kind *a = &program->samples, *b = &source->resident->kind;
    return own->images == source->images && own->labels == source->labels && own->flip == source->flip &&
           own->crop_padding == source->crop_padding && own->seed == source->seed &&
           memcmp(&own->normalization, &source->normalization, sizeof own->normalization) == 0 &&
           a->dtype == b->dtype && a->channels == b->channels && a->height == b->height && a->width == b->width;
}

void twi_program_set_resident(tw_program *program, tw_resident *resident) { program->source.resident = resident; }

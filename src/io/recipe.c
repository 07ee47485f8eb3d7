/* What using a model takes beside its graph: how its input is normalised, what its classes are called. Files keep both:
 * see model_file.c. */
#include "data/sampler.h"
#include "program/model.h"
#include <talweg/io.h>

#include <string.h>

tw_status tw_model_set_normalization(tw_model *model, const tw_normalization *normalization) {
    if (!model || !normalization)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_set_normalization: model or normalization is NULL");
    tw_status status = twi_normalization_check(normalization);
    if (status) return twi_fail_within(status, "tw_model_set_normalization");
    const tw_value *input = tw_model_get_input(model);
    if (normalization->channels && input && input->shape.rank == 4 && input->shape.dim[1] != normalization->channels)
        return TWI_FAIL(TW_ERROR_MISMATCH,
                        "tw_model_set_normalization: it is given for %d channels, the model's input '%s' has %lld",
                        normalization->channels, input->name, (long long)input->shape.dim[1]);
    model->normalization = *normalization;
    return TW_OK;
}

tw_normalization tw_model_get_normalization(const tw_model *model) {
    return model ? model->normalization : (tw_normalization){0};
}

static tw_status check_count(const tw_model *model, int count) {
    const tw_value *output = model->output;
    const int64_t most = output && output->shape.rank == 2 ? output->shape.dim[1] : TW_MAX_CLASSES;
    if (count >= 0 && count <= most && count <= TW_MAX_CLASSES) return TW_OK;
    return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_set_class_names: %d names for a model of at most %lld classes", count,
                    (long long)most);
}

tw_status tw_model_set_class_names(tw_model *model, const char *const *names, int count) {
    if (!model || (count && !names))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_set_class_names: model or names is NULL");
    TWI_TRY(check_count(model, count));
    size_t bytes = (size_t)count * sizeof *names;
    for (int i = 0; i < count; i++) {
        if (!names[i]) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_set_class_names: name %d is NULL", i);
        TWI_TRY(twi_add_size(&bytes, bytes, strlen(names[i]) + 1, "class names"));
    }
    char **copy = NULL;
    if (count) TWI_TRY(twi_get(model->context->memory, &copy, 1, bytes, "class names"));
    char *at = (char *)(copy + count);
    for (int i = 0; i < count; i++) {
        copy[i] = strcpy(at, names[i]);
        at += strlen(at) + 1;
    }
    twi_put(model->context->memory, model->class_name);
    model->class_name = copy;
    model->class_count = count;
    return TW_OK;
}

int tw_model_count_class_names(const tw_model *model) { return model ? model->class_count : 0; }

const char *tw_model_get_class_name(const tw_model *model, int index) {
    return model && index >= 0 && index < model->class_count ? model->class_name[index] : "";
}

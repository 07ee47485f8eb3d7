/* Weights to and from safetensors: PyTorch's names and layouts. What a model's tensors are in a file is in
 * model_tensors.c, the format itself in safetensors.c. */
#include "base/options.h"
#include "model_tensors.h"
#include <talweg/io.h>

tw_status tw_model_save(const tw_model *model, const char *path) {
    if (!model || !path) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_save: model or path is NULL");
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_model_save: %s: the model is not built yet", path);
    twi_model_tensors list;
    TWI_TRY(twi_model_tensors_list(&list, model, NULL, (twi_moments){0}));
    tw_status status = twi_model_tensors_save(&list, "", path);
    twi_model_tensors_free(&list);
    return status;
}

static tw_status load(tw_model *model, const twi_tensor_file *file, bool partial) {
    twi_model_tensors list;
    twi_model_values values;
    TWI_TRY(twi_model_tensors_list(&list, model, NULL, (twi_moments){0}));
    tw_status status = twi_model_values_read(&values, &list, file, partial, "load with partial to take what fits");
    if (status == TW_OK) status = twi_model_values_write(&values, &list, model);
    twi_model_values_free(&values, &list);
    twi_model_tensors_free(&list);
    return status;
}

tw_status tw_model_load(tw_model *model, const char *path, const tw_load_options *options) {
    if (!model || !path) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_model_load: model or path is NULL");
    if (!model->built)
        return TWI_FAIL(TW_ERROR_STATE, "tw_model_load: %s: build the model first (tw_model_build)", path);
    tw_load_options chosen;
    TWI_TRY(twi_options_read(&chosen, sizeof chosen, options, "tw_model_load"));
    twi_tensor_file file;
    TWI_TRY(twi_tensor_file_open(&file, model->context->memory, path));
    tw_status status = load(model, &file, chosen.partial);
    twi_tensor_file_close(&file);
    return status;
}

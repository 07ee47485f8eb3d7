/* cuDNN's choices as the texts that base/choices keeps: "<engine> <knob>=<value> ...", for a device and its
 * libraries. */
#include "cudnn.h"

#ifdef TWI_HAVE_CUDNN

#include "base/text.h"
#include "cudnn_plan.h"

#include <stdlib.h>

static bool read_number(const char **at, int64_t *out) {
    char *end;
    *out = strtoll(*at, &end, 10);
    const bool there = end != *at;
    *at = end;
    return there;
}

static bool parse(twi_dnn_choice *choice, const char *at) {
    *choice = (twi_dnn_choice){0};
    if (!read_number(&at, &choice->engine) || choice->engine < 0) return false;
    while (*at == ' ') {
        if (choice->knob_count == TWI_DNN_KNOBS) return false;
        const int k = choice->knob_count++;
        if (!read_number(&at, &choice->knob[k].type) || *at++ != '=' || !read_number(&at, &choice->knob[k].value))
            return false;
    }
    return *at == 0;
}

bool twi_dnn_cache_find(const twi_cuda_dnn *dnn, const char *key, twi_dnn_choice *out) {
    const char *text = twi_choices_find(&dnn->cache, key);
    return text && parse(out, text);
}

tw_status twi_dnn_cache_put(twi_cuda_dnn *dnn, const char *key, const twi_dnn_choice *choice) {
    twi_text text;
    char *taken;
    twi_text_init(&text, dnn->memory);
    twi_text_add(&text, "%lld", (long long)choice->engine);
    for (int k = 0; k < choice->knob_count; k++)
        twi_text_add(&text, " %lld=%lld", (long long)choice->knob[k].type, (long long)choice->knob[k].value);
    TWI_TRY(twi_text_take(&text, &taken));
    tw_status status = twi_choices_put(&dnn->cache, key, taken);
    twi_put(dnn->memory, taken);
    return status;
}

tw_status twi_dnn_cache_open(twi_cuda_dnn *dnn, const char *folder) {
    twi_cuda_device *device = dnn->device;
    int runtime;
    TWI_CUDA(device, cudaRuntimeGetVersion(&runtime));
    twi_text text;
    char *header;
    twi_text_init(&text, dnn->memory);
    twi_text_add(&text, "talweg cudnn choices 1; %s%s, %d.%d, %d processors; cuDNN %zu, CUDA %d; workspace %zu%s",
                 dnn->properties ? "described " : "", device->name, device->capability / 10, device->capability % 10,
                 device->processors, cudnnGetVersion(), runtime, dnn->workspace_limit, dnn->trial ? ", timed" : "");
    TWI_TRY(twi_text_take(&text, &header));
    tw_status status = twi_choices_open(&dnn->cache, dnn->memory, &device->context->log, folder, "cudnn", header);
    twi_put(dnn->memory, header);
    return status;
}

#endif

/* A card that is not here, as a back end: programs are built and planned for it with the choices that cuDNN makes for
 * its description; nothing runs, and no memory is taken for it. */
#include "card_text.h"
#include "cuda_choose.h"
#include "cudnn.h"

#include <stdio.h>
#include <string.h>

static void described_close(tw_context *context, void *opened) {
    twi_cuda_device *device = opened;
    if (!device) return;
    twi_cuda_dnn_close(device->dnn);
    twi_put(context->memory, device);
}

static tw_status described_open(tw_context *context, void **out) {
    *out = NULL;
    const tw_card *card = context->card;
    twi_cuda_device *device;
    char json[TWI_CARD_TEXT];
    twi_cuda_describe_card(card, json);
    TWI_TRY(twi_get(context->memory, &device, 1, sizeof *device, "described device"));
    device->context = context;
    device->ordinal = -1;
    device->capability = card->capability;
    device->processors = card->processors;
    device->total_bytes = card->memory_bytes;
    snprintf(device->name, sizeof device->name, "%s", card->name);
    const twi_cuda_dnn_options options = {.cache_folder = context->cache_folder};
    tw_status status = twi_cuda_dnn_open_described(&device->dnn, device, json, &options);
    if (status) {
        described_close(context, device);
        return status;
    }
    twi_cuda_name_machine(device);
    *out = device;
    return TW_OK;
}

/* No function that runs, and none for memory: they are those of backend/planning.c. */
const twi_backend twi_backend_cuda_described = {
    .name = "cuda",
    .host_memory = false,
    .in_flight = TWI_IN_FLIGHT_MAX,
    .chunked = false,
    .open = described_open,
    .close = described_close,
    .describe = twi_cuda_describe_planned,
    .computes_in = twi_cuda_computes_in,
    .workers = twi_cuda_workers,
    .choose = twi_cuda_choose,
    .release = twi_cuda_release,
};

/* A card that is not here, as a back end: programs are built and planned for it with the choices that cuDNN makes for its
 * description; nothing runs. What a model keeps lies in host memory meanwhile. */
#include "cards.h"
#include "cuda_choose.h"
#include "cudnn.h"

#include <stdio.h>
#include <string.h>

static tw_status unknown_card(const char *key) {
    char known[256] = "";
    for (const twi_cuda_card *card = twi_cuda_cards; card->key; card++) {
        strncat(known, known[0] ? ", " : "", sizeof known - 1 - strlen(known));
        strncat(known, card->key, sizeof known - 1 - strlen(known));
    }
    return TWI_FAIL(TW_ERROR_DEVICE, "tw_context_create: no card '%s' is known; \"plan:\" takes cpu, %s", key, known);
}

static void described_close(tw_context *context, void *opened) {
    twi_cuda_device *device = opened;
    if (!device) return;
    twi_cuda_dnn_close(device->dnn);
    twi_put(context->memory, device);
}

/* The context's name is "plan:" and the card's. */
static tw_status described_open(tw_context *context, void **out) {
    *out = NULL;
    const char *key = strchr(context->device_name, ':') + 1;
    const twi_cuda_card *card = twi_cuda_find_card(key);
    if (!card) return unknown_card(key);
    twi_cuda_device *device;
    char json[TWI_CARD_TEXT];
    twi_cuda_describe_card(card, json);
    TWI_TRY(twi_get(context->memory, &device, 1, sizeof *device, "described device"));
    device->context = context;
    device->ordinal = -1;
    device->capability = card->capability;
    device->processors = card->processors;
    device->total_bytes = (size_t)card->memory_gib << 30;
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

static tw_status described_get(tw_context *context, void **out, size_t bytes, const char *what) {
    return twi_get(context->memory, out, bytes, 1, what);
}

static void described_put(tw_context *context, void *memory) { twi_put(context->memory, memory); }

static tw_status described_copy(tw_context *context, void *to, const void *from, size_t bytes) {
    (void)context;
    if (bytes) memcpy(to, from, bytes);
    return TW_OK;
}

/* No function that runs: a context that only plans never calls them. */
const twi_backend twi_backend_cuda_described = {
    .name = "cuda",
    .host_memory = false,
    .in_flight = TWI_IN_FLIGHT_MAX,
    .chunked = false,
    .open = described_open,
    .close = described_close,
    .describe = twi_cuda_describe_planned,
    .workers = twi_cuda_workers,
    .get = described_get,
    .put = described_put,
    .copy_in = described_copy,
    .copy_out = described_copy,
    .get_host = described_get,
    .put_host = described_put,
    .choose = twi_cuda_choose,
    .release = twi_cuda_release,
};

/* A card as a back end where the CUDA back end itself cannot be opened: steps are planned, and none has an
 * implementation. How much workspace the libraries would take is not known then, so the most that they are allowed is
 * planned, and said to be. */
#include "cards.h"
#include "planning.h"

#include <stdio.h>

static tw_status estimated_open(tw_context *context, void **out) {
    *out = NULL;
    snprintf(context->machine, sizeof context->machine, "%.60s, without its libraries", context->card->name);
    return TW_OK;
}

static void estimated_close(tw_context *context, void *device) { (void)context, (void)device; }

static tw_status estimated_describe(const tw_context *context, tw_device_info *out) {
    const tw_card *card = context->card;
    out->ordinal = -1;
    out->capability_major = card->capability / 10;
    out->capability_minor = card->capability % 10;
    out->processors = card->processors;
    out->memory_bytes = out->free_bytes = card->memory_bytes;
    snprintf(out->name, sizeof out->name, "%s", card->name);
    snprintf(out->code, sizeof out->code, "none: planned without the CUDA back end");
    return TW_OK;
}

static bool estimated_computes_in(const tw_context *context, tw_precision precision) {
    return twi_card_computes_in(context->card->capability, precision);
}

static int estimated_workers(const tw_context *context) {
    (void)context;
    return 1;
}

static size_t most_workspace(const tw_card *card, const twi_kernel *kernel, const twi_call *call) {
    if (kernel->workspace) return kernel->workspace(call); /* a user's own */
    if (!kernel->flops) return 0;
    for (int o = 0; o < call->operand_count; o++) /* an image makes it a convolution */
        if (call->operand[o].shape.rank == 4) return twi_card_convolution_workspace(card->memory_bytes);
    return TWI_CARD_PRODUCT_WORKSPACE;
}

static tw_status estimated_choose(tw_context *context, const twi_kernel *kernel, const twi_call *main,
                                  const twi_call *tail, size_t workspace_limit, twi_choice *out) {
    (void)tail;
    const size_t most = most_workspace(context->card, kernel, main);
    const bool own = kernel->workspace != NULL; /* it cannot do with less */
    *out = (twi_choice){.implementation = "estimated",
                        .worker_bytes = most > workspace_limit && !own ? workspace_limit : most};
    return TW_OK;
}

static void estimated_release(tw_context *context, twi_choice *choice) {
    (void)context;
    *choice = (twi_choice){0};
}

/* Memory and runs are those of planning.c. */
const twi_backend twi_backend_estimated = {
    .name = "cuda",
    .host_memory = false,
    .in_flight = TWI_IN_FLIGHT_MAX,
    .chunked = false,
    .open = estimated_open,
    .close = estimated_close,
    .describe = estimated_describe,
    .computes_in = estimated_computes_in,
    .workers = estimated_workers,
    .choose = estimated_choose,
    .release = estimated_release,
};

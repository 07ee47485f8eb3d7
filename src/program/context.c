/* Opening a context on a device: chooses the back end by the device's name. */
#include "backend/cards.h"
#include "backend/cuda_plugin.h"
#include "backend/planning.h"
#include "base/options.h"
#include "ops/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN "plan:" /* builds and plans for the device behind it, and refuses to run */
#define CUDA "cuda:"

static bool begins(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static tw_status open_on(tw_context *context, const twi_backend *backend, const char *name) {
    snprintf(context->device_name, sizeof context->device_name, "%s%s", context->plans_only ? PLAN : "", name);
    context->backend = backend;
    return backend->open(context, &context->device);
}

/* Is it the name of a GPU? "cuda" is the first one. */
static bool names_gpu(const char *name, int *ordinal) {
    if (strcmp(name, "cuda") == 0) name = "cuda:0";
    if (!begins(name, CUDA)) return false;
    const char *number = name + strlen(CUDA);
    size_t digits = strspn(number, "0123456789");
    if (digits < 1 || digits > 4 || number[digits]) return false;
    *ordinal = (int)strtol(number, NULL, 10);
    return true;
}

static tw_status open_gpu(tw_context *context, int ordinal) {
    twi_cuda_driver driver;
    const twi_backend *backend;
    char name[24];
    TWI_TRY(twi_cuda_ask_driver(&driver));
    if (ordinal >= driver.devices)
        return TWI_FAIL(TW_ERROR_DEVICE,
                        "cuda: there is no device %d: the driver shows %d, numbered from 0; look at nvidia-smi, and at "
                        "CUDA_VISIBLE_DEVICES",
                        ordinal, driver.devices);
    TWI_TRY(twi_cuda_load(&backend, false));
    context->ordinal = ordinal;
    snprintf(name, sizeof name, CUDA "%d", ordinal);
    return open_on(context, backend, name);
}

/* The best there is. What keeps a GPU from being used is told, and is no failure. */
static tw_status open_best(tw_context *context) {
    if (open_gpu(context, 0) == TW_OK) return TW_OK;
    twi_log_line(&context->log, TW_LOG_INFO, "device: cpu, because %s", tw_last_error());
    tw_clear_error();
    return open_on(context, &twi_backend_cpu, "cpu");
}

/* ---- to plan only ---- */

/* A card that need not be here. Without the CUDA back end, or the libraries that it asks, what they would take is
 * estimated. */
static tw_status open_card(tw_context *context, const tw_card *card) {
    const twi_backend *backend;
    tw_card *own;
    TWI_TRY(twi_get(context->memory, &own, 1, sizeof *own, "card"));
    *own = *card;
    context->card = own;
    tw_status status = twi_cuda_load(&backend, true);
    if (status == TW_OK) status = open_on(context, backend, card->key);
    if (status == TW_OK || status == TW_ERROR_OUT_OF_MEMORY) return status;
    twi_log_line(&context->log, TW_LOG_INFO, "%s: workspaces are estimated, because %s", context->device_name,
                 tw_last_error());
    tw_clear_error();
    return open_on(context, &twi_backend_estimated, card->key);
}

static tw_status open_known_card(tw_context *context, const char *key) {
    tw_card card = TW_CARD_INIT;
    if (tw_card_find(&card, key))
        return TWI_FAIL(TW_ERROR_DEVICE, "tw_context_create: %s; \"" PLAN "\" also takes cpu, auto and cuda:0",
                        tw_last_error());
    return open_card(context, &card);
}

static tw_status open_real(tw_context *context, const char *wanted, bool *known) {
    int ordinal;
    *known = true;
    if (strcmp(wanted, "cpu") == 0) return open_on(context, &twi_backend_cpu, wanted);
    if (strcmp(wanted, "auto") == 0) return open_best(context);
    if (names_gpu(wanted, &ordinal)) return open_gpu(context, ordinal);
    *known = false;
    return TW_OK;
}

/* The device is opened as ever, where it is here; its memory is only counted from then on. */
static tw_status open_to_plan(tw_context *context, const char *wanted, const tw_card *card) {
    bool known = false;
    context->plans_only = true;
    if (card)
        TWI_TRY(open_card(context, card));
    else
        TWI_TRY(open_real(context, wanted, &known));
    if (!card && !known) TWI_TRY(open_known_card(context, wanted));
    const twi_backend *opened = context->backend;
    tw_status status = twi_planning_open(context, opened);
    if (status) opened->close(context, context->device);
    return status;
}

static tw_status open_device(tw_context *context, const char *device, const tw_card *card) {
    bool known;
    if (card) return open_to_plan(context, card->key, card);
    if (begins(device, PLAN)) return open_to_plan(context, device + strlen(PLAN), NULL);
    TWI_TRY(open_real(context, device, &known));
    if (known) return TW_OK;
    return TWI_FAIL(TW_ERROR_DEVICE,
                    "tw_context_create: there is no device '%s'; write \"auto\", \"cpu\", \"cuda:0\", or \"plan:cpu\" "
                    "or \"plan:h200\" "
                    "to plan without running",
                    device);
}

static void drop(tw_context *context) {
    twi_planning_close(context);
    twi_put(context->memory, (void *)context->card);
    twi_registry_close(context);
    twi_context_close(context);
}

static tw_status create(tw_context **out, const char *device, const tw_card *card, const tw_context_options *options) {
    tw_context *context;
    TWI_TRY(twi_context_open(&context, options));
    tw_status status = twi_registry_open(context);
    if (status == TW_OK) status = open_device(context, device, card);
    if (status) {
        drop(context);
        return status;
    }
    *out = context;
    return TW_OK;
}

tw_status tw_context_create(tw_context **out, const char *device, const tw_context_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_context_create: out is NULL");
    *out = NULL;
    if (!device) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_context_create: device is NULL; pass \"auto\" or \"cpu\"");
    return create(out, device, NULL, options);
}

tw_status tw_context_create_for_card(tw_context **out, const tw_card *card, const tw_context_options *options) {
    static const char what[] = "tw_context_create_for_card";
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: out is NULL", what);
    *out = NULL;
    if (!card) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: card is NULL", what);
    tw_card described;
    TWI_TRY(twi_options_read(&described, sizeof described, card, what));
    if (!memchr(described.key, 0, sizeof described.key) || !memchr(described.name, 0, sizeof described.name))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: key or name does not end within its field", what);
    if (!*described.key) snprintf(described.key, sizeof described.key, "card");
    if (described.capability < 75)
        return TWI_FAIL(
            TW_ERROR_ARGUMENT,
            "%s: '%s' has capability %d; give 75 for compute capability 7.5, the oldest that is computed on, "
            "or newer",
            what, described.name, described.capability);
    if (described.processors < 1 || !described.memory_bytes)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: '%s' has no %s", what, described.name,
                        described.processors < 1 ? "processors" : "memory");
    return create(out, "", &described, options);
}

void tw_context_destroy(tw_context *context) {
    if (!context) return;
    context->backend->close(context, context->device);
    drop(context);
}

tw_status tw_context_get_device_info(const tw_context *context, tw_device_info *out) {
    static const char what[] = "tw_context_get_device_info";
    if (!context || !out) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", what, context ? "out" : "context");
    tw_device_info info = {.backend = context->backend->name, .ordinal = context->ordinal};
    TWI_TRY(context->backend->describe(context, &info));
    return twi_options_write(out, &info, sizeof info, what);
}

tw_status tw_context_measure(tw_context *context, int threads, tw_ceilings *out) {
    static const char what[] = "tw_context_measure";
    if (!context || !out) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", what, context ? "out" : "context");
    const int most = tw_context_get_threads(context);
    if (threads < 0 || threads > most)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: threads is %d, expected 0 (all) to %d, the context's", what, threads,
                        most);
    if (!context->backend->measure)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s: '%s' is not measured, only the CPU is", what, context->device_name);
    tw_ceilings ceilings = {.threads = threads ? threads : most};
    TWI_TRY(context->backend->measure(context, ceilings.threads, &ceilings));
    return twi_options_write(out, &ceilings, sizeof ceilings, what);
}

tw_status tw_card_of_context(tw_card *out, const tw_context *context) {
    static const char what[] = "tw_card_of_context";
    if (!context || !out) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", what, context ? "out" : "context");
    if (context->card) return twi_options_write(out, context->card, sizeof *context->card, what);
    tw_card card = TW_CARD_INIT;
    tw_device_info info = TW_DEVICE_INFO_INIT;
    TWI_TRY(tw_context_get_device_info(context, &info));
    snprintf(card.key, sizeof card.key, "%s", info.backend);
    snprintf(card.name, sizeof card.name, "%.63s", info.name);
    card.capability = 10 * info.capability_major + info.capability_minor;
    card.processors = info.processors;
    card.memory_bytes = info.memory_bytes;
    if (card.capability) twi_card_recognise(&card);
    return twi_options_write(out, &card, sizeof card, what);
}

tw_memory_stats tw_context_get_device_memory(const tw_context *context) {
    return context && context->backend->get_memory ? context->backend->get_memory(context)
                                                   : tw_context_get_memory(context);
}

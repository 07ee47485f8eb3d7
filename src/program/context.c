/* Opening a context on a device: chooses the back end by the device's name. */
#include "backend/cuda_plugin.h"
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

/* A card that need not be here. */
static tw_status open_card(tw_context *context, const char *key) {
    const twi_backend *backend;
    TWI_TRY(twi_cuda_load(&backend, true));
    return open_on(context, backend, key);
}

static tw_status open_device(tw_context *context, const char *device) {
    context->plans_only = begins(device, PLAN);
    int ordinal;
    const char *wanted = context->plans_only ? device + strlen(PLAN) : device;
    if (strcmp(wanted, "cpu") == 0) return open_on(context, &twi_backend_cpu, wanted);
    if (context->plans_only) return open_card(context, wanted);
    if (strcmp(wanted, "auto") == 0) return open_best(context);
    if (names_gpu(wanted, &ordinal)) return open_gpu(context, ordinal);
    return TWI_FAIL(TW_ERROR_DEVICE,
                    "tw_context_create: there is no device '%s'; write \"auto\", \"cpu\", \"cuda:0\", or \"plan:cpu\" "
                    "or \"plan:h200\" "
                    "to plan without running",
                    device);
}

tw_status tw_context_create(tw_context **out, const char *device, const tw_context_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_context_create: out is NULL");
    *out = NULL;
    if (!device) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_context_create: device is NULL; pass \"auto\" or \"cpu\"");
    tw_context *context;
    TWI_TRY(twi_context_open(&context, options));
    tw_status status = twi_registry_open(context);
    if (status == TW_OK) status = open_device(context, device);
    if (status) {
        twi_registry_close(context);
        twi_context_close(context);
        return status;
    }
    *out = context;
    return TW_OK;
}

void tw_context_destroy(tw_context *context) {
    if (!context) return;
    context->backend->close(context, context->device);
    twi_registry_close(context);
    twi_context_close(context);
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

tw_memory_stats tw_context_get_device_memory(const tw_context *context) {
    return context && context->backend->get_memory ? context->backend->get_memory(context)
                                                   : tw_context_get_memory(context);
}

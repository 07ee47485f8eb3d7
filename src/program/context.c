/* Opening a context on a device: chooses the back end by the device's name. */
#include "backend/cuda_plugin.h"
#include "base/options.h"
#include "ops/op.h"

#include <stdio.h>
#include <string.h>

#define PLAN "plan:" /* builds and plans for the device behind it, and refuses to run */

static bool begins(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static tw_status open_on(tw_context *context, const twi_backend *backend, const char *name) {
    snprintf(context->device_name, sizeof context->device_name, "%s%s", context->plans_only ? PLAN : "", name);
    context->backend = backend;
    return backend->open(context, &context->device);
}

static tw_status open_cuda(tw_context *context, const char *name) {
    twi_cuda_driver driver;
    const twi_backend *backend;
    TWI_TRY(twi_cuda_ask_driver(&driver));
    TWI_TRY(twi_cuda_load(&backend));
    return open_on(context, backend, name);
}

/* The best there is. What keeps a GPU from being used is told, and is no failure. */
static tw_status open_best(tw_context *context) {
    if (open_cuda(context, "cuda:0") == TW_OK) return TW_OK;
    twi_log_line(&context->log, TW_LOG_INFO, "device: cpu, because %s", tw_last_error());
    tw_clear_error();
    return open_on(context, &twi_backend_cpu, "cpu");
}

static tw_status open_device(tw_context *context, const char *device) {
    context->plans_only = begins(device, PLAN);
    const char *wanted = context->plans_only ? device + strlen(PLAN) : device;
    if (strcmp(wanted, "cpu") == 0) return open_on(context, &twi_backend_cpu, wanted);
    if (!context->plans_only && strcmp(wanted, "auto") == 0) return open_best(context);
    if (!context->plans_only && (strcmp(wanted, "cuda") == 0 || begins(wanted, "cuda:")))
        return open_cuda(context, wanted);
    return TWI_FAIL(
        TW_ERROR_DEVICE,
        "tw_context_create: there is no device '%s'; write \"auto\", \"cpu\", \"cuda:0\", or \"plan:cpu\" to plan "
        "without running",
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

tw_memory_stats tw_context_get_device_memory(const tw_context *context) {
    return context && context->backend->get_memory ? context->backend->get_memory(context)
                                                   : tw_context_get_memory(context);
}

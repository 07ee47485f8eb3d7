/* Opening a context on a device: chooses the back end by the device's name. */
#include "backend/backend.h"
#include "base/options.h"
#include "ops/op.h"

#include <stdio.h>
#include <string.h>

typedef struct device_name {
    const char *name;
    const twi_backend *backend;
} device_name;

static const device_name devices[] = {{"cpu", &twi_backend_cpu}};

static tw_status open_device(tw_context *context, const char *device) {
    static const char plan[] = "plan:"; /* builds and plans for the device behind it, and refuses to run */
    context->plans_only = strncmp(device, plan, sizeof plan - 1) == 0;
    const char *wanted = context->plans_only ? device + sizeof plan - 1 : device;
    if (strcmp(wanted, "auto") == 0) {
        wanted = devices[0].name;
        twi_log_line(&context->log, TW_LOG_INFO, "device: cpu (this build has no other back end)");
    }
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        if (strcmp(wanted, devices[i].name) != 0) continue;
        context->backend = devices[i].backend;
        context->registry = &twi_registry_builtin;
        snprintf(context->device_name, sizeof context->device_name, "%s%s", context->plans_only ? plan : "",
                 devices[i].name);
        return context->backend->open(context, &context->device);
    }
    return TWI_FAIL(TW_ERROR_DEVICE,
                    "tw_context_create: there is no device '%s' here; this build knows \"auto\" and \"cpu\", and "
                    "\"plan:cpu\" to plan without running",
                    device);
}

tw_status tw_context_create(tw_context **out, const char *device, const tw_context_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_context_create: out is NULL");
    *out = NULL;
    if (!device) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_context_create: device is NULL; pass \"auto\" or \"cpu\"");
    tw_context *context;
    TWI_TRY(twi_context_open(&context, options));
    tw_status status = open_device(context, device);
    if (status) {
        twi_context_close(context);
        return status;
    }
    *out = context;
    return TW_OK;
}

void tw_context_destroy(tw_context *context) {
    if (!context) return;
    context->backend->close(context, context->device);
    twi_put(context->memory, context->own_registry);
    twi_context_close(context);
}

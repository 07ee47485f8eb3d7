/* Asks the families for an implementation of a step, in order of preference. */
#include "cuda_choose.h"

static const twi_cuda_family *const families[] = {&twi_cuda_user, &twi_cuda_cudnn, &twi_cuda_cublaslt,
                                                  &twi_cuda_kernels};

static tw_status choose_family(twi_cuda_site *site, const twi_call *call) {
    const twi_log *log = &site->device->context->log;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        site->family = families[i];
        site->name = families[i]->name;
        tw_status status = families[i]->prepare(site, call);
        if (status != TW_ERROR_UNSUPPORTED) return status;
        twi_log_line(log, TW_LOG_DEBUG, "cuda: %s not by %s: %s", site->kernel->name, families[i]->name,
                     tw_last_error());
    }
    return TWI_FAIL(TW_ERROR_UNSUPPORTED, "op kernel '%s' has no implementation on the back end 'cuda' (%s)",
                    site->kernel->name, tw_last_error());
}

tw_status twi_cuda_choose(tw_context *context, const twi_kernel *kernel, const twi_call *main, const twi_call *tail,
                          size_t workspace_limit, twi_choice *out) {
    (void)tail; /* the batch is not cut */
    *out = (twi_choice){0};
    twi_cuda_site *site;
    twi_cuda_device *device = twi_cuda_of(context);
    if (device->ordinal >= 0) TWI_TRY(twi_cuda_enter(device)); /* else it is described */
    TWI_TRY(twi_get(context->memory, &site, 1, sizeof *site, "implementation of a step"));
    site->kernel = kernel;
    site->device = device;
    site->workspace_limit = workspace_limit;
    tw_status status = choose_family(site, main);
    if (status) {
        twi_put(context->memory, site);
        return status;
    }
    out->implementation = site->name;
    out->state = site;
    out->worker_bytes = site->workspace_bytes;
    return TW_OK;
}

void twi_cuda_release(tw_context *context, twi_choice *choice) {
    twi_cuda_site *site = choice->state;
    if (site && site->family->release) site->family->release(site);
    twi_put(context->memory, site);
    *choice = (twi_choice){0};
}

int twi_cuda_workers(const tw_context *context) {
    (void)context;
    return 1; /* steps follow each other on one stream and share one workspace */
}

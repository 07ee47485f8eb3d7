/* The family of our own kernels: rows of the tables in kernels/. The last one asked, so a refusal here is final. */
#include "kernel_table.h"
#include "cuda.h"

#include <string.h>

static const char *check_types(const twi_call *call) {
    int real = -1;
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand *operand = &call->operand[o];
        const uint8_t store = call->kernel->operand[o].store;
        if (operand->shape.rank == 0 || (store != TWI_REAL && (store != TWI_GRADIENT || operand->store != TWI_REAL)))
            continue;
        if (operand->dtype != TW_F32 && operand->dtype != TW_F16 && operand->dtype != TW_BF16)
            return "kernels compute on f32, f16 and bf16";
        if (real >= 0 && operand->dtype != real) return "operands of different types";
        real = operand->dtype;
    }
    return NULL;
}

static tw_status prepare(twi_cuda_site *site, const twi_call *call) {
    const twk_entry *entry = twi_cuda_find_entry(site->kernel->name);
    if (!entry) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "there is no kernel of this name");
    const char *reason = check_types(call);
    if (!reason && entry->refuse) reason = entry->refuse(call);
    if (reason) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s", reason);
    site->state = (void *)entry; /* static; nothing to release */
    site->workspace_bytes = entry->workspace ? entry->workspace(call) : 0;
    return TW_OK;
}

static tw_status launch(const twi_cuda_site *site, const twi_call *call, void *workspace, cudaStream_t stream) {
    const twk_entry *entry = site->state;
    const twk_launch launch = {.stream = stream, .workspace = workspace, .processors = site->device->processors};
    return twi_cuda_check(site->device, entry->run(call, &launch), site->kernel->name);
}

const twi_cuda_family twi_cuda_kernels = {.name = "kernel", .prepare = prepare, .launch = launch};

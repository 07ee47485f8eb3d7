/* The family of a user's ops: their kernels bring a function that enqueues on the stream. */
#include "cuda.h"

static tw_status prepare(twi_cuda_site *site, const twi_call *call) {
    const twi_kernel *kernel = site->kernel;
    if (!kernel->enqueue)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s",
                        kernel->user ? "the op was registered without a function for CUDA" : "no op of a user's");
    site->workspace_bytes = kernel->workspace ? kernel->workspace(call) : 0;
    return TW_OK;
}

/* Sums over the batch are added to, so they begin at 0. */
static tw_status clear_sums(const twi_cuda_site *site, const twi_call *call, cudaStream_t stream) {
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand_rule *rule = &site->kernel->operand[o];
        const twi_operand *operand = &call->operand[o];
        if (rule->access != TWI_WRITE || rule->reach == TWI_BATCHED || !operand->data) continue;
        const size_t bytes = (size_t)twi_shape_count(&operand->shape) * sizeof(float);
        TWI_CUDA(site->device, cudaMemsetAsync(operand->data, 0, bytes, stream));
    }
    return TW_OK;
}

static tw_status launch(const twi_cuda_site *site, const twi_call *call, void *workspace, cudaStream_t stream) {
    TWI_TRY(clear_sums(site, call, stream));
    site->kernel->enqueue(call, workspace, stream);
    return twi_cuda_check(site->device, cudaGetLastError(), "a user's op");
}

const twi_cuda_family twi_cuda_user = {.name = "user", .prepare = prepare, .launch = launch};

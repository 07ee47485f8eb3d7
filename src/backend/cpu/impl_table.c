/* The families of implementations in order of preference. What each member takes is left to its own refuse. */
#include "cpu.h"

#include <string.h>

static const twi_cpu_impl *const family[] = {
    twi_cpu_inside_impls,  twi_cpu_pixels_impls,  twi_cpu_winograd_impls, twi_cpu_onednn_impls,
    twi_cpu_winners_impls, twi_cpu_windows_impls, twi_cpu_lanes_impls,    twi_cpu_channelwise_impls,
    twi_cpu_gemm_impls,    twi_cpu_patches_impls, twi_cpu_features_impls, twi_cpu_norm_impls,
    twi_cpu_point_impls,   twi_cpu_fold_impls,
};

static bool is_turned(const twi_call *call) {
    for (int o = 0; o < call->operand_count; o++)
        if (call->operand[o].lanes) return true;
    return false;
}

static const char *refusal_of(const twi_cpu_impl *impl, const twi_call *call, twi_isa isa) {
    if (!impl->turned && is_turned(call)) return "samples of an operand lie side by side";
    return impl->refuse ? impl->refuse(call, isa) : NULL;
}

const twi_cpu_impl *twi_cpu_find_impl_after(const twi_cpu_impl *after, const char *kernel, const twi_call *call,
                                            twi_isa isa, const char **reason) {
    bool behind = !after;
    if (isa == TWI_ISA_NONE) {
        if (reason) *reason = "the specification was asked for";
        return NULL;
    }
    for (size_t f = 0; f < sizeof family / sizeof family[0]; f++)
        for (const twi_cpu_impl *impl = family[f]; impl->kernel; impl++) {
            if (behind && strcmp(impl->kernel, kernel) == 0) {
                const char *refusal = refusal_of(impl, call, isa);
                if (!refusal) return impl;
                if (reason) *reason = refusal;
            }
            if (impl == after) behind = true;
        }
    return NULL;
}

const twi_cpu_impl *twi_cpu_find_impl(const char *kernel, const twi_call *call, twi_isa isa, const char **reason) {
    return twi_cpu_find_impl_after(NULL, kernel, call, isa, reason);
}

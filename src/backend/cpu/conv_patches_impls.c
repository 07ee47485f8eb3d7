/* Any convolution by products of its patches (conv_patches.h): which calls are taken, and what they become. */
#include "conv_patches.h"
#include "gemm.h"
#include "backend/attrs.h"
#include "base/memory.h"

static const char *refuse_conv(const twi_call *call, twi_isa isa) {
    (void)isa;
    return twi_conv_refuse_layout(call);
}

static twi_conv_shape forward_shape(const twi_call *call) {
    return twi_conv_shape_of(call, 0, 1, call->operand_count - 1);
}
static twi_conv_shape backward_data_shape(const twi_call *call) { return twi_conv_shape_of(call, 2, 1, 0); }
static twi_conv_shape backward_weights_shape(const twi_call *call) { return twi_conv_shape_of(call, 0, 2, 1); }

static tw_status prepare_conv(twi_cpu_site *site, twi_conv_shape shape) {
    size_t floats;
    TWI_TRY(twi_patches_scratch(&shape, &floats));
    return twi_mul_size(&site->worker_bytes, floats, sizeof(float), "convolution patches");
}
static tw_status prepare_forward(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return prepare_conv(site, forward_shape(main));
}
static tw_status prepare_backward_data(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return prepare_conv(site, backward_data_shape(main));
}
static tw_status prepare_backward_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return prepare_conv(site, backward_weights_shape(main));
}

static void run_conv_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                             const float *bias, bool relu) {
    twi_conv_shape shape = forward_shape(call);
    twi_patches_forward(twi_gemm_for(site->isa), &shape, call->operand[0].data, call->operand[1].data, bias, relu,
                        call->operand[call->operand_count - 1].data, workspace->scratch);
}
static void conv_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_conv_forward(site, call, workspace, NULL, false);
}
static void conv_forward_bias(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_conv_forward(site, call, workspace, call->operand[2].data, false);
}
static void conv_forward_bias_relu(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_conv_forward(site, call, workspace, call->operand[2].data, true);
}

static void conv_backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_conv_shape shape = backward_data_shape(call);
    twi_patches_backward_data(twi_gemm_for(site->isa), &shape, call->operand[0].data, call->operand[1].data,
                              call->operand[2].data, workspace->scratch);
}

static void conv_backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_conv_shape shape = backward_weights_shape(call);
    twi_patches_backward_weights(twi_gemm_for(site->isa), &shape, call->operand[0].data, call->operand[1].data,
                                 !call->first, call->operand[2].data, workspace->scratch);
}

static tw_status prepare_backward_weights_ranged(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const twi_conv_shape shape = backward_weights_shape(main);
    size_t floats;
    TWI_TRY(twi_patches_part_scratch(&shape, &floats));
    return twi_mul_size(&site->worker_bytes, floats, sizeof(float), "convolution patches");
}
static void conv_backward_weights_ranged(const twi_cpu_site *site, const twi_call *call,
                                         const twi_cpu_workspace *workspace) {
    const twi_conv_shape shape = backward_weights_shape(call);
    for (int64_t i = call->begin; i < call->end; i++) {
        const twi_conv2d_part part = twi_conv2d_part_at(call->operand[2].shape.dim, i);
        twi_patches_backward_weights_part(twi_gemm_for(site->isa), &shape, &part, call->operand[0].data,
                                          call->operand[1].data, call->operand[2].data, workspace->scratch);
    }
}

/* ---- table ---- */

#define CONV(kernel_name, prepare_fn, run_fn)                                                             \
    {                                                                                                     \
        .kernel = "conv2d." kernel_name, .name = "patches", .refuse = refuse_conv, .prepare = prepare_fn, \
        .run = run_fn, .describe = twi_conv_describe                                                      \
    }

const twi_cpu_impl twi_cpu_patches_impls[] = {
    CONV("forward", prepare_forward, conv_forward),
    CONV("forward_bias", prepare_forward, conv_forward_bias),
    CONV("forward_bias_relu", prepare_forward, conv_forward_bias_relu),
    CONV("backward_data", prepare_backward_data, conv_backward_data),
    CONV("backward_weights", prepare_backward_weights, conv_backward_weights),
    CONV("backward_weights_ranged", prepare_backward_weights_ranged, conv_backward_weights_ranged),
    {.kernel = NULL},
};

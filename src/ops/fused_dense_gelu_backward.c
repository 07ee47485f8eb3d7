/* The gradient that a dense layer hands back, on its way through the gelu of the tanh form and the bias before the
 * layer: g = dense'(dy, w) gelu'(z); db[i] = sum of g
 *
 * Saves a pass over g for each. Made by the fusion pass alone. */
#include "dense_backward.h"

static void run_backward(const twi_call *call) {
    twi_run_dense_backward(call, &TWI_NAME(twi_kernel_bias_gelu_backward));
}

static const twi_kernel kernel_backward = TWI_DENSE_BACKWARD_KERNEL("dense.backward_data_gelu", "z", run_backward);

static const twi_kernel *const kernels[] = {&kernel_backward, NULL};

static const twi_case cases[] = TWI_DENSE_BACKWARD_CASES;

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    const twi_gelu_attrs attrs = {.tanh = true};
    tw_value *z = twi_case_bias_relu(builder, twi_case_dense_backward_x(builder, c), false);
    return twi_case_dense_backward(builder, c, builder->node(builder, "gelu", "gelu", 1, &z, &attrs));
}

const twi_op TWI_NAME(twi_op_dense_gelu_backward) = {
    .name = "dense_gelu_backward",
    .formula = "g[n,i] = sum over o of dy[n,o] * w[o,i] * gelu'(z[n,i]); db[i] = sum of g",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "dense.backward_data_gelu",
};

/* The gradient of a dense layer's weight, and the update of that weight by stochastic gradient descent at once, for a
 * range of its rows:
 *
 *   g[o,i] = sum over n of dy[n,o] * x[n,i], then w[o,i] and its momentum as in op_sgd.c
 *
 * The gradient is not in memory. Put in the place of the two by a pass (src/program/merge.c) alone. */
#include "kernels.h"

/* ---- specification ---- */

enum { X, DY, W, MOMENTUM };

static void run_merged(const twi_call *call) {
    const twi_operand *x = &call->operand[X], *dy = &call->operand[DY], *w = &call->operand[W];
    const twi_update_attrs *attrs = call->attrs;
    if (twi_run_refused(call->control)) return;
    tw_real *param = w->data, *buffer = call->operand[MOMENTUM].data; /* NULL: no momentum */
    const tw_real rate = (tw_real)call->control->learning_rate, factor = (tw_real)call->control->guard.factor,
                  momentum = attrs->momentum, decay = attrs->segment[0].weight_decay;
    for (int64_t o = call->begin; o < call->end; o++)
        for (int64_t i = 0; i < w->shape.dim[1]; i++) {
            tw_real sum = 0;
            for (int64_t n = 0; n < x->shape.dim[0]; n++)
                sum += ((const tw_real *)dy->data)[n * dy->stride[0] + o * dy->stride[1]] *
                       ((const tw_real *)x->data)[n * x->stride[0] + i * x->stride[1]];
            const int64_t at = o * w->stride[0] + i * w->stride[1];
            tw_real g = factor * sum + decay * param[at];
            if (buffer) {
                buffer[at] = momentum * buffer[at] + g;
                g = attrs->nesterov ? g + momentum * buffer[at] : buffer[at];
            }
            param[at] -= rate * g;
        }
}

/* ---- kernels ---- */

static int64_t rows(const twi_call *call) { return call->operand[W].shape.dim[0]; }

static double flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[W].shape) * (double)call->operand[X].shape.dim[0];
}

static const twi_kernel kernel_merged = {
    .name = "dense.backward_weights_sgd",
    .operand_count = 4,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_RANGED, 0},
                {"w", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0},
                {"momentum", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = rows,
    .grain = TWI_DENSE_GRAIN,
    .flops = flops,
    .control = TWI_CONTROL_READ | TWI_CONTROL_FAULTS,
    .run = run_merged,
};

static const twi_kernel *const kernels[] = {&kernel_merged, NULL};

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_sgd) = {
    .name = "dense_sgd",
    .formula = "g = dy^T x; b = momentum * b + (factor * g + weight_decay * w); w = w - rate * b",
    .attr_size = sizeof(twi_update_attrs),
    .kernels = kernels,
    .asked = true,
};

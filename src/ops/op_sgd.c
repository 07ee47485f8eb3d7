/* Stochastic gradient descent with momentum, over a run of the flat parameter arena.
 *
 *   g = factor * gradient + weight_decay * w
 *   momentum buffer b = momentum * b + g;  d = nesterov ? g + momentum * b : b;  without momentum d = g
 *   w = w - learning_rate * d
 *
 * The buffer holds gradients, not steps: after a drop of the learning rate the very next step is short (the form
 * PyTorch uses; the other form, which keeps steps in the buffer, differs there). It starts as 0, so the first step is
 * the plain gradient. Does nothing in a run that has a fault or
 * is refused; factor is the guard's (op_guard.c).
 * Gradients may be kept in half precision, segment by segment; w itself is f32, and rounded once more to the copy that
 * steps in half precision read.
 * Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

enum { PARAM, GRAD, MOMENTUM, PARAM_HALF, GRAD_HALF };

static int64_t shares(const twi_call *call) { return twi_update_shares(twi_call_elements(call)); }

static void update_run(const twi_call *call) {
    const twi_update_attrs *attrs = call->attrs;
    if (twi_run_refused(call->control)) return;
    tw_real *param = TWI_DATA(tw_real, call, PARAM),
            *buffer = TWI_DATA(tw_real, call, MOMENTUM); /* NULL: no momentum */
    tw_real rate = (tw_real)call->control->learning_rate, momentum = attrs->momentum;
    const tw_real factor = (tw_real)call->control->guard.factor;
    for (int32_t s = 0; s < attrs->segment_count; s++) {
        twi_update_segment part = twi_update_share(&attrs->segment[s], call->begin, call->end, shares(call));
        for (int64_t i = part.begin; i < part.end; i++) {
            tw_real g = factor * twi_gradient_at(call, GRAD, GRAD_HALF, &part, i) + part.weight_decay * param[i];
            if (buffer) {
                buffer[i] = momentum * buffer[i] + g;
                g = attrs->nesterov ? g + momentum * buffer[i] : buffer[i];
            }
            param[i] -= rate * g;
            twi_half_put(call, PARAM_HALF, i, param[i]);
        }
    }
}

/* ---- kernels ---- */

static const twi_kernel update = {
    .name = "sgd.update",
    .operand_count = 5,
    .operand = {{"param", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0},
                {"grad", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"momentum", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0},
                {"param_half", TWI_UPDATE, TWI_REAL, TWI_WHOLE, 0},
                {"grad_half", TWI_READ, TWI_REAL, TWI_WHOLE, 0}},
    .half_of = {[PARAM_HALF] = 1 + PARAM, [GRAD_HALF] = 1 + GRAD},
    .split = TWI_BY_RANGE,
    .range = shares,
    .control = TWI_CONTROL_READ | TWI_CONTROL_FAULTS,
    .run = update_run,
};

/* ---- record: appended to a program by its update pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&update, NULL};

const twi_op TWI_NAME(twi_op_sgd) = {
    .name = "sgd",
    .formula = "b = momentum * b + (factor * grad + weight_decay * w); w = w - rate * b",
    .attr_size = sizeof(twi_update_attrs),
    .kernels = kernels,
};

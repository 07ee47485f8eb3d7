/* AdamW, over a run of the flat parameter arena; t counts committed updates from 1.
 *
 *   g = factor * gradient
 *   m = beta1 * m + (1 - beta1) * g     v = beta2 * v + (1 - beta2) * g^2
 *   w = w * (1 - rate * weight_decay) - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
 *
 * rate is the learning rate. The decay acts on the weight itself and does not pass through the moments; epsilon is
 * added after the bias correction. Does nothing in a run that has a fault or is refused; factor is
 * the guard's (op_guard.c). Gradients in half precision and the
 * copy of w in it: as in op_sgd.c.
 * Source: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019; Kingma, Ba, "Adam", ICLR 2015. */
#include "backend/attrs.h"
#include "kernels.h"

#include <tgmath.h>

/* ---- specification ---- */

enum { PARAM, GRAD, M, V, PARAM_HALF, GRAD_HALF };

static int64_t shares(const twi_call *call) { return twi_update_shares(twi_call_elements(call)); }

static void update_run(const twi_call *call) {
    const twi_update_attrs *attrs = call->attrs;
    if (twi_run_refused(call->control)) return;
    tw_real *param = TWI_DATA(tw_real, call, PARAM), *m = TWI_DATA(tw_real, call, M), *v = TWI_DATA(tw_real, call, V);
    double t = (double)call->control->update + 1, rate = call->control->learning_rate;
    const tw_real factor = (tw_real)call->control->guard.factor;
    tw_real beta1 = attrs->beta1, beta2 = attrs->beta2, epsilon = attrs->epsilon;
    tw_real correction1 = (tw_real)(1 - pow((double)attrs->beta1, t));
    tw_real correction2 = (tw_real)sqrt(1 - pow((double)attrs->beta2, t));
    tw_real step = (tw_real)rate / correction1;
    for (int32_t s = 0; s < attrs->segment_count; s++) {
        twi_update_segment part = twi_update_share(&attrs->segment[s], call->begin, call->end, shares(call));
        tw_real keep = (tw_real)(1 - rate * part.weight_decay);
        for (int64_t i = part.begin; i < part.end; i++) {
            const tw_real g = factor * twi_gradient_at(call, GRAD, GRAD_HALF, &part, i);
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            param[i] = keep * param[i] - step * m[i] / (sqrt(v[i]) / correction2 + epsilon);
            twi_half_put(call, PARAM_HALF, i, param[i]);
        }
    }
}

/* ---- kernels ---- */

static const twi_kernel update = {
    .name = "adamw.update",
    .operand_count = 6,
    .operand = {{"param", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0},
                {"grad", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"m", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0},
                {"v", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0},
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

const twi_op TWI_NAME(twi_op_adamw) = {
    .name = "adamw",
    .formula = "w = w * (1 - rate * weight_decay) - rate * m^ / (sqrt(v^) + epsilon)",
    .attr_size = sizeof(twi_update_attrs),
    .kernels = kernels,
};

/* Where the backward starts: the gradient of the total loss with respect to one loss.
 *
 *   seed = sample_weight * weight [* the guard's loss scale]
 *
 * A loss is a sum over samples; sample_weight, one over the samples of the whole update, makes the gradients those of
 * the mean, however the update is cut into micro-batches. The loss scale keeps small gradients from vanishing in narrow
 * types; the update divides by it. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

static void write_run(const twi_call *call) {
    const twi_loss_seed_attrs *attrs = call->attrs;
    const twi_control *control = call->control;
    TWI_DATA(tw_real, call, 0)
    [0] = (tw_real)(control->sample_weight * attrs->weight * (attrs->scaled ? control->guard.scale : 1));
}

/* ---- kernels ---- */

static const twi_kernel write_seed = {
    .name = "loss_seed.write",
    .operand_count = 1,
    .operand = {{"seed", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .control = TWI_CONTROL_READ,
    .run = write_run,
};

/* ---- record: put before the backward by the lowering pass, never a node of a graph ---- */

static const twi_attr attributes[] = {{"weight", TWI_ATTR_FLOAT, offsetof(twi_loss_seed_attrs, weight), 1}};
static const twi_kernel *const kernels[] = {&write_seed, NULL};

const twi_op TWI_NAME(twi_op_loss_seed) = {
    .name = "loss_seed",
    .formula = "seed = sample_weight * weight, times the loss scale",
    .attrs = attributes,
    .attr_count = sizeof attributes / sizeof *attributes,
    .attr_size = sizeof(twi_loss_seed_attrs),
    .kernels = kernels,
};

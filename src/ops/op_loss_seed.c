/* Where the backward starts: the gradient of the total loss with respect to one loss.
 *
 *   seed = loss_scale * weight
 *
 * A loss is a sum over samples; loss_scale, one over the loss weight of the whole update, makes the gradients those of
 * the mean, however the update is cut into micro-batches. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

static void write_run(const twi_call *call) {
    const twi_loss_seed_attrs *attrs = call->attrs;
    TWI_DATA(tw_real, call, 0)[0] = (tw_real)(call->control->loss_scale * attrs->weight);
}

/* ---- kernels ---- */

static const twi_kernel write_seed = {
    .name = "loss_seed.write",
    .operand_count = 1,
    .operand = {{"seed", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = write_run,
};

/* ---- record: put before the backward by the lowering pass, never a node of a graph ---- */

static const twi_attr attributes[] = {{"weight", TWI_ATTR_FLOAT, offsetof(twi_loss_seed_attrs, weight), 1}};
static const twi_kernel *const kernels[] = {&write_seed, NULL};

const twi_op TWI_NAME(twi_op_loss_seed) = {
    .name = "loss_seed",
    .formula = "seed = loss_scale * weight",
    .attrs = attributes,
    .attr_count = sizeof attributes / sizeof *attributes,
    .attr_size = sizeof(twi_loss_seed_attrs),
    .kernels = kernels,
};

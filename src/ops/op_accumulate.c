/* What a window of batches carries from one to the next, until its update.
 *
 *   gradients: sums = sums + gradient, from 0 in the window's first batch
 *   resume:    current = values in the window's first batch, in the others shadow, as the batch before left it
 *              (running statistics: the values themselves change only with the update, by commit.copy)
 *
 * Which batch of its window a run is stands in the control block, so one program serves them all. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

/* The first batch clears all elements: those that get no gradient here may get one from another program of the window. */
enum { GRADIENTS, SUMS, GRADIENTS_HALF };

static void gradients_run(const twi_call *call) {
    const twi_update_attrs *attrs = call->attrs;
    tw_real *sums = TWI_DATA(tw_real, call, SUMS);
    if (call->control->micro == 0)
        for (int64_t i = call->begin; i < call->end; i++) sums[i] = 0;
    for (int32_t s = 0; s < attrs->segment_count; s++) {
        twi_update_segment part = twi_update_part(attrs->segment[s], call->begin, call->end);
        for (int64_t i = part.begin; i < part.end; i++)
            sums[i] += twi_gradient_at(call, GRADIENTS, GRADIENTS_HALF, &part, i);
    }
}

static void resume_run(const twi_call *call) {
    const tw_real *from = TWI_DATA(const tw_real, call, call->control->micro > 0);
    tw_real *current = TWI_DATA(tw_real, call, 2);
    for (int64_t i = 0; i < twi_call_elements(call); i++) current[i] = from[i];
}

/* ---- kernels ---- */

static const twi_kernel gradients = {
    .name = "accumulate.gradients",
    .operand_count = 3,
    .operand = {{"gradients", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"sums", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0},
                {"gradients_half", TWI_READ, TWI_REAL, TWI_WHOLE, 0}},
    .half_of = {[GRADIENTS_HALF] = 1 + GRADIENTS},
    .split = TWI_BY_RANGE,
    .range = twi_call_elements,
    .grain = 4096,
    .run = gradients_run,
};

static const twi_kernel resume = {
    .name = "accumulate.resume",
    .operand_count = 3,
    .operand = {{"values", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"shadow", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"current", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .run = resume_run,
};

/* ---- record: put into accumulating programs by the lowering pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&gradients, &resume, NULL};

const twi_op TWI_NAME(twi_op_accumulate) = {
    .name = "accumulate",
    .formula = "sums = (first of the window ? 0 : sums) + gradient",
    .attr_size = sizeof(twi_update_attrs),
    .kernels = kernels,
};

/* What a window of batches carries from one to the next, until its update.
 *
 *   gradient: sum = sum + gradient of one parameter, from 0 in the window's first batch; without a gradient it only
 *   begins
 *   resume:   current = values in the window's first batch, in the others shadow, as the batch before left it
 *             (running statistics: the values themselves change only with the update, by commit.copy)
 *
 * Which batch of its window a run is stands in the control block, so one program serves them all. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

enum { SUM, GRADIENT, GRADIENT_HALF };

static void gradient_run(const twi_call *call) {
    const twi_update_segment all = {.half = call->operand[GRADIENT_HALF].data != NULL};
    const bool given = all.half || call->operand[GRADIENT].data;
    tw_real *sum = TWI_DATA(tw_real, call, SUM);
    for (int64_t i = call->begin; i < call->end; i++) {
        if (call->control->micro == 0) sum[i] = 0;
        if (given) sum[i] += twi_gradient_at(call, GRADIENT, GRADIENT_HALF, &all, i);
    }
}

static void resume_run(const twi_call *call) {
    const tw_real *from = TWI_DATA(const tw_real, call, call->control->micro > 0);
    tw_real *current = TWI_DATA(tw_real, call, 2);
    for (int64_t i = 0; i < twi_call_elements(call); i++) current[i] = from[i];
}

/* ---- kernels ---- */

static const twi_kernel gradient = {
    .name = "accumulate.gradient",
    .operand_count = 3,
    .operand = {{"sum", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0},
                {"gradient", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"gradient_half", TWI_READ, TWI_REAL, TWI_WHOLE, 0}},
    .half_of = {[GRADIENT_HALF] = 1 + GRADIENT},
    .split = TWI_BY_RANGE,
    .range = twi_call_elements,
    .grain = 4096,
    .run = gradient_run,
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

/* ---- record: put into accumulating programs by passes, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&gradient, &resume, NULL};

const twi_op TWI_NAME(twi_op_accumulate) = {
    .name = "accumulate",
    .formula = "sum = (first of the window ? 0 : sum) + gradient",
    .kernels = kernels,
};

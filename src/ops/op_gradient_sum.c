/* The gradient of a parameter that several nodes use: the sum of their parts.
 *
 *   sum = a + b
 *
 * Values with a batch axis are added by op_add.c, sample by sample. */
#include "kernels.h"

/* ---- specification ---- */

static void add_run(const twi_call *call) {
    const tw_real *a = TWI_DATA(const tw_real, call, 0), *b = TWI_DATA(const tw_real, call, 1);
    tw_real *sum = TWI_DATA(tw_real, call, 2);
    for (int64_t i = call->begin; i < call->end; i++) sum[i] = a[i] + b[i];
}

/* ---- kernels ---- */

static const twi_kernel add = {
    .name = "gradient_sum.add",
    .operand_count = 3,
    .operand = {{"a", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"b", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"sum", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = twi_call_elements,
    .grain = 4096,
    .run = add_run,
};

/* ---- record: put into the backward by the lowering pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&add, NULL};

const twi_op TWI_NAME(twi_op_gradient_sum) = {
    .name = "gradient_sum",
    .formula = "sum = a + b",
    .kernels = kernels,
};

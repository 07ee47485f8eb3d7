/* Changes of type between steps that compute in different ones.
 *
 *   narrow: y = x rounded to the program's half type, to nearest even; beyond the largest f16 it is infinite
 *   widen:  y = x
 *
 * Here both are copies: on the CPU, halves reach an op's loops as f32 and leave them rounded. */
#include "kernels.h"

/* ---- specification ---- */

static void copy_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *yo = &call->operand[1];
    const tw_real *x = TWI_DATA(const tw_real, call, 0);
    tw_real *y = TWI_DATA(tw_real, call, 1);
    const int64_t elements = twi_sample_count(yo);
    for (int64_t n = 0; n < yo->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++) y[twi_offset(yo, n, i)] = x[twi_offset(xo, n, i)];
}

/* ---- kernels ---- */

static const twi_kernel narrow = {
    .name = "cast.narrow",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_F32, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = copy_run,
};

static const twi_kernel widen = {
    .name = "cast.widen",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_F32, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = copy_run,
};

/* ---- record: put between steps by the precision pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&narrow, &widen, NULL};

const twi_op TWI_NAME(twi_op_cast) = {
    .name = "cast",
    .formula = "y = x, in another type",
    .kernels = kernels,
};

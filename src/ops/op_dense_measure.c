/* The gradient of a dense layer's weight, measured as it is made, for a range of its rows:
 *
 *   dw[o,i] = sum over n of dy[n,o] * x[n,i]
 *   blocks[o] = what guard.measure keeps of a block of gradients (op_guard.c), which row o of dw is
 *
 * So the guard need not read the gradient again. Put in the place of the two by a pass (src/program/measure.c) alone. */
#include "backend/attrs.h"
#include "kernels.h"

#include <math.h>

/* ---- specification ---- */

enum { X, DY, DW, BLOCKS };

static void run_measured(const twi_call *call) {
    const twi_operand *x = &call->operand[X], *dy = &call->operand[DY], *dw = &call->operand[DW];
    tw_real *blocks = TWI_DATA(tw_real, call, BLOCKS) + twi_measure_first_block(call->attrs);
    for (int64_t o = call->begin; o < call->end; o++) {
        double squares = 0, mark = 0;
        for (int64_t i = 0; i < dw->shape.dim[1]; i++) {
            tw_real sum = 0;
            for (int64_t n = 0; n < x->shape.dim[0]; n++)
                sum += TWI_DATA(const tw_real, call, DY)[n * dy->stride[0] + o * dy->stride[1]] *
                       TWI_DATA(const tw_real, call, X)[n * x->stride[0] + i * x->stride[1]];
            TWI_DATA(tw_real, call, DW)[o * dw->stride[0] + i * dw->stride[1]] = sum;
            squares += (double)sum * (double)sum;
            if (!isfinite(sum)) mark = twi_guard_mark((double)sum, i);
        }
        blocks[o] = (tw_real)(mark < 0 ? mark : sqrt(squares / TWI_UPDATE_BLOCK));
    }
}

/* ---- kernels ---- */

static int64_t rows(const twi_call *call) { return call->operand[DW].shape.dim[0]; }

static double flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[DW].shape) * (double)call->operand[X].shape.dim[0];
}

static const twi_kernel kernel_measured = {
    .name = "dense.backward_weights_measure",
    .operand_count = 4,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_WHOLE, 0},
                {"blocks", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = rows,
    .grain = 8,
    .flops = flops,
    .run = run_measured,
};

static const twi_kernel *const kernels[] = {&kernel_measured, NULL};

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_measure) = {
    .name = "dense_measure",
    .formula = "dw = dy^T x; blocks[o] = sqrt(sum over i of dw[o,i]^2 / 4096)",
    .attr_size = sizeof(twi_measure_attrs),
    .kernels = kernels,
    .asked = true,
};

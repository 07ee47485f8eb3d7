/* The gradient of a dense layer's weight, or of weight and bias, measured as it is made, for a range of its rows:
 *
 *   dw, db: as op_dense.c and fused_dense_bias_backward.c say
 *   blocks[o] = what guard.measure keeps of a block of gradients (op_guard.c), which row o of dw is, as it is stored
 *
 * So the guard need not read the gradient again. Put in the place of the two by a pass (src/program/measure.c) alone. */
#include "backend/attrs.h"
#include "kernels.h"

#include <math.h>

/* ---- specification ---- */

enum { X, DY, DW, DB };

static tw_real stored(tw_dtype dtype, tw_real value) {
    if (dtype != TW_F16 && dtype != TW_BF16) return value;
    return (tw_real)twi_half_to_f32(dtype, twi_half_from_f32(dtype, (float)value));
}

static void run_of(const twi_call *call, const twi_kernel *product) {
    const twi_measure_attrs *attrs = call->attrs;
    const twi_operand *dw = &call->operand[DW];
    tw_real *blocks = TWI_DATA(tw_real, call, call->operand_count - 1) + twi_measure_first_block(attrs);
    twi_call part = *call;
    part.operand_count--;
    product->run(&part);
    for (int64_t o = call->begin; o < call->end; o++) {
        double squares = 0, mark = 0;
        for (int64_t i = 0; i < dw->shape.dim[1]; i++) {
            const tw_real value = stored(attrs->dtype, ((tw_real *)dw->data)[o * dw->stride[0] + i * dw->stride[1]]);
            squares += (double)value * (double)value;
            if (!isfinite(value)) mark = twi_guard_mark((double)value, i);
        }
        blocks[o] = (tw_real)(mark < 0 ? mark : sqrt(squares / TWI_UPDATE_BLOCK));
    }
}
static void run_measured(const twi_call *call) { run_of(call, &TWI_NAME(twi_kernel_dense_backward_weights)); }
static void run_bias_measured(const twi_call *call) { run_of(call, &TWI_NAME(twi_kernel_dense_backward_weights_bias)); }

/* ---- kernels ---- */

static int64_t rows(const twi_call *call) { return call->operand[DW].shape.dim[0]; }

static double flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[DW].shape) * (double)call->operand[X].shape.dim[0];
}

static const twi_kernel measured = {
    .name = "dense.backward_weights_measure",
    .operand_count = 4,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_RANGED, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_WHOLE, 0},
                {"blocks", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = rows,
    .grain = TWI_DENSE_GRAIN,
    .flops = flops,
    .run = run_measured,
};

static const twi_kernel bias_measured = {
    .name = "dense.backward_weights_bias_measure",
    .operand_count = 5,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_RANGED, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_WHOLE, 0},
                {"db", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0},
                {"blocks", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = rows,
    .grain = TWI_DENSE_GRAIN,
    .flops = flops,
    .run = run_bias_measured,
};

static const twi_kernel *const kernels[] = {&measured, &bias_measured, NULL};

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_measure) = {
    .name = "dense_measure",
    .formula = "dw = dy^T x, db = sum over n of dy[n,o]; blocks[o] = sqrt(sum over i of dw[o,i]^2 / 4096)",
    .attr_size = sizeof(twi_measure_attrs),
    .kernels = kernels,
    .asked = true,
};

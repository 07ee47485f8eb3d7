/* The gradient of a convolution's weights by ranges of the weights, each from the whole batch: dw[o,c,a,b] = sum over
 * n, p, q of dy[n,o,p,q] * x[n,c, p*stride_h + a*dilation_h - pad_top, q*stride_w + b*dilation_w - pad_left].
 *
 * What op_conv2d.c does by samples, with sums that are added up later. Put in its place by a pass
 * (src/program/ranges.c) alone. */
#include "kernels.h"

/* ---- specification ---- */

enum { X, DY, DW };

static tw_real sum_at(const twi_call *call, int64_t o, int64_t c, int64_t a, int64_t b) {
    const twi_operand *x = &call->operand[X], *dy = &call->operand[DY], *dw = &call->operand[DW];
    const twi_conv2d_attrs *attrs = call->attrs;
    const int64_t channel = o / (dw->shape.dim[0] / attrs->groups) * dw->shape.dim[1] + c;
    tw_real sum = 0;
    for (int64_t n = 0; n < dy->shape.dim[0]; n++)
        for (int64_t p = 0; p < dy->shape.dim[2]; p++)
            for (int64_t q = 0; q < dy->shape.dim[3]; q++) {
                int64_t row = p * attrs->stride_h - attrs->pad_top + a * attrs->dilation_h;
                int64_t column = q * attrs->stride_w - attrs->pad_left + b * attrs->dilation_w;
                if (row < 0 || row >= x->shape.dim[2] || column < 0 || column >= x->shape.dim[3]) continue;
                sum += TWI_DATA(const tw_real, call, DY)[twi_at4(dy, n, o, p, q)] *
                       TWI_DATA(const tw_real, call, X)[twi_at4(x, n, channel, row, column)];
            }
    return sum;
}

static void run(const twi_call *call) {
    const twi_operand *dw = &call->operand[DW];
    for (int64_t i = call->begin; i < call->end; i++) {
        const twi_conv2d_part part = twi_conv2d_part_at(dw->shape.dim, i);
        for (int64_t o = part.first; o < part.first + part.filters; o++)
            for (int64_t c = 0; c < dw->shape.dim[1]; c++)
                TWI_DATA(tw_real, call, DW)
                [twi_at4(dw, o, c, part.row, part.column)] = sum_at(call, o, c, part.row, part.column);
    }
}

/* ---- kernel ---- */

static int64_t parts(const twi_call *call) { return twi_conv2d_parts(call->operand[DW].shape.dim); }

/* Padding is counted as if it were multiplied. */
static double flops(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[DY].shape) *
           (double)twi_shape_count_from(&call->operand[DW].shape, 1);
}

static const twi_kernel kernel = {
    .name = "conv2d.backward_weights_ranged",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = parts,
    .flops = flops,
    .run = run,
};

static const twi_kernel *const kernels[] = {&kernel, NULL};

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_conv2d_ranged) = {
    .name = "conv2d_ranged",
    .formula = "dw[o,c,a,b] = sum of dy[n,o,p,q] * x[n,c,p*stride+a,q*stride+b], for a range of o, a, b",
    .kernels = kernels,
    .asked = true,
};

/* Softmax, cross-entropy and its gradient in one pass over the logits: a training step then never stores the
 * log-probabilities.
 *
 *   loss += -sum_c target[n,c] * logp[n,c]     dx[n,c] = (exp(logp[n,c]) - target[n,c]) * seed
 *
 * Formulas, label smoothing and faults are those of op_cross_entropy.c. Reached by the fusion pass alone. */
#include "backend/attrs.h"
#include "kernels.h"

#include <tgmath.h>

/* ---- specification ---- */

static void both_run(const twi_call *call) {
    const twi_cross_entropy_attrs *attrs = call->attrs;
    const twi_operand *xo = &call->operand[0], *lo = &call->operand[1], *dxo = &call->operand[4];
    int64_t classes = xo->shape.dim[1];
    tw_real seed = TWI_DATA(const tw_real, call, 2)[0], smoothing = attrs->label_smoothing, loss = 0;
    for (int64_t n = 0; n < xo->shape.dim[0]; n++) {
        const tw_real *x = TWI_DATA(const tw_real, call, 0) + n * xo->stride[0];
        tw_real *dx = TWI_DATA(tw_real, call, 4) + n * dxo->stride[0];
        int32_t label = TWI_DATA(const int32_t, call, 1)[n * lo->stride[0]];
        bool valid = label >= 0 && label < classes;
        if (!valid) twi_fault_raise(call->control, TW_ERROR_LABEL, call->node, twi_call_position(call, n), label);
        tw_real largest = x[0], sum = 0;
        for (int64_t c = 1; c < classes; c++)
            if (x[c * xo->stride[1]] > largest) largest = x[c * xo->stride[1]];
        for (int64_t c = 0; c < classes; c++) sum += exp(x[c * xo->stride[1]] - largest);
        for (int64_t c = 0; c < classes; c++) {
            tw_real logp = x[c * xo->stride[1]] - largest - log(sum); /* before dx, which may take its place */
            tw_real target = twi_class_target(smoothing, classes, label, c);
            if (valid && target > 0) loss -= target * logp; /* not 0 * infinity */
            dx[c * dxo->stride[1]] = valid ? (exp(logp) - target) * seed : 0;
        }
    }
    TWI_DATA(tw_real, call, 3)[0] += loss;
}

/* ---- kernels ---- */

static const twi_kernel both = {
    .name = "softmax_cross_entropy.both",
    .operand_count = 5,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"labels", TWI_READ, TWI_I32, TWI_BATCHED, 0},
                {"seed", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"loss", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1}},
    .split = TWI_BY_SAMPLE,
    .run = both_run,
};

/* ---- cases: the plain graph, which the fusion pass makes into the kernel above ---- */

/* {N, classes, label smoothing in percent}, of twi_case_cross_entropy */
static const twi_case cases[] = {
    {"one class", {3, 1, 0}},
    {"one sample", {1, 3, 0}},
    {"10 classes", {5, 10, 0}},
    {"8 classes smoothed", {4, 8, 10}},
    {"17 classes smoothed", {3, 17, 30}},
    {"32 classes", {2, 32, 0}},
    {"large, 10 classes", {257, 10, 0}},
    {"large, smoothed", {17, 1000, 10}},
    {NULL, {0}},
};

/* ---- record ---- */

static const twi_kernel *const kernels[] = {&both, NULL};

const twi_op TWI_NAME(twi_op_softmax_cross_entropy) = {
    .name = "softmax_cross_entropy",
    .formula = "loss and dx of cross_entropy in one pass",
    .kernels = kernels,
    .cases = cases,
    .build_case = TWI_NAME(twi_case_cross_entropy),
    .fused = "softmax_cross_entropy.both",
};

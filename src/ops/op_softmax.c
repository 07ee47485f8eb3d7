/* Softmax over the classes of each sample.
 *
 *   y[n,c] = exp(x[n,c] - m) / sum_k exp(x[n,k] - m), m = max_k x[n,k]
 *   dx[n,c] = y[n,c] * (dy[n,c] - sum_k dy[n,k] * y[n,k])
 *
 * Subtracting the largest keeps every exponential within 0..1, and the sum at 1 or more. For a classification loss use
 * cross_entropy on the logits instead: it needs no softmax before it.
 * Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990. */
#include "kernels.h"
#include "rules.h"

#include <tgmath.h>

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    TWI_TRY(twi_rule_input(infer, 0, "the input", 2, true));
    return twi_rule_output(infer, infer->input[0]);
}

/* ---- lowering ---- */

static const twi_kernel softmax_forward, softmax_backward;

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &softmax_forward, (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    twi_lower_step(lower, &softmax_backward,
                   (twi_ref[]){twi_lower_output_gradient(lower, 0), twi_lower_output(lower, 0),
                               twi_lower_input_gradient(lower, 0)});
}

/* ---- specification ---- */

static void forward_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *yo = &call->operand[1];
    int64_t classes = xo->shape.dim[1], xs = xo->stride[1], ys = yo->stride[1];
    for (int64_t n = 0; n < xo->shape.dim[0]; n++) {
        const tw_real *x = TWI_DATA(const tw_real, call, 0) + n * xo->stride[0];
        tw_real *y = TWI_DATA(tw_real, call, 1) + n * yo->stride[0];
        tw_real largest = x[0], sum = 0;
        for (int64_t c = 1; c < classes; c++)
            if (x[c * xs] > largest) largest = x[c * xs];
        for (int64_t c = 0; c < classes; c++) sum += y[c * ys] = exp(x[c * xs] - largest);
        for (int64_t c = 0; c < classes; c++) y[c * ys] /= sum;
    }
}

static void backward_run(const twi_call *call) {
    const twi_operand *dyo = &call->operand[0], *yo = &call->operand[1], *dxo = &call->operand[2];
    int64_t classes = yo->shape.dim[1], dys = dyo->stride[1], ys = yo->stride[1], dxs = dxo->stride[1];
    for (int64_t n = 0; n < yo->shape.dim[0]; n++) {
        const tw_real *dy = TWI_DATA(const tw_real, call, 0) + n * dyo->stride[0];
        const tw_real *y = TWI_DATA(const tw_real, call, 1) + n * yo->stride[0];
        tw_real *dx = TWI_DATA(tw_real, call, 2) + n * dxo->stride[0];
        tw_real mean = 0; /* of dy under the probabilities y */
        for (int64_t c = 0; c < classes; c++) mean += dy[c * dys] * y[c * ys];
        for (int64_t c = 0; c < classes; c++) dx[c * dxs] = y[c * ys] * (dy[c * dys] - mean);
    }
}

/* ---- kernels ---- */

static const twi_kernel softmax_forward = {
    .name = "softmax.forward",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .types = TWI_TYPES_F32, /* probabilities are what users read; halves would tell 0.996 from 1 no more */
    .run = forward_run,
};

static const twi_kernel softmax_backward = {
    .name = "softmax.backward",
    .operand_count = 3,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"y", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .types = TWI_TYPES_F32,
    .run = backward_run,
};

/* ---- cases ---- */

/* {N, classes} */
static const twi_case cases[] = {
    {"one class", {3, 1}},           {"one sample", {1, 3}},
    {"5 classes", {7, 5}},           {"8 classes", {2, 8}},
    {"16 classes", {3, 16}},         {"17 classes", {2, 17}},
    {"large, 10 classes", {17, 10}}, {"large", {16, 1000}},
    {"large, many rows", {257, 33}}, {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", 2, c->p);
    return builder->node(builder, "softmax", "softmax", 1, &x, NULL);
}

/* ---- record ---- */

static const twi_kernel *const kernels[] = {&softmax_forward, &softmax_backward, NULL};

const twi_op TWI_NAME(twi_op_softmax) = {
    .name = "softmax",
    .formula = "y[n,c] = exp(x[n,c]) / sum_k exp(x[n,k])",
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs = 1,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

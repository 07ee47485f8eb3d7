/* Cross-entropy of integer labels with the softmax of the logits, summed over the samples.
 *
 *   logp[n,c] = x[n,c] - m - log(sum_k exp(x[n,k] - m)), m = max_k x[n,k]
 *   target[n,c] = (1 - s) * (c == label[n]) + s / C, s = label_smoothing
 *   loss = -sum_n sum_c target[n,c] * logp[n,c]      dx[n,c] = (exp(logp[n,c]) - target[n,c]) * seed
 *
 * The sum becomes the mean through the seed, one over the weight of all samples of an update: so micro-batches of
 * unequal length count right. Huge logits give the true loss, however large; an infinite one gives NaN or an infinite
 * loss. A label outside 0..C-1 raises a fault: the sample adds nothing to the loss, and its gradient is 0.
 * Source: label smoothing, Szegedy et al., "Rethinking the Inception architecture", CVPR 2016. */
#include "backend/attrs.h"
#include "kernels.h"
#include "rules.h"

#include <tgmath.h>

enum { SAVED_LOGP };

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    const twi_cross_entropy_attrs *attrs = infer->attrs;
    TWI_TRY(twi_rule_labels(infer, 1));
    if (!(attrs->label_smoothing >= 0 && attrs->label_smoothing <= 1))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "cross_entropy '%s': label smoothing is %g, expected 0 to 1", infer->name,
                        attrs->label_smoothing);
    infer->output_store[0] = TWI_ACC;
    infer->output_batched[0] = false;
    return twi_rule_output(infer, (twi_shape){1, {1}});
}

/* ---- lowering ---- */

static const twi_kernel log_softmax, loss, loss_backward;

static void forward(twi_lower *lower) {
    twi_ref logp = twi_lower_buffer(lower, "logp", twi_lower_input_shape(lower, 0), TWI_ACC, true);
    twi_lower_step(lower, &log_softmax, (twi_ref[]){twi_lower_input(lower, 0), logp});
    twi_lower_step(lower, &loss, (twi_ref[]){logp, twi_lower_input(lower, 1), twi_lower_output(lower, 0)});
    twi_lower_save(lower, SAVED_LOGP, logp);
}

static void backward(twi_lower *lower) {
    twi_lower_step(lower, &loss_backward,
                   (twi_ref[]){twi_lower_saved(lower, SAVED_LOGP), twi_lower_input(lower, 1),
                               twi_lower_output_gradient(lower, 0), twi_lower_input_gradient(lower, 0)});
}

/* ---- specification ---- */

static void log_softmax_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *po = &call->operand[1];
    int64_t classes = xo->shape.dim[1], xs = xo->stride[1], ps = po->stride[1];
    for (int64_t n = 0; n < xo->shape.dim[0]; n++) {
        const tw_real *x = TWI_DATA(const tw_real, call, 0) + n * xo->stride[0];
        tw_real *logp = TWI_DATA(tw_real, call, 1) + n * po->stride[0];
        tw_real largest = x[0], sum = 0;
        for (int64_t c = 1; c < classes; c++)
            if (x[c * xs] > largest) largest = x[c * xs];
        for (int64_t c = 0; c < classes; c++) sum += exp(x[c * xs] - largest);
        for (int64_t c = 0; c < classes; c++) logp[c * ps] = x[c * xs] - largest - log(sum);
    }
}

static void loss_run(const twi_call *call) {
    const twi_cross_entropy_attrs *attrs = call->attrs;
    const twi_operand *po = &call->operand[0], *lo = &call->operand[1];
    int64_t classes = po->shape.dim[1];
    tw_real smoothing = attrs->label_smoothing, sum = 0;
    for (int64_t n = 0; n < po->shape.dim[0]; n++) {
        const tw_real *logp = TWI_DATA(const tw_real, call, 0) + n * po->stride[0];
        int32_t label = TWI_DATA(const int32_t, call, 1)[n * lo->stride[0]];
        if (label < 0 || label >= classes) {
            twi_fault_raise(call->control, TW_ERROR_LABEL, call->node, twi_call_position(call, n), label);
            continue;
        }
        for (int64_t c = 0; c < classes; c++) {
            tw_real target = twi_class_target(smoothing, classes, label, c);
            if (target > 0) sum -= target * logp[c * po->stride[1]]; /* not 0 * infinity */
        }
    }
    TWI_DATA(tw_real, call, 2)[0] += sum;
}

static void backward_run(const twi_call *call) {
    const twi_cross_entropy_attrs *attrs = call->attrs;
    const twi_operand *po = &call->operand[0], *lo = &call->operand[1], *dxo = &call->operand[3];
    int64_t classes = po->shape.dim[1];
    tw_real seed = TWI_DATA(const tw_real, call, 2)[0], smoothing = attrs->label_smoothing;
    for (int64_t n = 0; n < po->shape.dim[0]; n++) {
        const tw_real *logp = TWI_DATA(const tw_real, call, 0) + n * po->stride[0];
        tw_real *dx = TWI_DATA(tw_real, call, 3) + n * dxo->stride[0];
        int32_t label = TWI_DATA(const int32_t, call, 1)[n * lo->stride[0]];
        bool valid = label >= 0 && label < classes;
        for (int64_t c = 0; c < classes; c++) {
            tw_real target = twi_class_target(smoothing, classes, label, c);
            dx[c * dxo->stride[1]] = valid ? (exp(logp[c * po->stride[1]]) - target) * seed : 0;
        }
    }
}

/* ---- kernels ---- */

static const twi_kernel log_softmax = {
    .name = "cross_entropy.log_softmax",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"logp", TWI_WRITE, TWI_ACC, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = log_softmax_run,
};

static const twi_kernel loss = {
    .name = "cross_entropy.loss",
    .operand_count = 3,
    .operand = {{"logp", TWI_READ, TWI_ACC, TWI_BATCHED, 0},
                {"labels", TWI_READ, TWI_I32, TWI_BATCHED, 0},
                {"loss", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = loss_run,
};

static const twi_kernel loss_backward = {
    .name = "cross_entropy.backward",
    .operand_count = 4,
    .operand = {{"logp", TWI_READ, TWI_ACC, TWI_BATCHED, 0},
                {"labels", TWI_READ, TWI_I32, TWI_BATCHED, 0},
                {"seed", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = backward_run,
};

/* ---- cases ---- */

/* {N, classes, label smoothing in percent} */
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

tw_value *TWI_NAME(twi_case_cross_entropy)(twi_builder *builder, const twi_case *c) {
    const twi_cross_entropy_attrs attrs = {.label_smoothing = (float)c->p[2] / 100};
    tw_value *x = builder->input(builder, "x", 2, c->p), *labels = builder->labels(builder, c->p[0], c->p[1]);
    return builder->node(builder, "cross_entropy", "loss", 2, (tw_value *[]){x, labels}, &attrs);
}

/* ---- record ---- */

static const twi_attr attributes[] = {
    {"label_smoothing", TWI_ATTR_FLOAT, offsetof(twi_cross_entropy_attrs, label_smoothing), 0},
};
static const twi_kernel *const kernels[] = {&log_softmax, &loss, &loss_backward, NULL};

const twi_op TWI_NAME(twi_op_cross_entropy) = {
    .name = "cross_entropy",
    .formula = "loss = -sum_n sum_c target[n,c] * log softmax(x)[n,c], target from labels and label_smoothing",
    .inputs_min = 2,
    .inputs_max = 2,
    .outputs = 1,
    .attrs = attributes,
    .attr_count = sizeof attributes / sizeof *attributes,
    .attr_size = sizeof(twi_cross_entropy_attrs),
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = TWI_NAME(twi_case_cross_entropy),
};

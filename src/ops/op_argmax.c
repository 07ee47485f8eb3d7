/* The class of the largest logit of each sample; of equal ones the first.
 *
 *   y[n] = argmax_c x[n,c]; -1 if any x[n,c] is NaN
 *
 * No gradient flows through it. */
#include "kernels.h"
#include "rules.h"

#include <tgmath.h>

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    TWI_TRY(twi_rule_input(infer, 0, "the input", 2, true));
    infer->output_store[0] = TWI_I32;
    return twi_rule_output(infer, (twi_shape){1, {infer->input[0].dim[0]}});
}

/* ---- lowering ---- */

static const twi_kernel argmax_forward;

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &argmax_forward, (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0)});
}

/* ---- specification ---- */

static void forward_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *yo = &call->operand[1];
    for (int64_t n = 0; n < xo->shape.dim[0]; n++) {
        const tw_real *x = TWI_DATA(const tw_real, call, 0) + n * xo->stride[0];
        int32_t best = 0;
        bool nan = isnan(x[0]);
        for (int32_t c = 1; c < xo->shape.dim[1]; c++) {
            if (isnan(x[c * xo->stride[1]])) nan = true;
            if (x[c * xo->stride[1]] > x[best * xo->stride[1]]) best = c;
        }
        TWI_DATA(int32_t, call, 1)[n * yo->stride[0]] = nan ? -1 : best;
    }
}

/* ---- kernels ---- */

static const twi_kernel argmax_forward = {
    .name = "argmax.forward",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_I32, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = forward_run,
};

/* ---- cases ---- */

/* {N, classes} */
static const twi_case cases[] = {
    {"one class", {3, 1}}, {"5 classes", {1, 5}}, {"17 classes", {4, 17}}, {"large", {65, 1000}}, {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", 2, c->p);
    return builder->node(builder, "argmax", "argmax", 1, &x, NULL);
}

/* ---- record ---- */

static const twi_kernel *const kernels[] = {&argmax_forward, NULL};

const twi_op TWI_NAME(twi_op_argmax) = {
    .name = "argmax",
    .formula = "y[n] = argmax_c x[n,c]",
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs = 1,
    .infer = infer,
    .forward = forward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

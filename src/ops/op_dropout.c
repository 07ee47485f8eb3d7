/* Dropout: in training every element becomes 0 with probability `rate`, and what is kept is scaled so that the mean
 * stays.
 *
 *   y = kept ? x / (1 - rate) : 0      dx = kept ? dy / (1 - rate) : 0
 *
 * The mask is not stored but drawn again in the backward. A draw is named by seed, node, attempt, position of the
 * sample in the effective batch and logical index in the sample, so layout, micro-batches and threads do not matter.
 * Rate 0 and inference are the identity, bit for bit; rate 1 gives zeros.
 * Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 2014, in the
 * form that scales in training. */
#include "backend/attrs.h"
#include "base/philox.h"
#include "kernels.h"
#include "rules.h"

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    const twi_dropout_attrs *attrs = infer->attrs;
    TWI_TRY(twi_rule_input(infer, 0, "the input", infer->input[0].rank, true));
    if (!(attrs->rate >= 0 && attrs->rate <= 1))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "dropout '%s': rate, the probability that an element becomes 0, is %g, expected 0 to 1",
                        infer->name, attrs->rate);
    return twi_rule_output(infer, infer->input[0]);
}

/* ---- lowering ---- */

static const twi_kernel apply;

static void forward(twi_lower *lower) {
    const twi_dropout_attrs *attrs = twi_lower_attrs(lower);
    bool active = twi_lower_training(lower) && attrs->rate > 0;
    twi_lower_step(lower, active ? &apply : &TWI_NAME(twi_kernel_reshape_copy),
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    const twi_dropout_attrs *attrs = twi_lower_attrs(lower);
    twi_ref dy = twi_lower_output_gradient(lower, 0);
    if (twi_lower_training(lower) && attrs->rate > 0)
        twi_lower_step(lower, &apply, (twi_ref[]){dy, twi_lower_input_gradient(lower, 0)});
    else
        twi_lower_give_gradient(lower, 0, dy);
}

/* ---- specification ---- */

static void apply_run(const twi_call *call) {
    const twi_dropout_attrs *attrs = call->attrs;
    const twi_operand *xo = &call->operand[0], *yo = &call->operand[1];
    const tw_real *x = TWI_DATA(const tw_real, call, 0);
    tw_real *y = TWI_DATA(tw_real, call, 1);
    int64_t count = twi_sample_count(xo);
    uint64_t stream = twi_call_stream(call);
    tw_real scale = (tw_real)(1 / (1 - (double)attrs->rate)); /* infinite for rate 1, where nothing is kept */
    for (int64_t n = 0; n < xo->shape.dim[0]; n++)
        for (int64_t i = 0; i < count; i++) {
            uint64_t index = (uint64_t)(twi_call_position(call, n) * count + i);
            uint32_t words[4];
            twi_draw(call->control->seed, TWI_PURPOSE_DROPOUT, stream, index / 4, words);
            bool kept = twi_uniform(words[index % 4]) >= attrs->rate;
            y[twi_offset(yo, n, i)] = kept ? x[twi_offset(xo, n, i)] * scale : 0;
        }
}

/* ---- kernels ---- */

static const twi_kernel apply = {
    .name = "dropout.apply", /* forward and backward */
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1}},
    .split = TWI_BY_SAMPLE,
    .run = apply_run,
};

/* ---- cases ---- */

/* {rate in percent, rank, N, dims...} */
static const twi_case cases[] = {
    {"flat", {50, 2, 5, 17}},
    {"one element", {50, 2, 3, 1}},
    {"images", {25, 4, 2, 3, 5, 4}},
    {"8 channels", {10, 4, 3, 8, 3, 3}},
    {"rate 0", {0, 2, 3, 7}},
    {"rate 1", {100, 4, 2, 5, 2, 3}},
    {"large", {20, 2, 17, 1023}},
    {"large images", {50, 4, 16, 16, 9, 11}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    const twi_dropout_attrs attrs = {.rate = (float)c->p[0] / 100};
    tw_value *x = builder->input(builder, "x", (int)c->p[1], c->p + 2);
    return builder->node(builder, "dropout", "dropout", 1, &x, &attrs);
}

/* ---- record ---- */

static const twi_attr attributes[] = {{"rate", TWI_ATTR_FLOAT, offsetof(twi_dropout_attrs, rate), 0.5}};
static const twi_kernel *const kernels[] = {&apply, NULL};

const twi_op TWI_NAME(twi_op_dropout) = {
    .name = "dropout",
    .formula = "y = kept ? x / (1 - rate) : 0",
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs = 1,
    .attrs = attributes,
    .attr_count = sizeof attributes / sizeof *attributes,
    .attr_size = sizeof(twi_dropout_attrs),
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

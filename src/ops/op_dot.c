/* Dot product of two values of one shape over everything, batch included.
 *
 *   out = sum x * v      dx = v * seed, dv = x * seed
 *
 * Turns any value into a scalar to differentiate: the op checks put it behind the op under test. */
#include "kernels.h"
#include "rules.h"

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    char text[TWI_SHAPE_TEXT], text2[TWI_SHAPE_TEXT];
    TWI_TRY(twi_rule_input(infer, 0, "x", infer->input[0].rank, true));
    TWI_TRY(twi_rule_input(infer, 1, "v", infer->input[1].rank, true));
    if (!twi_shape_equal(&infer->input[0], &infer->input[1]))
        return TWI_FAIL(TW_ERROR_SHAPE, "dot '%s': inputs are %s and %s, expected equal shapes", infer->name,
                        twi_shape_text(&infer->input[0], text), twi_shape_text(&infer->input[1], text2));
    infer->output_store[0] = TWI_ACC;
    infer->output_batched[0] = false;
    return twi_rule_output(infer, (twi_shape){1, {1}});
}

/* ---- lowering ---- */

static const twi_kernel dot_forward, dot_backward;

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &dot_forward,
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_input(lower, 1), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    twi_ref seed = twi_lower_output_gradient(lower, 0);
    for (int i = 0; i < 2; i++)
        if (twi_lower_wants_gradient(lower, i))
            twi_lower_step(lower, &dot_backward,
                           (twi_ref[]){twi_lower_input(lower, 1 - i), seed, twi_lower_input_gradient(lower, i)});
}

/* ---- specification ---- */

static void forward_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *vo = &call->operand[1];
    const tw_real *x = TWI_DATA(const tw_real, call, 0), *v = TWI_DATA(const tw_real, call, 1);
    tw_real sum = 0;
    for (int64_t n = 0; n < xo->shape.dim[0]; n++)
        for (int64_t i = 0; i < twi_sample_count(xo); i++) sum += x[twi_offset(xo, n, i)] * v[twi_offset(vo, n, i)];
    TWI_DATA(tw_real, call, 2)[0] += sum;
}

static void backward_run(const twi_call *call) {
    const twi_operand *vo = &call->operand[0], *dxo = &call->operand[2];
    const tw_real *v = TWI_DATA(const tw_real, call, 0);
    tw_real seed = TWI_DATA(const tw_real, call, 1)[0], *dx = TWI_DATA(tw_real, call, 2);
    for (int64_t n = 0; n < vo->shape.dim[0]; n++)
        for (int64_t i = 0; i < twi_sample_count(vo); i++) dx[twi_offset(dxo, n, i)] = v[twi_offset(vo, n, i)] * seed;
}

/* ---- kernels ---- */

static const twi_kernel dot_forward = {
    .name = "dot.forward",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"v", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"out", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = forward_run,
};

static const twi_kernel dot_backward = {
    .name = "dot.backward",
    .operand_count = 3,
    .operand = {{"v", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"seed", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = backward_run,
};

/* ---- cases ---- */

/* {rank, N, dims...} */
static const twi_case cases[] = {
    {"one element", {2, 1, 1}},
    {"flat", {2, 5, 17}},
    {"images", {4, 2, 3, 4, 5}},
    {"large", {2, 17, 1001}},
    {"vector", {1, 7}},
    {"large images", {4, 16, 16, 7, 9}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", (int)c->p[0], c->p + 1);
    tw_value *v = builder->input(builder, "v", (int)c->p[0], c->p + 1);
    return builder->node(builder, "dot", "dot", 2, (tw_value *[]){x, v}, NULL);
}

/* ---- record ---- */

static const twi_kernel *const kernels[] = {&dot_forward, &dot_backward, NULL};

const twi_op TWI_NAME(twi_op_dot) = {
    .name = "dot",
    .formula = "out = sum x * v",
    .inputs_min = 2,
    .inputs_max = 2,
    .outputs = 1,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

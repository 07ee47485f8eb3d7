/* bias: y[n,c,...] = x[n,c,...] + b[c]
 *
 * x [N,C,...], b [C]. Adds one number to every channel of an image, or to every feature of a dense layer. */
#include "kernels.h"
#include "rules.h"

#include <inttypes.h>

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    const twi_shape *x = &infer->input[0], *b = &infer->input[1];
    char x_text[TWI_SHAPE_TEXT], b_text[TWI_SHAPE_TEXT];
    if (x->rank < 2)
        return TWI_FAIL(TW_ERROR_SHAPE, "bias '%s': the input is %s, expected 2 axes or more, batch and channels first",
                        infer->name, twi_shape_text(x, x_text));
    TWI_TRY(twi_rule_input(infer, 0, "the input", x->rank, true));
    TWI_TRY(twi_rule_input(infer, 1, "the bias", 1, false));
    if (b->dim[0] != x->dim[1])
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "bias '%s': input %s has %" PRId64 " channels, bias %s has %" PRId64
                        "; expected one number a channel",
                        infer->name, twi_shape_text(x, x_text), x->dim[1], twi_shape_text(b, b_text), b->dim[0]);
    return twi_rule_output(infer, *x);
}

/* ---- lowering ---- */

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &TWI_NAME(twi_kernel_bias_forward),
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_input(lower, 1), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    twi_ref dy = twi_lower_output_gradient(lower, 0);
    if (twi_lower_wants_gradient(lower, 0)) twi_lower_give_gradient(lower, 0, dy);
    if (twi_lower_wants_gradient(lower, 1))
        twi_lower_step(lower, &TWI_NAME(twi_kernel_bias_backward), (twi_ref[]){dy, twi_lower_input_gradient(lower, 1)});
}

/* ---- specification ---- */

static void run_forward(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *b = &call->operand[1], *y = &call->operand[2];
    const tw_real *x_data = x->data, *b_data = b->data;
    tw_real *y_data = y->data;
    int64_t elements = twi_sample_count(x), channel_size = twi_shape_count_from(&x->shape, 2);
    for (int64_t n = 0; n < x->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++)
            y_data[twi_offset(y, n, i)] = x_data[twi_offset(x, n, i)] + b_data[i / channel_size * b->stride[0]];
}

static void run_backward(const twi_call *call) {
    const twi_operand *dy = &call->operand[0], *db = &call->operand[1];
    const tw_real *dy_data = dy->data;
    tw_real *db_data = db->data;
    int64_t elements = twi_sample_count(dy), channel_size = twi_shape_count_from(&dy->shape, 2);
    for (int64_t n = 0; n < dy->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++)
            db_data[i / channel_size * db->stride[0]] += dy_data[twi_offset(dy, n, i)];
}

/* ---- kernels ---- */

const twi_kernel TWI_NAME(twi_kernel_bias_forward) = {
    .name = "bias.forward",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"b", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_forward,
};

const twi_kernel TWI_NAME(twi_kernel_bias_backward) = {
    .name = "bias.backward",
    .operand_count = 2,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"db", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_bias_forward), &TWI_NAME(twi_kernel_bias_backward),
                                            NULL};

/* ---- cases ---- */

enum { RANK, DIMS };

static const twi_case cases[] = {
    {"features", {2, 3, 5}},
    {"image", {4, 2, 3, 4, 5}},
    {"sequence", {3, 2, 3, 7}},
    {"one of everything", {4, 1, 1, 1, 1}},
    {"one channel", {4, 3, 1, 2, 5}},
    {"one pixel", {4, 3, 7, 1, 1}},
    {"large features", {2, 17, 100}},
    {"large image", {4, 17, 33, 7, 9}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", (int)c->p[RANK], &c->p[DIMS]);
    tw_value *b = builder->parameter(builder, "b", 1, &c->p[DIMS + 1]);
    return builder->node(builder, "bias", "bias", 2, (tw_value *[]){x, b}, NULL);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_bias) = {
    .name = "bias",
    .formula = "y[n,c,...] = x[n,c,...] + b[c]",
    .inputs_min = 2,
    .inputs_max = 2,
    .outputs = 1,
    .completes = true,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

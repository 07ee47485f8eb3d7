/* add: y = a + b, element by element, shapes equal
 *
 * The gradient of both summands is that of the sum: it is passed through, nothing is computed. */
#include "kernels.h"
#include "rules.h"

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    const twi_shape *a = &infer->input[0], *b = &infer->input[1];
    TWI_TRY(twi_rule_input(infer, 0, "the first summand", a->rank, true));
    TWI_TRY(twi_rule_input(infer, 1, "the second summand", b->rank, true));
    char a_text[TWI_SHAPE_TEXT], b_text[TWI_SHAPE_TEXT];
    if (!twi_shape_equal(a, b))
        return TWI_FAIL(TW_ERROR_SHAPE, "add '%s': %s + %s: expected equal shapes; nothing is broadcast", infer->name,
                        twi_shape_text(a, a_text), twi_shape_text(b, b_text));
    return twi_rule_output(infer, *a);
}

/* ---- lowering ---- */

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &TWI_NAME(twi_kernel_add_forward),
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_input(lower, 1), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    for (int input = 0; input < 2; input++)
        if (twi_lower_wants_gradient(lower, input))
            twi_lower_give_gradient(lower, input, twi_lower_output_gradient(lower, 0));
}

/* ---- specification ---- */

static void run_forward(const twi_call *call) {
    const twi_operand *a = &call->operand[0], *b = &call->operand[1], *y = &call->operand[2];
    const tw_real *a_data = a->data, *b_data = b->data;
    tw_real *y_data = y->data;
    int64_t elements = twi_sample_count(y);
    for (int64_t n = 0; n < y->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++)
            y_data[twi_offset(y, n, i)] = a_data[twi_offset(a, n, i)] + b_data[twi_offset(b, n, i)];
}

/* ---- kernels ---- */

const twi_kernel TWI_NAME(twi_kernel_add_forward) = {
    .name = "add.forward",
    .operand_count = 3,
    .operand = {{"a", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"b", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_forward,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_add_forward), NULL};

/* ---- cases ---- */

/* The summands: two inputs, twice the same, or two to which one bias was added, whose gradient then has two parts. */
enum { APART, SAME, ONE_BIAS };
enum { SUMMANDS, RANK, DIMS };

static const twi_case cases[] = {
    {"features", {APART, 2, 3, 5}},
    {"image", {APART, 4, 2, 3, 4, 5}},
    {"one element", {APART, 2, 1, 1}},
    {"a value and itself", {SAME, 4, 2, 3, 3, 2}},
    {"one bias for both", {ONE_BIAS, 2, 3, 5}},
    {"large image", {APART, 4, 17, 33, 7, 9}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *a = builder->input(builder, "a", (int)c->p[RANK], &c->p[DIMS]);
    tw_value *b = c->p[SUMMANDS] == SAME ? a : builder->input(builder, "b", (int)c->p[RANK], &c->p[DIMS]);
    if (c->p[SUMMANDS] == ONE_BIAS) {
        tw_value *bias = builder->parameter(builder, "bias", 1, &c->p[DIMS + 1]);
        a = builder->node(builder, "bias", "a_biased", 2, (tw_value *[]){a, bias}, NULL);
        b = builder->node(builder, "bias", "b_biased", 2, (tw_value *[]){b, bias}, NULL);
    }
    return builder->node(builder, "add", "add", 2, (tw_value *[]){a, b}, NULL);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_add) = {
    .name = "add",
    .formula = "y = a + b",
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

/* relu: y = x < 0 ? 0 : x, element by element
 *
 * Not-a-number stays what it is. The gradient passes where y is not 0, so that only y has to be kept. */
#include "kernels.h"
#include "rules.h"

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    TWI_TRY(twi_rule_input(infer, 0, "the input", infer->input[0].rank, true));
    return twi_rule_output(infer, infer->input[0]);
}

/* ---- lowering ---- */

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &TWI_NAME(twi_kernel_relu_forward),
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    if (twi_lower_wants_gradient(lower, 0))
        twi_lower_step(lower, &TWI_NAME(twi_kernel_relu_backward),
                       (twi_ref[]){twi_lower_output_gradient(lower, 0), twi_lower_output(lower, 0),
                                   twi_lower_input_gradient(lower, 0)});
}

/* ---- specification ---- */

static void run_forward(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    const tw_real *x_data = x->data;
    tw_real *y_data = y->data;
    int64_t elements = twi_sample_count(x);
    for (int64_t n = 0; n < x->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++) {
            tw_real value = x_data[twi_offset(x, n, i)];
            y_data[twi_offset(y, n, i)] = value < 0 ? 0 : value;
        }
}

static void run_backward(const twi_call *call) {
    const twi_operand *dy = &call->operand[0], *y = &call->operand[1], *dx = &call->operand[2];
    const tw_real *dy_data = dy->data, *y_data = y->data;
    tw_real *dx_data = dx->data;
    int64_t elements = twi_sample_count(dy);
    for (int64_t n = 0; n < dy->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++) {
            bool passes = !(y_data[twi_offset(y, n, i)] <= 0);
            dx_data[twi_offset(dx, n, i)] = passes ? dy_data[twi_offset(dy, n, i)] : 0;
        }
}

/* ---- kernels ---- */

const twi_kernel TWI_NAME(twi_kernel_relu_forward) = {
    .name = "relu.forward",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_forward,
};

const twi_kernel TWI_NAME(twi_kernel_relu_backward) = {
    .name = "relu.backward",
    .operand_count = 3,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"y", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_relu_forward), &TWI_NAME(twi_kernel_relu_backward),
                                            NULL};

/* ---- cases ---- */

enum { RANK, DIMS };

static const twi_case cases[] = {
    {"features", {2, 3, 5}},
    {"image", {4, 2, 3, 4, 5}},
    {"one element", {2, 1, 1}},
    {"one number a sample", {1, 7}},
    {"five axes", {5, 2, 3, 2, 2, 3}},
    {"large features", {2, 17, 101}},
    {"large image", {4, 17, 33, 7, 9}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", (int)c->p[RANK], &c->p[DIMS]);
    return builder->node(builder, "relu", "relu", 1, &x, NULL);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_relu) = {
    .name = "relu",
    .formula = "y = x < 0 ? 0 : x",
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

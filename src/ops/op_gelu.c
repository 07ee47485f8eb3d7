/* gelu: y = x Phi(x), element by element, where Phi(x) is how likely a normal number is to be below x
 *
 *   erf form    Phi(x) = (1 + erf(x / sqrt 2)) / 2
 *   tanh form   Phi(x) ~ (1 + tanh u) / 2 = 1 / (1 + exp(-2u)),  u = sqrt(2 / pi) (x + 0.044715 x^3)
 *
 * The attribute `tanh` asks for the second, whose kernels have names of their own, so that fusion can tell them apart:
 * it is the form that libraries of matrix products compute behind a product. Not-a-number stays. Infinity stays and has
 * the gradient 1; minus infinity gives not-a-number, as -inf times 0 does, with the gradient 0.
 * Source: Hendrycks & Gimpel, "Gaussian error linear units", 2016. */
#include "backend/attrs.h"
#include "kernels.h"
#include "rules.h"

#include <math.h>

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    TWI_TRY(twi_rule_input(infer, 0, "the input", infer->input[0].rank, true));
    return twi_rule_output(infer, infer->input[0]);
}

/* ---- lowering ---- */

static const twi_kernel kernel_forward, kernel_backward;

static bool is_tanh(const twi_lower *lower) { return ((const twi_gelu_attrs *)twi_lower_attrs(lower))->tanh; }

static void forward(twi_lower *lower) {
    twi_lower_step(lower, is_tanh(lower) ? &TWI_NAME(twi_kernel_gelu_forward_tanh) : &kernel_forward,
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    if (twi_lower_wants_gradient(lower, 0))
        twi_lower_step(lower, is_tanh(lower) ? &TWI_NAME(twi_kernel_gelu_backward_tanh) : &kernel_backward,
                       (twi_ref[]){twi_lower_output_gradient(lower, 0), twi_lower_input(lower, 0),
                                   twi_lower_input_gradient(lower, 0)});
}

/* ---- specification ---- */

/* Beyond so many deviations Phi and its slope are 0 or 1 and 0 in any precision; within, no power of x overflows. */
static double bounded(double x) { return x > 64 ? 64 : x < -64 ? -64 : x; }

static double share_erf(double x) { return erfc(-bounded(x) * 0.70710678118654752) / 2; }
static double slope_erf(double x) {
    double z = bounded(x);
    return share_erf(x) + z * exp(-z * z / 2) * 0.39894228040143268;
}

static double inner(double z) { return 1.5957691216057308 * (z + 0.044715 * z * z * z); } /* 2u */
static double share_tanh(double x) { return 1 / (1 + exp(-inner(bounded(x)))); }
static double slope_tanh(double x) {
    double z = bounded(x), share = share_tanh(x), other = 1 / (1 + exp(inner(z)));
    return share + z * share * other * 1.5957691216057308 * (1 + 3 * 0.044715 * z * z);
}

static void each_forward(const twi_call *call, double (*share)(double)) {
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    const tw_real *x_data = x->data;
    tw_real *y_data = y->data;
    int64_t elements = twi_sample_count(x);
    for (int64_t n = 0; n < x->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++) {
            tw_real value = x_data[twi_offset(x, n, i)];
            y_data[twi_offset(y, n, i)] = (tw_real)(value * share(value));
        }
}

static void each_backward(const twi_call *call, double (*slope)(double)) {
    const twi_operand *dy = &call->operand[0], *x = &call->operand[1], *dx = &call->operand[2];
    const tw_real *dy_data = dy->data, *x_data = x->data;
    tw_real *dx_data = dx->data;
    int64_t elements = twi_sample_count(dy);
    for (int64_t n = 0; n < dy->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++)
            dx_data[twi_offset(dx, n, i)] =
                (tw_real)(dy_data[twi_offset(dy, n, i)] * slope(x_data[twi_offset(x, n, i)]));
}

static void run_forward(const twi_call *call) { each_forward(call, share_erf); }
static void run_backward(const twi_call *call) { each_backward(call, slope_erf); }
static void run_forward_tanh(const twi_call *call) { each_forward(call, share_tanh); }
static void run_backward_tanh(const twi_call *call) { each_backward(call, slope_tanh); }

/* ---- kernels ---- */

#define FORWARD(kernel_name, kernel_run)                                                                        \
    {                                                                                                           \
        .name = kernel_name, .operand_count = 2,                                                                \
        .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + 0}}, \
        .split = TWI_BY_SAMPLE, .run = kernel_run,                                                              \
    }
#define BACKWARD(kernel_name, kernel_run)                             \
    {                                                                 \
        .name = kernel_name, .operand_count = 3,                      \
        .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},       \
                    {"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},        \
                    {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 1 + 0}}, \
        .split = TWI_BY_SAMPLE, .run = kernel_run,                    \
    }

static const twi_kernel kernel_forward = FORWARD("gelu.forward", run_forward);
static const twi_kernel kernel_backward = BACKWARD("gelu.backward", run_backward);
const twi_kernel TWI_NAME(twi_kernel_gelu_forward_tanh) = FORWARD("gelu.forward_tanh", run_forward_tanh);
const twi_kernel TWI_NAME(twi_kernel_gelu_backward_tanh) = BACKWARD("gelu.backward_tanh", run_backward_tanh);

static const twi_kernel *const kernels[] = {&kernel_forward, &kernel_backward, &TWI_NAME(twi_kernel_gelu_forward_tanh),
                                            &TWI_NAME(twi_kernel_gelu_backward_tanh), NULL};

/* ---- cases ---- */

enum { TANH, RANK, DIMS };

static const twi_case cases[] = {
    {"features", {0, 2, 3, 5}},
    {"image", {0, 4, 2, 3, 4, 5}},
    {"one element", {0, 2, 1, 1}},
    {"tanh, features", {1, 2, 3, 5}},
    {"tanh, image", {1, 4, 2, 3, 4, 5}},
    {"tanh, one number a sample", {1, 1, 7}},
    {"five axes", {0, 5, 2, 3, 2, 2, 3}},
    {"large features", {0, 2, 17, 101}},
    {"large image", {0, 4, 17, 33, 7, 9}},
    {"large tanh, features", {1, 2, 17, 101}},
    {"large tanh, image", {1, 4, 17, 33, 7, 9}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    const twi_gelu_attrs attrs = {.tanh = c->p[TANH] != 0};
    tw_value *x = builder->input(builder, "x", (int)c->p[RANK], &c->p[DIMS]);
    return builder->node(builder, "gelu", "gelu", 1, &x, &attrs);
}

/* ---- record ---- */

static const twi_attr attributes[] = {{"tanh", TWI_ATTR_BOOL, offsetof(twi_gelu_attrs, tanh), 0}};

const twi_op TWI_NAME(twi_op_gelu) = {
    .name = "gelu",
    .formula = "y = x Phi(x), Phi by erf or by tanh",
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs = 1,
    .attrs = attributes,
    .attr_count = sizeof attributes / sizeof *attributes,
    .attr_size = sizeof(twi_gelu_attrs),
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

/* dense: y[n,o] = sum over i of x[n,i] * w[o,i]
 *
 * x [N,I], w [O,I], y [N,O]. The bias is an op of its own (op_bias.c); images are flattened first (op_flatten.c). */
#include "kernels.h"
#include "rules.h"

#include <inttypes.h>

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    TWI_TRY(twi_rule_input(infer, 0, "the input", 2, true));
    TWI_TRY(twi_rule_input(infer, 1, "the weight", 2, false));
    const twi_shape *x = &infer->input[0], *w = &infer->input[1];
    char x_text[TWI_SHAPE_TEXT], w_text[TWI_SHAPE_TEXT];
    if (x->dim[1] != w->dim[1] || x->dim[1] < 1 || w->dim[0] < 1)
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "dense '%s': input %s has %" PRId64 " features, weight %s takes %" PRId64 " and makes %" PRId64
                        "; expected the same number of features, and 1 or more",
                        infer->name, twi_shape_text(x, x_text), x->dim[1], twi_shape_text(w, w_text), w->dim[1],
                        w->dim[0]);
    return twi_rule_output(infer, (twi_shape){2, {x->dim[0], w->dim[0]}});
}

/* ---- lowering ---- */

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &TWI_NAME(twi_kernel_dense_forward),
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_input(lower, 1), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    twi_ref dy = twi_lower_output_gradient(lower, 0);
    if (twi_lower_wants_gradient(lower, 0))
        twi_lower_step(lower, &TWI_NAME(twi_kernel_dense_backward_data),
                       (twi_ref[]){dy, twi_lower_input(lower, 1), twi_lower_input_gradient(lower, 0)});
    if (twi_lower_wants_gradient(lower, 1))
        twi_lower_step(lower, &TWI_NAME(twi_kernel_dense_backward_weights),
                       (twi_ref[]){twi_lower_input(lower, 0), dy, twi_lower_input_gradient(lower, 1)});
}

/* ---- specification ---- */

static inline tw_real *at(const twi_operand *o, int64_t row, int64_t column) {
    return (tw_real *)o->data + row * o->stride[0] + column * o->stride[1];
}

static void run_forward(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1], *y = &call->operand[2];
    for (int64_t n = 0; n < y->shape.dim[0]; n++)
        for (int64_t o = 0; o < y->shape.dim[1]; o++) {
            tw_real sum = 0;
            for (int64_t i = 0; i < x->shape.dim[1]; i++) sum += *at(x, n, i) * *at(w, o, i);
            *at(y, n, o) = sum;
        }
}

static void run_backward_data(const twi_call *call) {
    const twi_operand *dy = &call->operand[0], *w = &call->operand[1], *dx = &call->operand[2];
    for (int64_t n = 0; n < dx->shape.dim[0]; n++)
        for (int64_t i = 0; i < dx->shape.dim[1]; i++) {
            tw_real sum = 0;
            for (int64_t o = 0; o < dy->shape.dim[1]; o++) sum += *at(dy, n, o) * *at(w, o, i);
            *at(dx, n, i) = sum;
        }
}

/* Rows of w, not samples, are handed out: every part sees the whole batch, so that no partial sums are needed. */
static int64_t weight_rows(const twi_call *call) { return call->operand[2].shape.dim[0]; }

static void run_backward_weights(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    for (int64_t o = call->begin; o < call->end; o++)
        for (int64_t i = 0; i < dw->shape.dim[1]; i++) {
            tw_real sum = 0;
            for (int64_t n = 0; n < x->shape.dim[0]; n++) sum += *at(dy, n, o) * *at(x, n, i);
            *at(dw, o, i) = sum;
        }
}

/* ---- kernels ---- */

static double flops(const twi_operand *w, const twi_operand *y) {
    return 2.0 * (double)twi_shape_count(&w->shape) * (double)y->shape.dim[0];
}
static double flops_forward(const twi_call *call) { return flops(&call->operand[1], &call->operand[2]); }
static double flops_backward_data(const twi_call *call) { return flops(&call->operand[1], &call->operand[0]); }
static double flops_backward_weights(const twi_call *call) { return flops(&call->operand[2], &call->operand[1]); }

const twi_kernel TWI_NAME(twi_kernel_dense_forward) = {
    .name = "dense.forward",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .flops = flops_forward,
    .run = run_forward,
    .by_range = "dense.forward_rows",
    .range_of = 1,
};

const twi_kernel TWI_NAME(twi_kernel_dense_backward_data) = {
    .name = "dense.backward_data",
    .operand_count = 3,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .flops = flops_backward_data,
    .run = run_backward_data,
};

const twi_kernel TWI_NAME(twi_kernel_dense_backward_weights) = {
    .name = "dense.backward_weights",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_RANGED, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = weight_rows,
    .grain = TWI_DENSE_GRAIN,
    .flops = flops_backward_weights,
    .run = run_backward_weights,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_dense_forward),
                                            &TWI_NAME(twi_kernel_dense_backward_data),
                                            &TWI_NAME(twi_kernel_dense_backward_weights), NULL};

/* ---- cases ---- */

enum { BATCH, FEATURES_IN, FEATURES_OUT };

static const twi_case cases[] = {
    {"small", {3, 5, 4}},
    {"one of everything", {1, 1, 1}},
    {"one image", {1, 7, 10}},
    {"one feature in", {5, 1, 3}},
    {"one feature out", {4, 9, 1}},
    {"odd sizes", {7, 33, 17}},
    {"large 8 images", {8, 100, 10}},
    {"large 17 images", {17, 131, 67}},
    {"large 64 images", {64, 128, 96}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", 2, (int64_t[]){c->p[BATCH], c->p[FEATURES_IN]});
    tw_value *w = builder->parameter(builder, "w", 2, (int64_t[]){c->p[FEATURES_OUT], c->p[FEATURES_IN]});
    return builder->node(builder, "dense", "dense", 2, (tw_value *[]){x, w}, NULL);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense) = {
    .name = "dense",
    .formula = "y[n,o] = sum over i of x[n,i] * w[o,i]",
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

/* global_avg_pool: y[n,c,0,0] = mean over h,w of x[n,c,h,w]
 *
 * x [N,C,H,W], y [N,C,1,1]. */
#include "rules.h"

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    const twi_shape *x = &infer->input[0];
    char text[TWI_SHAPE_TEXT];
    TWI_TRY(twi_rule_input(infer, 0, "the input", 4, true));
    if (x->dim[2] < 1 || x->dim[3] < 1)
        return TWI_FAIL(TW_ERROR_SHAPE, "global_avg_pool '%s': the input is %s; expected 1 pixel or more", infer->name,
                        twi_shape_text(x, text));
    return twi_rule_output(infer, (twi_shape){4, {x->dim[0], x->dim[1], 1, 1}});
}

/* ---- lowering ---- */

static const twi_kernel kernel_forward, kernel_backward;

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &kernel_forward, (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    if (twi_lower_wants_gradient(lower, 0))
        twi_lower_step(lower, &kernel_backward,
                       (twi_ref[]){twi_lower_output_gradient(lower, 0), twi_lower_input_gradient(lower, 0)});
}

/* ---- specification ---- */

static void run_forward(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    const tw_real *x_data = x->data;
    tw_real *y_data = y->data, pixels = (tw_real)twi_shape_count_from(&x->shape, 2);
    for (int64_t n = 0; n < x->shape.dim[0]; n++)
        for (int64_t c = 0; c < x->shape.dim[1]; c++) {
            tw_real sum = 0;
            for (int64_t h = 0; h < x->shape.dim[2]; h++)
                for (int64_t w = 0; w < x->shape.dim[3]; w++) sum += x_data[twi_at4(x, n, c, h, w)];
            y_data[twi_at4(y, n, c, 0, 0)] = sum / pixels;
        }
}

static void run_backward(const twi_call *call) {
    const twi_operand *dy = &call->operand[0], *dx = &call->operand[1];
    const tw_real *dy_data = dy->data;
    tw_real *dx_data = dx->data, pixels = (tw_real)twi_shape_count_from(&dx->shape, 2);
    for (int64_t n = 0; n < dx->shape.dim[0]; n++)
        for (int64_t c = 0; c < dx->shape.dim[1]; c++)
            for (int64_t h = 0; h < dx->shape.dim[2]; h++)
                for (int64_t w = 0; w < dx->shape.dim[3]; w++)
                    dx_data[twi_at4(dx, n, c, h, w)] = dy_data[twi_at4(dy, n, c, 0, 0)] / pixels;
}

/* ---- kernels ---- */

static const twi_kernel kernel_forward = {
    .name = "global_avg_pool.forward",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_forward,
};

static const twi_kernel kernel_backward = {
    .name = "global_avg_pool.backward",
    .operand_count = 2,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&kernel_forward, &kernel_backward, NULL};

/* ---- cases ---- */

static const twi_case cases[] = {
    {"small", {2, 3, 4, 5}},   {"one pixel", {3, 2, 1, 1}}, {"one of everything", {1, 1, 1, 1}},
    {"one row", {2, 5, 1, 7}}, {"large", {17, 64, 8, 7}},   {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", 4, c->p);
    return builder->node(builder, "global_avg_pool", "pool", 1, &x, NULL);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_global_avg_pool) = {
    .name = "global_avg_pool",
    .formula = "y[n,c] = mean over h,w of x[n,c,h,w]",
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

/* max_pool: y[n,c,p,q] = largest x[n,c, p*sh - top + a, q*sw - left + b] over a < kh, b < kw inside the image
 *
 * x [N,C,H,W], y [N,C,H',W']. Padding never wins; not-a-number does; of equal elements the first. Forward keeps which
 * element won as a*kw + b, one byte, so that backward needs neither x nor y. */
#include "kernels.h"
#include "pool.h"

/* ---- shape rule ---- */

enum { LARGEST_WINDOW = 255 }; /* an element's index fits a byte */

static tw_status infer(twi_infer *infer) {
    const twi_pool_attrs *attrs = infer->attrs;
    TWI_TRY(twi_pool_infer(infer));
    if ((int64_t)attrs->kernel_h * attrs->kernel_w > LARGEST_WINDOW)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "max_pool '%s': kernel %" PRId32 " x %" PRId32
                        ", expected %d elements at most; pool in two steps",
                        infer->name, attrs->kernel_h, attrs->kernel_w, LARGEST_WINDOW);
    return TW_OK;
}

/* ---- lowering ---- */

enum { SAVED_INDEX };

static void forward(twi_lower *lower) {
    twi_ref index = twi_lower_buffer(lower, "index", twi_lower_output_shape(lower, 0), TWI_U8, true);
    twi_lower_step(lower, &TWI_NAME(twi_kernel_max_pool_forward),
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0), index});
    twi_lower_save(lower, SAVED_INDEX, index);
}

static void backward(twi_lower *lower) {
    if (twi_lower_wants_gradient(lower, 0))
        twi_lower_step(lower, &TWI_NAME(twi_kernel_max_pool_backward),
                       (twi_ref[]){twi_lower_output_gradient(lower, 0), twi_lower_saved(lower, SAVED_INDEX),
                                   twi_lower_input_gradient(lower, 0)});
}

/* ---- specification ---- */

static void run_forward(const twi_call *call) {
    const twi_pool_attrs *attrs = call->attrs;
    const twi_operand *x = &call->operand[0], *y = &call->operand[1], *index = &call->operand[2];
    const tw_real *x_data = x->data;
    tw_real *y_data = y->data;
    uint8_t *index_data = index->data;
    for (int64_t n = 0; n < y->shape.dim[0]; n++)
        for (int64_t c = 0; c < y->shape.dim[1]; c++)
            for (int64_t p = 0; p < y->shape.dim[2]; p++)
                for (int64_t q = 0; q < y->shape.dim[3]; q++) {
                    tw_real largest = 0;
                    int winner = -1;
                    for (int a = 0; a < attrs->kernel_h; a++)
                        for (int b = 0; b < attrs->kernel_w; b++) {
                            int64_t h = p * attrs->stride_h - attrs->pad_top + a;
                            int64_t w = q * attrs->stride_w - attrs->pad_left + b;
                            if (!twi_pool_inside(x, h, w)) continue;
                            tw_real value = x_data[twi_at4(x, n, c, h, w)];
                            bool first_nan = value != value && largest == largest;
                            if (winner < 0 || value > largest || first_nan) {
                                largest = value;
                                winner = a * attrs->kernel_w + b;
                            }
                        }
                    y_data[twi_at4(y, n, c, p, q)] = largest;
                    index_data[twi_at4(index, n, c, p, q)] = (uint8_t)winner;
                }
}

static void run_backward(const twi_call *call) {
    const twi_pool_attrs *attrs = call->attrs;
    const twi_operand *dy = &call->operand[0], *index = &call->operand[1], *dx = &call->operand[2];
    const tw_real *dy_data = dy->data;
    const uint8_t *index_data = index->data;
    tw_real *dx_data = dx->data;
    twi_image_clear(dx);
    for (int64_t n = 0; n < dy->shape.dim[0]; n++)
        for (int64_t c = 0; c < dy->shape.dim[1]; c++)
            for (int64_t p = 0; p < dy->shape.dim[2]; p++)
                for (int64_t q = 0; q < dy->shape.dim[3]; q++) {
                    int winner = index_data[twi_at4(index, n, c, p, q)];
                    int64_t h = p * attrs->stride_h - attrs->pad_top + winner / attrs->kernel_w;
                    int64_t w = q * attrs->stride_w - attrs->pad_left + winner % attrs->kernel_w;
                    dx_data[twi_at4(dx, n, c, h, w)] += dy_data[twi_at4(dy, n, c, p, q)];
                }
}

/* ---- kernels ---- */

const twi_kernel TWI_NAME(twi_kernel_max_pool_forward) = {
    .name = "max_pool.forward",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0},
                {"index", TWI_WRITE, TWI_U8, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_forward,
};

const twi_kernel TWI_NAME(twi_kernel_max_pool_backward) = {
    .name = "max_pool.backward",
    .operand_count = 3,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"index", TWI_READ, TWI_U8, TWI_BATCHED, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_max_pool_forward),
                                            &TWI_NAME(twi_kernel_max_pool_backward), NULL};

/* ---- cases ---- */

static const twi_case cases[] = {
    {"2x2", {2, 3, 4, 6, 22, 22}},
    {"2x2 with a remainder", {2, 3, 5, 7, 22, 22}},
    {"one of everything", {1, 1, 1, 1, 11, 11}},
    {"kernel as large as the image", {2, 2, 3, 5, 35, 11}},
    {"windows overlap", {1, 3, 6, 5, 33, 11}},
    {"padding", {2, 2, 5, 6, 33, 22, 1111}},
    {"four different paddings", {1, 2, 5, 4, 34, 12, 1203}},
    {"ceil mode", {1, 2, 6, 7, 33, 22, 0, 1}},
    {"ceil mode, image smaller than the kernel", {1, 2, 1, 2, 33, 33, 0, 1}},
    {"ceil mode with padding", {1, 2, 5, 6, 22, 22, 1111, 1}},
    {"ceil mode, stride beyond the kernel", {1, 1, 8, 9, 33, 44, 0, 1}},
    {"one row", {2, 2, 1, 7, 13, 12, 101}},
    {"large 8 images", {8, 6, 8, 10, 22, 22}},
    {"large 17 images", {17, 5, 9, 7, 33, 22, 1111}},
    {"large 16 channels", {3, 16, 8, 8, 22, 22}},
    {"large 48 channels", {3, 48, 7, 9, 33, 22, 1111}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    return twi_pool_build_case(builder, c, "max_pool");
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_max_pool) = {
    .name = "max_pool",
    .formula = "y[n,c,p,q] = largest x[n,c] in the window at (p,q)",
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs = 1,
    .attrs = twi_pool_attr_table,
    .attr_count = TWI_POOL_MAX_ATTRS,
    .attr_size = sizeof(twi_pool_attrs),
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

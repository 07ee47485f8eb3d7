/* avg_pool: y[n,c,p,q] = sum of x[n,c, p*sh - top + a, q*sw - left + b] over a < kh, b < kw inside the image / divisor
 *
 * x [N,C,H,W], y [N,C,H',W']. The divisor counts the elements of the window inside the padded image; with
 * exclude_padding, inside the image. What overhangs the padded image in ceil mode never counts. */
#include "pool.h"

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

/* Elements along one axis of the window that starts at `start`, as far as they count. */
static int64_t counted(int64_t start, int64_t kernel, int64_t size, int64_t pad_after, bool exclude_padding) {
    int64_t limit = exclude_padding ? size : size + pad_after;
    int64_t end = start + kernel < limit ? start + kernel : limit;
    return end - (exclude_padding && start < 0 ? 0 : start);
}

static tw_real divisor(const twi_pool_attrs *attrs, const twi_operand *image, int64_t top, int64_t left) {
    return (tw_real)(counted(top, attrs->kernel_h, image->shape.dim[2], attrs->pad_bottom, attrs->exclude_padding) *
                     counted(left, attrs->kernel_w, image->shape.dim[3], attrs->pad_right, attrs->exclude_padding));
}

static void run_forward(const twi_call *call) {
    const twi_pool_attrs *attrs = call->attrs;
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    const tw_real *x_data = x->data;
    tw_real *y_data = y->data;
    for (int64_t n = 0; n < y->shape.dim[0]; n++)
        for (int64_t c = 0; c < y->shape.dim[1]; c++)
            for (int64_t p = 0; p < y->shape.dim[2]; p++)
                for (int64_t q = 0; q < y->shape.dim[3]; q++) {
                    int64_t top = p * attrs->stride_h - attrs->pad_top, left = q * attrs->stride_w - attrs->pad_left;
                    tw_real sum = 0;
                    for (int64_t h = top; h < top + attrs->kernel_h; h++)
                        for (int64_t w = left; w < left + attrs->kernel_w; w++)
                            if (twi_pool_inside(x, h, w)) sum += x_data[twi_at4(x, n, c, h, w)];
                    y_data[twi_at4(y, n, c, p, q)] = sum / divisor(attrs, x, top, left);
                }
}

static void run_backward(const twi_call *call) {
    const twi_pool_attrs *attrs = call->attrs;
    const twi_operand *dy = &call->operand[0], *dx = &call->operand[1];
    const tw_real *dy_data = dy->data;
    tw_real *dx_data = dx->data;
    twi_image_clear(dx);
    for (int64_t n = 0; n < dy->shape.dim[0]; n++)
        for (int64_t c = 0; c < dy->shape.dim[1]; c++)
            for (int64_t p = 0; p < dy->shape.dim[2]; p++)
                for (int64_t q = 0; q < dy->shape.dim[3]; q++) {
                    int64_t top = p * attrs->stride_h - attrs->pad_top, left = q * attrs->stride_w - attrs->pad_left;
                    tw_real part = dy_data[twi_at4(dy, n, c, p, q)] / divisor(attrs, dx, top, left);
                    for (int64_t h = top; h < top + attrs->kernel_h; h++)
                        for (int64_t w = left; w < left + attrs->kernel_w; w++)
                            if (twi_pool_inside(dx, h, w)) dx_data[twi_at4(dx, n, c, h, w)] += part;
                }
}

/* ---- kernels ---- */

static const twi_kernel kernel_forward = {
    .name = "avg_pool.forward",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_forward,
};

static const twi_kernel kernel_backward = {
    .name = "avg_pool.backward",
    .operand_count = 2,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_backward,
};

static const twi_kernel *const kernels[] = {&kernel_forward, &kernel_backward, NULL};

/* ---- cases ---- */

static const twi_case cases[] = {
    {"2x2", {2, 3, 4, 6, 22, 22}},
    {"2x2 with a remainder", {2, 3, 5, 7, 22, 22}},
    {"one of everything", {1, 1, 1, 1, 11, 11}},
    {"kernel as large as the image", {2, 2, 3, 5, 35, 11}},
    {"windows overlap", {1, 3, 6, 5, 33, 11}},
    {"padding counts", {2, 2, 5, 6, 33, 22, 1111, 0, 0}},
    {"padding excluded", {2, 2, 5, 6, 33, 22, 1111, 0, 1}},
    {"four different paddings", {1, 2, 5, 4, 34, 12, 1203, 0, 0}},
    {"four different paddings, excluded", {1, 2, 5, 4, 34, 12, 1203, 0, 1}},
    {"ceil mode", {1, 2, 6, 7, 33, 22, 0, 1, 0}},
    {"ceil mode, image smaller than the kernel", {1, 2, 1, 2, 33, 33, 0, 1}},
    {"ceil mode with padding", {1, 2, 4, 5, 33, 22, 1111, 1, 0}},
    {"ceil mode, padding excluded", {1, 2, 4, 5, 33, 22, 1111, 1, 1}},
    {"one row", {2, 2, 1, 7, 13, 12, 101, 0, 0}},
    {"large 17 images", {17, 5, 9, 7, 33, 22, 1111, 0, 0}},
    {"large 48 channels", {3, 48, 8, 8, 22, 22}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    return twi_pool_build_case(builder, c, "avg_pool");
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_avg_pool) = {
    .name = "avg_pool",
    .formula = "y[n,c,p,q] = mean of x[n,c] in the window at (p,q)",
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs = 1,
    .attrs = twi_pool_attr_table,
    .attr_count = TWI_POOL_AVERAGE_ATTRS,
    .attr_size = sizeof(twi_pool_attrs),
    .infer = twi_pool_infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

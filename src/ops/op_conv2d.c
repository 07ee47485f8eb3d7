/* conv2d: y[n,o,p,q] = sum over c,a,b of x[n, g*C/G + c, p*sh - top + a*dh, q*sw - left + b*dw] * w[o,c,a,b]
 *
 * x [N,C,H,W], w [O,C/G,kh,kw], y [N,O,H',W']; G groups, g = o / (O/G) the group of o; outside the image x is 0.
 * A cross-correlation, as everywhere in the field. The bias is an op of its own (op_bias.c). */
#include "backend/attrs.h"
#include "kernels.h"
#include "rules.h"
#include "window.h"

#include <inttypes.h>

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    const twi_conv2d_attrs *attrs = infer->attrs;
    TWI_TRY(twi_rule_input(infer, 0, "the input", 4, true));
    TWI_TRY(twi_rule_input(infer, 1, "the weight", 4, false));
    const twi_shape *x = &infer->input[0], *w = &infer->input[1];

    int64_t channels = x->dim[1], filters = w->dim[0], groups = attrs->groups;
    char x_text[TWI_SHAPE_TEXT], w_text[TWI_SHAPE_TEXT];
    twi_shape_text(x, x_text);
    twi_shape_text(w, w_text);
    if (groups < 1)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "conv2d '%s': groups is %" PRId64 ", expected 1 or more", infer->name,
                        groups);
    if (channels < 1 || filters < 1)
        return TWI_FAIL(TW_ERROR_SHAPE, "conv2d '%s': input %s, weight %s: expected 1 channel and 1 filter or more",
                        infer->name, x_text, w_text);
    if (channels % groups || filters % groups)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "conv2d '%s': groups is %" PRId64 ", but must divide the %" PRId64
                        " channels of the input %s and the %" PRId64 " filters of the weight %s",
                        infer->name, groups, channels, x_text, filters, w_text);
    if (w->dim[1] != channels / groups)
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "conv2d '%s': input %s has %" PRId64 " channels, weight %s with groups %" PRId64
                        " takes %" PRId64 " a group; expected a weight of %" PRId64 " there",
                        infer->name, x_text, channels, w_text, groups, w->dim[1], channels / groups);

    twi_shape y = {4, {x->dim[0], filters}};
    TWI_TRY(twi_window_positions(infer,
                                 &(twi_window){"h", "pad_top", "pad_bottom", x->dim[2], w->dim[2], attrs->stride_h,
                                               attrs->dilation_h, attrs->pad_top, attrs->pad_bottom, false},
                                 &y.dim[2]));
    TWI_TRY(twi_window_positions(infer,
                                 &(twi_window){"w", "pad_left", "pad_right", x->dim[3], w->dim[3], attrs->stride_w,
                                               attrs->dilation_w, attrs->pad_left, attrs->pad_right, false},
                                 &y.dim[3]));
    return twi_rule_output(infer, y);
}

/* ---- lowering ---- */

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &TWI_NAME(twi_kernel_conv2d_forward),
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_input(lower, 1), twi_lower_output(lower, 0)});
}

static void backward(twi_lower *lower) {
    twi_ref dy = twi_lower_output_gradient(lower, 0);
    if (twi_lower_wants_gradient(lower, 0))
        twi_lower_step(lower, &TWI_NAME(twi_kernel_conv2d_backward_data),
                       (twi_ref[]){dy, twi_lower_input(lower, 1), twi_lower_input_gradient(lower, 0)});
    if (twi_lower_wants_gradient(lower, 1))
        twi_lower_step(lower, &TWI_NAME(twi_kernel_conv2d_backward_weights),
                       (twi_ref[]){twi_lower_input(lower, 0), dy, twi_lower_input_gradient(lower, 1)});
}

/* ---- specification ---- */

/* Every product of a convolution pairs one element each of x, w and y. The three kernels visit the same pairs and
 * differ only in which of the three is the sum of products of the other two. */
typedef void (*twi_tap)(tw_real *x, tw_real *w, tw_real *y);

static inline void visit(const twi_conv2d_attrs *attrs, const twi_operand *x, const twi_operand *w,
                         const twi_operand *y, twi_tap tap) {
    int64_t filters_a_group = y->shape.dim[1] / attrs->groups, channels_a_group = w->shape.dim[1];
    for (int64_t n = 0; n < y->shape.dim[0]; n++)
        for (int64_t o = 0; o < y->shape.dim[1]; o++)
            for (int64_t p = 0; p < y->shape.dim[2]; p++)
                for (int64_t q = 0; q < y->shape.dim[3]; q++)
                    for (int64_t c = 0; c < channels_a_group; c++)
                        for (int64_t a = 0; a < w->shape.dim[2]; a++)
                            for (int64_t b = 0; b < w->shape.dim[3]; b++) {
                                int64_t row = p * attrs->stride_h - attrs->pad_top + a * attrs->dilation_h;
                                int64_t column = q * attrs->stride_w - attrs->pad_left + b * attrs->dilation_w;
                                if (row < 0 || row >= x->shape.dim[2] || column < 0 || column >= x->shape.dim[3])
                                    continue;
                                int64_t channel = o / filters_a_group * channels_a_group + c;
                                tap((tw_real *)x->data + twi_at4(x, n, channel, row, column),
                                    (tw_real *)w->data + twi_at4(w, o, c, a, b),
                                    (tw_real *)y->data + twi_at4(y, n, o, p, q));
                            }
}

static void tap_forward(tw_real *x, tw_real *w, tw_real *y) { *y += *x * *w; }
static void tap_backward_data(tw_real *dx, tw_real *w, tw_real *dy) { *dx += *dy * *w; }
static void tap_backward_weights(tw_real *x, tw_real *dw, tw_real *dy) { *dw += *dy * *x; }

static void run_forward(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1], *y = &call->operand[2];
    twi_image_clear(y);
    visit(call->attrs, x, w, y, tap_forward);
}

static void run_backward_data(const twi_call *call) {
    const twi_operand *dy = &call->operand[0], *w = &call->operand[1], *dx = &call->operand[2];
    twi_image_clear(dx);
    visit(call->attrs, dx, w, dy, tap_backward_data);
}

static void run_backward_weights(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    visit(call->attrs, x, dw, dy, tap_backward_weights);
}

/* ---- kernels ---- */

/* Padding is counted as if it were multiplied. */
static double flops(const twi_operand *w, const twi_operand *y) {
    return 2.0 * (double)twi_shape_count(&y->shape) * (double)twi_shape_count_from(&w->shape, 1);
}
static double flops_forward(const twi_call *call) { return flops(&call->operand[1], &call->operand[2]); }
static double flops_backward_data(const twi_call *call) { return flops(&call->operand[1], &call->operand[0]); }
static double flops_backward_weights(const twi_call *call) { return flops(&call->operand[2], &call->operand[1]); }

const twi_kernel TWI_NAME(twi_kernel_conv2d_forward) = {
    .name = "conv2d.forward",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .flops = flops_forward,
    .run = run_forward,
};

const twi_kernel TWI_NAME(twi_kernel_conv2d_backward_data) = {
    .name = "conv2d.backward_data",
    .operand_count = 3,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .flops = flops_backward_data,
    .run = run_backward_data,
};

const twi_kernel TWI_NAME(twi_kernel_conv2d_backward_weights) = {
    .name = "conv2d.backward_weights",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .flops = flops_backward_weights,
    .run = run_backward_weights,
    .by_range = "conv2d.backward_weights_ranged",
    .range_of = 2,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_conv2d_forward),
                                            &TWI_NAME(twi_kernel_conv2d_backward_data),
                                            &TWI_NAME(twi_kernel_conv2d_backward_weights), NULL};

/* ---- cases ---- */

/* Strides, dilations and paddings are written as digits, one for each of h, w or top, left, bottom, right. */
enum { BATCH, CHANNELS, HEIGHT, WIDTH, FILTERS, KERNEL_H, KERNEL_W, STRIDES, PADDINGS, DILATIONS, GROUPS };

static const twi_case cases[] = {
    {"3x3", {2, 3, 5, 7, 4, 3, 3, 11, 1111, 11, 1}},
    {"1x1", {2, 5, 3, 4, 3, 1, 1, 11, 0, 11, 1}},
    {"one of everything", {1, 1, 1, 1, 1, 1, 1, 11, 0, 11, 1}},
    {"kernel as large as the image", {2, 2, 4, 3, 3, 4, 3, 11, 0, 11, 1}},
    {"kernel larger than the image, padded", {1, 1, 2, 2, 2, 3, 4, 11, 1121, 11, 1}},
    {"one row", {2, 3, 1, 9, 2, 1, 3, 11, 101, 11, 1}},
    {"one column", {2, 3, 9, 1, 2, 3, 1, 11, 1010, 11, 1}},
    {"stride with a remainder", {2, 3, 8, 7, 4, 3, 3, 22, 1111, 11, 1}},
    {"strides differ", {1, 2, 7, 8, 3, 3, 2, 23, 0, 11, 1}},
    {"stride beyond the kernel", {1, 2, 7, 7, 2, 2, 2, 33, 0, 11, 1}},
    {"1x1 stride 2", {2, 4, 5, 6, 3, 1, 1, 22, 0, 11, 1}},
    {"padding on one side", {1, 2, 5, 5, 2, 3, 3, 11, 20, 11, 1}},
    {"four different paddings", {2, 1, 5, 6, 2, 3, 4, 21, 1203, 11, 1}},
    {"padding beyond the kernel", {1, 1, 3, 3, 1, 2, 2, 11, 3232, 11, 1}},
    {"dilation", {1, 2, 7, 9, 2, 3, 3, 11, 2222, 23, 1}},
    {"dilation and stride", {1, 2, 9, 8, 2, 2, 3, 21, 112, 32, 1}},
    {"groups", {2, 6, 5, 4, 4, 3, 3, 11, 1111, 11, 2}},
    {"depthwise", {2, 5, 6, 5, 5, 3, 3, 22, 1111, 11, 5}},
    {"depthwise with two filters a channel", {1, 3, 5, 5, 6, 3, 3, 11, 1010, 11, 3}},
    {"large 1 channel, 8 images", {8, 1, 12, 11, 6, 5, 5, 11, 2222, 11, 1}},
    {"large 3 channels, 16 images", {16, 3, 9, 10, 16, 3, 3, 11, 1111, 11, 1}},
    {"large 6 channels, 17 images", {17, 6, 9, 8, 5, 5, 5, 11, 0, 11, 1}},
    {"large 8 channels, strided", {9, 8, 11, 9, 12, 3, 3, 22, 1111, 11, 1}},
    {"large 16 channels", {3, 16, 9, 7, 16, 3, 3, 11, 1111, 11, 1}},
    {"large 16 to 48 channels", {17, 16, 7, 7, 48, 3, 3, 22, 1111, 11, 1}},
    {"large 1x1", {5, 32, 7, 5, 48, 1, 1, 11, 0, 11, 1}},
    {"large 1x1 stride 2", {3, 48, 7, 6, 32, 1, 1, 22, 0, 11, 1}},
    {"large paddings differ", {2, 16, 8, 8, 32, 3, 3, 22, 11, 11, 1}},
    {"large dilation", {2, 32, 9, 9, 16, 3, 3, 11, 2222, 22, 1}},
    {"large groups", {2, 32, 7, 7, 48, 3, 3, 11, 1111, 11, 2}},
    {"large depthwise", {2, 32, 9, 8, 32, 3, 3, 21, 1111, 11, 32}},
    {"large odd channels", {2, 17, 6, 7, 33, 3, 3, 11, 1111, 11, 1}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    const int64_t *p = c->p;
    twi_conv2d_attrs attrs = {
        .stride_h = (int32_t)(p[STRIDES] / 10),
        .stride_w = (int32_t)(p[STRIDES] % 10),
        .pad_top = (int32_t)(p[PADDINGS] / 1000),
        .pad_left = (int32_t)(p[PADDINGS] / 100 % 10),
        .pad_bottom = (int32_t)(p[PADDINGS] / 10 % 10),
        .pad_right = (int32_t)(p[PADDINGS] % 10),
        .dilation_h = (int32_t)(p[DILATIONS] / 10),
        .dilation_w = (int32_t)(p[DILATIONS] % 10),
        .groups = (int32_t)p[GROUPS],
    };
    tw_value *x = builder->input(builder, "x", 4, (int64_t[]){p[BATCH], p[CHANNELS], p[HEIGHT], p[WIDTH]});
    tw_value *w =
        builder->parameter(builder, "w", 4, (int64_t[]){p[FILTERS], p[CHANNELS] / p[GROUPS], p[KERNEL_H], p[KERNEL_W]});
    return builder->node(builder, "conv2d", "conv", 2, (tw_value *[]){x, w}, &attrs);
}

/* ---- record ---- */

#define ATTR(field, preset) \
    { #field, TWI_ATTR_INT, offsetof(twi_conv2d_attrs, field), preset }
static const twi_attr attr_table[] = {ATTR(stride_h, 1),   ATTR(stride_w, 1),   ATTR(pad_top, 0),
                                      ATTR(pad_left, 0),   ATTR(pad_bottom, 0), ATTR(pad_right, 0),
                                      ATTR(dilation_h, 1), ATTR(dilation_w, 1), ATTR(groups, 1)};

const twi_op TWI_NAME(twi_op_conv2d) = {
    .name = "conv2d",
    .formula = "y[n,o] = sum over c of w[o,c] (*) x[n,c], a cross-correlation with stride, padding, dilation, groups",
    .inputs_min = 2,
    .inputs_max = 2,
    .outputs = 1,
    .attrs = attr_table,
    .attr_count = sizeof attr_table / sizeof *attr_table,
    .attr_size = sizeof(twi_conv2d_attrs),
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};

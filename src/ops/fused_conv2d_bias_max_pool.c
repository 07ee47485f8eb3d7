/* A convolution with its bias, of whose result only the largest elements are kept:
 * y = relu(max_pool(conv2d(x, w) + b)), or without the relu, and the gradients of weights and input from that of what
 * the pooling gave
 *
 * The convolution's result, and its gradient, are never in memory as a whole: y and the index of the elements that won
 * are all the backward needs. Made by the fusion pass alone, where a back end has an implementation. */
#include "backend/attrs.h"
#include "bias_relu.h"

_Static_assert(sizeof(twi_conv2d_pool_attrs) == sizeof(twi_conv2d_attrs) + sizeof(twi_pool_attrs),
               "the fusion pass puts one struct behind the other");

/* ---- specification: the single kernels, one after the other, over a workspace ---- */

/* The convolution's result, from x, w and a value with its samples and channels. */
static twi_operand unpooled(const twi_call *call, int x, int w, int64_t channels) {
    const twi_conv2d_pool_attrs *attrs = call->attrs;
    const int64_t *image = call->operand[x].shape.dim, *kernel = call->operand[w].shape.dim;
    twi_operand full = call->operand[x];
    full.data = call->workspace;
    full.lanes = 0;
    full.shape = (twi_shape){4,
                             {image[0], channels, twi_conv2d_rows(&attrs->conv, image[2], kernel[2]),
                              twi_conv2d_columns(&attrs->conv, image[3], kernel[3])}};
    twi_shape_row_major(&full.shape, full.stride);
    return full;
}

static size_t floats_of(const twi_operand *full) { return (size_t)twi_shape_count(&full->shape) * sizeof(tw_real); }

/* The same call of a kernel on these operands. */
static void run_part(const twi_call *call, const twi_kernel *kernel, const void *attrs, twi_operand a, twi_operand b,
                     twi_operand c) {
    twi_call part = *call;
    part.attrs = attrs;
    part.operand_count = kernel->operand_count;
    part.operand[0] = a, part.operand[1] = b, part.operand[2] = c;
    kernel->run(&part);
}

enum { X, W, B, Y, INDEX };

static twi_operand forward_full(const twi_call *call) { return unpooled(call, X, W, call->operand[W].shape.dim[0]); }
static size_t forward_workspace(const twi_call *call) {
    twi_operand full = forward_full(call);
    return floats_of(&full);
}

static void run_forward(const twi_call *call) {
    const twi_conv2d_pool_attrs *attrs = call->attrs;
    const twi_operand *o = call->operand, full = forward_full(call);
    run_part(call, &TWI_NAME(twi_kernel_conv2d_forward), &attrs->conv, o[X], o[W], full);
    run_part(call, &TWI_NAME(twi_kernel_bias_forward), NULL, full, o[B], full);
    run_part(call, &TWI_NAME(twi_kernel_max_pool_forward), &attrs->pool, full, o[Y], o[INDEX]);
}

static void run_forward_relu(const twi_call *call) {
    const twi_operand y = call->operand[Y];
    run_forward(call);
    run_part(call, &TWI_NAME(twi_kernel_relu_forward), NULL, y, y, y);
}

enum { WEIGHTS_X, WEIGHTS_DY, WEIGHTS_INDEX, WEIGHTS_DW };

static twi_operand weights_full(const twi_call *call) {
    return unpooled(call, WEIGHTS_X, WEIGHTS_DW, call->operand[WEIGHTS_DW].shape.dim[0]);
}
static size_t weights_workspace(const twi_call *call) {
    twi_operand full = weights_full(call);
    return floats_of(&full);
}

static void run_backward_weights(const twi_call *call) {
    const twi_conv2d_pool_attrs *attrs = call->attrs;
    const twi_operand *o = call->operand, full = weights_full(call);
    run_part(call, &TWI_NAME(twi_kernel_max_pool_backward), &attrs->pool, o[WEIGHTS_DY], o[WEIGHTS_INDEX], full);
    run_part(call, &TWI_NAME(twi_kernel_conv2d_backward_weights), &attrs->conv, o[WEIGHTS_X], full, o[WEIGHTS_DW]);
}

enum { DATA_DY, DATA_INDEX, DATA_W, DATA_DX };

static twi_operand data_full(const twi_call *call) {
    return unpooled(call, DATA_DX, DATA_W, call->operand[DATA_W].shape.dim[0]);
}
static size_t data_workspace(const twi_call *call) {
    twi_operand full = data_full(call);
    return floats_of(&full);
}

static void run_backward_data(const twi_call *call) {
    const twi_conv2d_pool_attrs *attrs = call->attrs;
    const twi_operand *o = call->operand, full = data_full(call);
    run_part(call, &TWI_NAME(twi_kernel_max_pool_backward), &attrs->pool, o[DATA_DY], o[DATA_INDEX], full);
    run_part(call, &TWI_NAME(twi_kernel_conv2d_backward_data), &attrs->conv, full, o[DATA_W], o[DATA_DX]);
}

/* ---- kernels ---- */

/* As the convolution alone, whose result is in no operand; the bias and the comparisons are not counted. */
static double flops(twi_operand full, const twi_operand *w) {
    return 2.0 * (double)twi_shape_count(&full.shape) * (double)twi_shape_count_from(&w->shape, 1);
}
static double flops_forward(const twi_call *call) { return flops(forward_full(call), &call->operand[W]); }
static double flops_weights(const twi_call *call) { return flops(weights_full(call), &call->operand[WEIGHTS_DW]); }
static double flops_data(const twi_call *call) { return flops(data_full(call), &call->operand[DATA_W]); }

#define FORWARD_KERNEL(kernel_name, kernel_run)                                                            \
    {                                                                                                      \
        .name = kernel_name, .operand_count = 5,                                                           \
        .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},                                             \
                    {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},                                               \
                    {"b", TWI_READ, TWI_REAL, TWI_WHOLE, 0},                                               \
                    {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0},                                            \
                    {"index", TWI_WRITE, TWI_U8, TWI_BATCHED, 0}},                                         \
        .split = TWI_BY_SAMPLE, .flops = flops_forward, .run = kernel_run, .workspace = forward_workspace, \
    }

static const twi_kernel kernel_forward = FORWARD_KERNEL("conv2d.forward_bias_max_pool", run_forward);
static const twi_kernel kernel_forward_relu = FORWARD_KERNEL("conv2d.forward_bias_max_pool_relu", run_forward_relu);

static const twi_kernel kernel_backward_weights = {
    .name = "conv2d.backward_weights_unpooled",
    .operand_count = 4,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"index", TWI_READ, TWI_U8, TWI_BATCHED, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_SUMMED, 0}},
    .split = TWI_BY_SAMPLE,
    .flops = flops_weights,
    .run = run_backward_weights,
    .workspace = weights_workspace,
};

static const twi_kernel kernel_backward_data = {
    .name = "conv2d.backward_data_unpooled",
    .operand_count = 4,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"index", TWI_READ, TWI_U8, TWI_BATCHED, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .flops = flops_data,
    .run = run_backward_data,
    .workspace = data_workspace,
};

static const twi_kernel *const kernels[] = {&kernel_forward, &kernel_forward_relu, &kernel_backward_weights,
                                            &kernel_backward_data, NULL};

/* ---- cases ---- */

/* An image, filters; then digits: the kernel's height and width, its strides and paddings; the pooling window's height
 * and width, strides and paddings; and what stands around: 0 nothing, 1 relu before the pooling, 2 relu behind it; +
 * 10: ceil mode; + 20: another convolution (1x1, biased) and relu behind it, that reads y; + 30: y is flattened. */
enum {
    BATCH,
    CHANNELS,
    HEIGHT,
    WIDTH,
    FILTERS,
    KERNEL,
    STRIDES,
    PADDINGS,
    WINDOW,
    WINDOW_STRIDES,
    WINDOW_PADDINGS,
    REST
};

static const twi_case cases[] = {
    {"5x5, relu before", {2, 2, 8, 7, 3, 55, 11, 2222, 22, 22, 0, 1}},
    {"3x3, relu behind", {2, 3, 6, 5, 2, 33, 11, 1111, 22, 22, 0, 2}},
    {"no relu", {2, 2, 6, 6, 3, 33, 11, 0, 22, 22, 0, 0}},
    {"one of everything", {1, 1, 1, 1, 1, 11, 11, 0, 11, 11, 0, 1}},
    {"windows overlap", {1, 2, 7, 6, 2, 32, 11, 1010, 33, 21, 1111, 1}},
    {"windows leave gaps", {2, 1, 9, 8, 2, 22, 11, 0, 22, 33, 0, 1}},
    {"ceil mode", {2, 2, 7, 7, 2, 33, 11, 1111, 22, 22, 0, 11}},
    {"strides, paddings differ", {1, 2, 9, 8, 3, 34, 21, 1203, 23, 12, 1101, 2}},
    {"large LeNet, 16 images", {16, 1, 12, 12, 6, 55, 11, 2222, 22, 22, 0, 1}},
    {"large, one behind the other, 40 images", {40, 3, 10, 9, 6, 33, 11, 1111, 22, 22, 0, 21}},
    {"large, one behind the other, 9 images", {9, 2, 9, 11, 5, 33, 11, 1111, 33, 22, 1111, 22}},
    {"large 17 images", {17, 6, 12, 11, 16, 55, 11, 0, 22, 22, 0, 1}},
    {"large, windows overlap, strided", {24, 3, 17, 15, 7, 33, 22, 1111, 33, 22, 1111, 2}},
    {"large, windows leave gaps, no relu", {33, 4, 13, 14, 5, 23, 11, 1001, 22, 33, 0, 0}},
    {"large, gaps at the end too", {16, 2, 10, 10, 3, 22, 11, 0, 22, 33, 0, 1}},
    {"large, windows overlap up to the end", {16, 2, 8, 8, 3, 33, 11, 1111, 33, 22, 0, 11}},
    {"large, flattened", {19, 2, 6, 10, 3, 33, 11, 1111, 22, 22, 0, 31}},
    {NULL, {0}},
};

static tw_value *biased_conv(twi_builder *builder, const char *names[3], tw_value *x, const int64_t *w_dims,
                             const twi_conv2d_attrs *attrs) {
    tw_value *w = builder->parameter(builder, names[1], 4, w_dims);
    tw_value *y = builder->node(builder, "conv2d", names[0], 2, (tw_value *[]){x, w}, attrs);
    tw_value *b = builder->parameter(builder, names[2], 1, w_dims);
    char bias[16] = {names[0][0], 'b'};
    return builder->node(builder, "bias", bias, 2, (tw_value *[]){y, b}, NULL);
}

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    const int64_t *p = c->p;
    const twi_conv2d_attrs conv = {
        .stride_h = (int32_t)(p[STRIDES] / 10),
        .stride_w = (int32_t)(p[STRIDES] % 10),
        .pad_top = (int32_t)(p[PADDINGS] / 1000),
        .pad_left = (int32_t)(p[PADDINGS] / 100 % 10),
        .pad_bottom = (int32_t)(p[PADDINGS] / 10 % 10),
        .pad_right = (int32_t)(p[PADDINGS] % 10),
        .dilation_h = 1,
        .dilation_w = 1,
        .groups = 1,
    };
    const twi_conv2d_attrs point = {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 1};
    const twi_pool_attrs pool = {
        .kernel_h = (int32_t)(p[WINDOW] / 10),
        .kernel_w = (int32_t)(p[WINDOW] % 10),
        .stride_h = (int32_t)(p[WINDOW_STRIDES] / 10),
        .stride_w = (int32_t)(p[WINDOW_STRIDES] % 10),
        .pad_top = (int32_t)(p[WINDOW_PADDINGS] / 1000),
        .pad_left = (int32_t)(p[WINDOW_PADDINGS] / 100 % 10),
        .pad_bottom = (int32_t)(p[WINDOW_PADDINGS] / 10 % 10),
        .pad_right = (int32_t)(p[WINDOW_PADDINGS] % 10),
        .ceil_mode = p[REST] / 10 == 1,
    };
    tw_value *y = builder->input(builder, "x", 4, &p[BATCH]);
    y = biased_conv(builder, (const char *[]){"conv", "w", "b"}, y,
                    (int64_t[]){p[FILTERS], p[CHANNELS], p[KERNEL] / 10, p[KERNEL] % 10}, &conv);
    if (p[REST] % 10 == 1) y = builder->node(builder, "relu", "relu", 1, &y, NULL);
    y = builder->node(builder, "max_pool", "pool", 1, &y, &pool);
    if (p[REST] % 10 == 2) y = builder->node(builder, "relu", "relu", 1, &y, NULL);
    if (p[REST] / 10 == 3) return builder->node(builder, "flatten", "flatten", 1, &y, NULL);
    if (p[REST] / 10 != 2) return y;
    y = biased_conv(builder, (const char *[]){"second", "w2", "b2"}, y, (int64_t[]){4, p[FILTERS], 1, 1}, &point);
    y = builder->node(builder, "max_pool", "pool2", 1, &y,
                      &(twi_pool_attrs){.kernel_h = 2, .kernel_w = 1, .stride_h = 2, .stride_w = 1});
    return builder->node(builder, "relu", "relu2", 1, &y, NULL);
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_conv2d_bias_max_pool) = {
    .name = "conv2d_bias_max_pool",
    .formula = "y = relu(max_pool(conv2d(x, w) + b))",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "conv2d.forward_bias_max_pool",
    .asked = true,
};

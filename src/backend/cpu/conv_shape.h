/* A convolution call's sizes in one struct, for the implementations that work on f32 with channels innermost. */
#ifndef TWI_CPU_CONV_SHAPE_H
#define TWI_CPU_CONV_SHAPE_H

#include "dense.h"
#include "backend/attrs.h"
#include "base/text.h"

/* Row in_y of the input lies under row kernel_y of the kernel at output row out_y where
 * in_y * spread_h == out_y * stride_h + kernel_y * dilation_h - top; columns alike. */
typedef struct twi_conv_shape {
    int64_t samples, groups;
    int64_t in_h, in_w, in_c, out_h, out_w, out_c, kernel_h, kernel_w;
    int64_t stride_h, stride_w, dilation_h, dilation_w, top, left;
    int64_t spread_h, spread_w; /* 1, but in the gradient of a strided convolution, which has gaps between input rows */
} twi_conv_shape;

/* Of a call whose operands x, w and y stand at these places. */
static inline twi_conv_shape twi_conv_shape_of(const twi_call *call, int x, int w, int y) {
    const twi_conv2d_attrs *a = call->attrs;
    const int64_t *in = call->operand[x].shape.dim, *kernel = call->operand[w].shape.dim;
    const int64_t *out = call->operand[y].shape.dim;
    /* clang-format off */
    return (twi_conv_shape){
        .samples = in[0], .groups = a->groups,
        .in_h = in[2], .in_w = in[3], .in_c = in[1],
        .out_h = out[2], .out_w = out[3], .out_c = out[1],
        .kernel_h = kernel[2], .kernel_w = kernel[3],
        .stride_h = a->stride_h, .stride_w = a->stride_w,
        .dilation_h = a->dilation_h, .dilation_w = a->dilation_w,
        .top = a->pad_top, .left = a->pad_left,
        .spread_h = 1, .spread_w = 1,
    };
    /* clang-format on */
}

/* The same where operand y is what a max pooling gives of its result. */
static inline twi_conv_shape twi_conv_pooled_shape_of(const twi_call *call, int x, int w, int y) {
    const twi_conv2d_pool_attrs *a = call->attrs; /* in which the convolution's stand first */
    twi_conv_shape s = twi_conv_shape_of(call, x, w, y);
    s.out_h = twi_conv2d_rows(&a->conv, s.in_h, s.kernel_h);
    s.out_w = twi_conv2d_columns(&a->conv, s.in_w, s.kernel_w);
    return s;
}

/* The gradient of a convolution's input is itself a convolution: of dy, with the kernel turned by half a circle. */
static inline twi_conv_shape twi_conv_shape_backward(const twi_conv_shape *s) {
    twi_conv_shape b = *s;
    b.in_h = s->out_h, b.in_w = s->out_w, b.in_c = s->out_c;
    b.out_h = s->in_h, b.out_w = s->in_w, b.out_c = s->in_c;
    b.spread_h = s->stride_h, b.spread_w = s->stride_w;
    b.stride_h = s->spread_h, b.stride_w = s->spread_w;
    b.top = (s->kernel_h - 1) * s->dilation_h - s->top;
    b.left = (s->kernel_w - 1) * s->dilation_w - s->left;
    return b;
}

/* first .. end-1 along one axis: taps of a kernel, or places of the result. */
typedef struct twi_span {
    int64_t first, end;
} twi_span;

/* Those of `count`, the first at `begin` and the others so far apart, that lie inside an image of `in`. */
static inline twi_span twi_span_inside(int64_t begin, int64_t apart, int64_t count, int64_t in) {
    twi_span span = {0, 0};
    if (begin < 0) span.first = (-begin + apart - 1) / apart < count ? (-begin + apart - 1) / apart : count;
    if (begin < in) span.end = (in - 1 - begin) / apart + 1 < count ? (in - 1 - begin) / apart + 1 : count;
    if (span.end < span.first) span.end = span.first;
    return span;
}

/* NULL, or why the operands of a convolution are not as these implementations want them. */
static inline const char *twi_conv_refuse_layout(const twi_call *call) {
    for (int i = 0; i < call->operand_count; i++) {
        if (!twi_is_f32(&call->operand[i])) return "an operand is not f32";
        if (!twi_is_channels_last(&call->operand[i])) return "an operand is not dense with channels innermost";
    }
    return NULL;
}

/* What the time of a convolution depends on beside its operands. */
static inline void twi_conv_describe(const twi_call *call, twi_text *text) {
    const twi_conv2d_attrs *a = call->attrs;
    twi_text_add(text, " stride %d,%d padding %d,%d,%d,%d dilation %d,%d groups %d", (int)a->stride_h, (int)a->stride_w,
                 (int)a->pad_top, (int)a->pad_left, (int)a->pad_bottom, (int)a->pad_right, (int)a->dilation_h,
                 (int)a->dilation_w, (int)a->groups);
}

/* The same of one with a max pooling behind it. */
static inline void twi_conv_pool_describe(const twi_call *call, twi_text *text) {
    const twi_pool_attrs *p = &((const twi_conv2d_pool_attrs *)call->attrs)->pool;
    twi_conv_describe(call, text); /* whose attributes stand first */
    twi_text_add(text, " pool %d,%d stride %d,%d padding %d,%d", (int)p->kernel_h, (int)p->kernel_w, (int)p->stride_h,
                 (int)p->stride_w, (int)p->pad_top, (int)p->pad_left);
}

#endif

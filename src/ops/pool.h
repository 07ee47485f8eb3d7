/* What max and average pooling share: attributes, shape rule, cases. What they do with a window is in their own
 * files. */
#ifndef TWI_OPS_POOL_H
#define TWI_OPS_POOL_H

#include "backend/attrs.h"
#include "rules.h"
#include "window.h"

/* The last row is for average pooling only. */
#define TWI_POOL_ATTR(field, type, preset) \
    { #field, type, offsetof(twi_pool_attrs, field), preset }
static const twi_attr twi_pool_attr_table[] = {
    TWI_POOL_ATTR(kernel_h, TWI_ATTR_INT, 1),   TWI_POOL_ATTR(kernel_w, TWI_ATTR_INT, 1),
    TWI_POOL_ATTR(stride_h, TWI_ATTR_INT, 1),   TWI_POOL_ATTR(stride_w, TWI_ATTR_INT, 1),
    TWI_POOL_ATTR(pad_top, TWI_ATTR_INT, 0),    TWI_POOL_ATTR(pad_left, TWI_ATTR_INT, 0),
    TWI_POOL_ATTR(pad_bottom, TWI_ATTR_INT, 0), TWI_POOL_ATTR(pad_right, TWI_ATTR_INT, 0),
    TWI_POOL_ATTR(ceil_mode, TWI_ATTR_BOOL, 0), TWI_POOL_ATTR(exclude_padding, TWI_ATTR_BOOL, 0),
};
enum {
    TWI_POOL_AVERAGE_ATTRS = sizeof twi_pool_attr_table / sizeof *twi_pool_attr_table,
    TWI_POOL_MAX_ATTRS = TWI_POOL_AVERAGE_ATTRS - 1
};

/* Every window must hold at least one element of the image, so a padding must be smaller than the kernel. */
static inline tw_status twi_pool_axis(const twi_infer *infer, const twi_window *window, int64_t *positions) {
    TWI_TRY(twi_window_positions(infer, window, positions));
    bool before = window->pad_before >= window->kernel;
    if (before || window->pad_after >= window->kernel)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "%s '%s': %s is %" PRId64 ", expected less than kernel_%s, %" PRId64
                        ", or a window may see nothing but padding",
                        infer->op->name, infer->name, before ? window->before : window->after,
                        before ? window->pad_before : window->pad_after, window->axis, window->kernel);
    return TW_OK;
}

static inline tw_status twi_pool_infer(twi_infer *infer) {
    const twi_pool_attrs *attrs = infer->attrs;
    TWI_TRY(twi_rule_input(infer, 0, "the input", 4, true));
    const twi_shape *x = &infer->input[0];
    twi_shape y = *x;
    TWI_TRY(twi_pool_axis(infer,
                          &(twi_window){"h", "pad_top", "pad_bottom", x->dim[2], attrs->kernel_h, attrs->stride_h, 1,
                                        attrs->pad_top, attrs->pad_bottom, attrs->ceil_mode},
                          &y.dim[2]));
    TWI_TRY(twi_pool_axis(infer,
                          &(twi_window){"w", "pad_left", "pad_right", x->dim[3], attrs->kernel_w, attrs->stride_w, 1,
                                        attrs->pad_left, attrs->pad_right, attrs->ceil_mode},
                          &y.dim[3]));
    return twi_rule_output(infer, y);
}

/* Is (h, w) in the image? */
static inline bool twi_pool_inside(const twi_operand *image, int64_t h, int64_t w) {
    return h >= 0 && h < image->shape.dim[2] && w >= 0 && w < image->shape.dim[3];
}

/* Cases: an image, then digits for h, w or top, left, bottom, right, then 0 or 1. */
enum { TWI_POOL_IMAGE, TWI_POOL_KERNEL = 4, TWI_POOL_STRIDES, TWI_POOL_PADDINGS, TWI_POOL_CEIL, TWI_POOL_EXCLUDE };

static inline tw_value *twi_pool_build_case(twi_builder *builder, const twi_case *c, const char *op) {
    const int64_t *p = c->p;
    twi_pool_attrs attrs = {
        .kernel_h = (int32_t)(p[TWI_POOL_KERNEL] / 10),
        .kernel_w = (int32_t)(p[TWI_POOL_KERNEL] % 10),
        .stride_h = (int32_t)(p[TWI_POOL_STRIDES] / 10),
        .stride_w = (int32_t)(p[TWI_POOL_STRIDES] % 10),
        .pad_top = (int32_t)(p[TWI_POOL_PADDINGS] / 1000),
        .pad_left = (int32_t)(p[TWI_POOL_PADDINGS] / 100 % 10),
        .pad_bottom = (int32_t)(p[TWI_POOL_PADDINGS] / 10 % 10),
        .pad_right = (int32_t)(p[TWI_POOL_PADDINGS] % 10),
        .ceil_mode = p[TWI_POOL_CEIL] != 0,
        .exclude_padding = p[TWI_POOL_EXCLUDE] != 0,
    };
    tw_value *x = builder->input(builder, "x", 4, &p[TWI_POOL_IMAGE]);
    return builder->node(builder, op, "pool", 1, &x, &attrs);
}

#endif

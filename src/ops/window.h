/* How many positions a sliding window takes along one image axis: the one place where convolution and pooling check
 * kernel, stride, dilation and padding. Nothing here divides before the divisor is known to be positive. */
#ifndef TWI_OPS_WINDOW_H
#define TWI_OPS_WINDOW_H

#include "op.h"
#include <inttypes.h>

typedef struct twi_window {
    const char *axis;           /* "h" or "w": ends the parameter names in messages */
    const char *before, *after; /* names of the paddings: "pad_top", "pad_bottom" */
    int64_t size;               /* of the image along the axis */
    int64_t kernel, stride, dilation;
    int64_t pad_before, pad_after;
    bool ceil_mode; /* also positions that overhang the end, as long as they start inside */
} twi_window;

/* *positions = floor((size + pads - dilation * (kernel - 1) - 1) / stride) + 1. In ceil mode the quotient is rounded
 * up, but the last window must start inside the image or the padding before it (as in PyTorch). */
static inline tw_status twi_window_positions(const twi_infer *infer, const twi_window *window, int64_t *positions) {
    const struct {
        const char *name, *suffix;
        int64_t value, least;
    } parameters[] = {
        {"image size ", window->axis, window->size, 1}, {"kernel_", window->axis, window->kernel, 1},
        {"stride_", window->axis, window->stride, 1},   {"dilation_", window->axis, window->dilation, 1},
        {window->before, "", window->pad_before, 0},    {window->after, "", window->pad_after, 0},
    };
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
        if (parameters[i].value < parameters[i].least)
            return TWI_FAIL(TW_ERROR_ARGUMENT, "%s '%s': %s%s is %" PRId64 ", expected %" PRId64 " or more",
                            infer->op->name, infer->name, parameters[i].name, parameters[i].suffix, parameters[i].value,
                            parameters[i].least);

    int64_t extent, padded;
    if (__builtin_mul_overflow(window->dilation, window->kernel - 1, &extent) ||
        __builtin_add_overflow(extent, 1, &extent) ||
        __builtin_add_overflow(window->size, window->pad_before, &padded) ||
        __builtin_add_overflow(padded, window->pad_after, &padded) || padded > INT64_MAX - window->stride)
        return TWI_FAIL(TW_ERROR_OVERFLOW,
                        "%s '%s': kernel_%s %" PRId64 ", dilation_%s %" PRId64 ", padding %" PRId64 " + %" PRId64
                        " on %" PRId64 " do not fit 64 bits; use smaller values",
                        infer->op->name, infer->name, window->axis, window->kernel, window->axis, window->dilation,
                        window->pad_before, window->pad_after, window->size);
    int64_t room = padded - extent + (window->ceil_mode ? window->stride - 1 : 0);
    if (room < 0)
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "%s '%s': kernel_%s %" PRId64 " (%" PRId64 " with dilation %" PRId64
                        ") is larger than the padded input, %" PRId64 " + %" PRId64 " + %" PRId64
                        "; use a smaller kernel or more padding",
                        infer->op->name, infer->name, window->axis, window->kernel, extent, window->dilation,
                        window->pad_before, window->size, window->pad_after);

    *positions = room / window->stride + 1;
    if (window->ceil_mode && (*positions - 1) * window->stride >= window->size + window->pad_before) --*positions;
    return TW_OK;
}

/* For specification loops: sets an image to zero before windows that overlap add to it. */
static inline void twi_image_clear(const twi_operand *image) {
    int64_t elements = twi_sample_count(image);
    for (int64_t n = 0; n < image->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++) ((tw_real *)image->data)[twi_offset(image, n, i)] = 0;
}

#endif

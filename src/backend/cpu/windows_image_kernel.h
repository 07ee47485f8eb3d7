/* What convolutions that pool their result in windows of 2x2 lie on: rows of the input in lanes, with their borders. */
#ifndef TWI_CPU_WINDOWS_IMAGE_KERNEL_H
#define TWI_CPU_WINDOWS_IMAGE_KERNEL_H

#include "lanes_image_kernel.h"

/* Rows that the kernel comes to, its borders with it. */
static int64_t reached_rows(const twi_conv_shape *s) { return (s->out_h - 1) * s->stride_h + s->kernel_h; }
static int64_t lane_row_floats(const twi_conv_shape *s) { return image_columns(s) * s->in_c * VEC_WIDTH; }

/* Can rows be read where they are? */
static bool lies_ready(const twi_conv_shape *s, twi_lanes_tensor x, int live) {
    return x.turned && live == VEC_WIDTH && s->left == 0 && image_columns(s) == s->in_w;
}

/* Row y, which lies inside of the image, of the samples from n on: where it is, or in `to`, in whose borders nothing is
 * written. */
static const float *row_in_lanes(const twi_conv_shape *s, twi_lanes_tensor x, int64_t n, int live, int64_t y,
                                 float *to) {
    const int64_t row = s->in_w * s->in_c, sample = s->in_h * row;
    const float *from = (const float *)x.data + n * sample + y * row * (x.turned ? VEC_WIDTH : 1);
    if (lies_ready(s, x, live)) return from;
    const int64_t used = twi_larger(twi_smaller(s->in_w, image_columns(s) - s->left), 0) * s->in_c;
    float *at = to + s->left * s->in_c * VEC_WIDTH;
    if (x.turned)
        copy_live(from, live, used, at);
    else
        to_lanes(from, sample, live, used, at);
    return to;
}

#endif

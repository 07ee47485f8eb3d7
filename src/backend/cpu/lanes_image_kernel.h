/* The input of a convolution in lanes: a block of VEC_WIDTH images with their borders, from samples, from lanes, or from
 * the gradient of what was pooled. */
#ifndef TWI_CPU_LANES_IMAGE_KERNEL_H
#define TWI_CPU_LANES_IMAGE_KERNEL_H

#include "lanes_pool_kernel.h"

/* The input of a group in lanes: rows as they are, each in `columns` pixels with the zeros left and right, and between
 * pixels that are spread, in place. Rows of zeros are left out: who walks over rows skips them. */
static int64_t image_columns(const twi_conv_shape *s) {
    return (s->out_w - 1) * s->stride_w + (s->kernel_w - 1) * s->dilation_w + 1;
}
/* Rows that the kernel comes to, those of zeros with them. */
static int64_t reached_rows(const twi_conv_shape *s) {
    return (s->out_h - 1) * s->stride_h + (s->kernel_h - 1) * s->dilation_h + 1;
}
static int64_t image_floats(const twi_conv_shape *s) { return s->in_h * image_columns(s) * s->in_c * VEC_WIDTH; }

/* Input columns that lie on the image's columns: first .. end-1. */
static void used_columns(const twi_conv_shape *s, int64_t *first, int64_t *end) {
    *first = s->left < 0 ? (-s->left + s->spread_w - 1) / s->spread_w : 0;
    *end = twi_smaller(s->in_w, (image_columns(s) - s->left + s->spread_w - 1) / s->spread_w);
}

/* Columns first .. end-1 of an image. */
typedef struct span {
    int64_t first, end;
} span;

static span all_columns(const twi_conv_shape *s) { return (span){0, image_columns(s)}; }

/* Zeros where no input lies, in the columns that are read. */
static void clear_borders(const twi_conv_shape *s, span read, float *image) {
    const int64_t pixel = s->in_c * VEC_WIDTH, columns = image_columns(s);
    int64_t left = twi_smaller(twi_larger(s->left, read.first), read.end);
    int64_t right = twi_larger(s->left + s->in_w, left);
    if (s->spread_w > 1) left = right = read.end;
    for (int64_t row = 0; row < s->in_h; row++, image += columns * pixel) {
        memset(image + read.first * pixel, 0, (size_t)((left - read.first) * pixel) * sizeof(float));
        if (right < read.end) memset(image + right * pixel, 0, (size_t)((read.end - right) * pixel) * sizeof(float));
    }
}

/* The image of the samples from n on: in scratch, with those of its borders that are read, or where it is. */
static const float *image_in_lanes(const twi_conv_shape *s, span read, twi_lanes_tensor x, int64_t n, int live,
                                   float *scratch) {
    const int64_t columns = image_columns(s), sample = s->in_h * s->in_w * s->in_c;
    const float *from = (const float *)x.data + n * sample;
    int64_t first, end;
    used_columns(s, &first, &end);
    if (x.turned && live == VEC_WIDTH && s->left == 0 && s->spread_w == 1 && columns == s->in_w) return from;
    if (n == 0) clear_borders(s, read, scratch);
    int64_t run = s->spread_w == 1 ? twi_larger(end - first, 1) : 1;
    for (int64_t row = 0; row < s->in_h; row++) {
        for (int64_t x_at = first; x_at < end; x_at += run) {
            int64_t at = (row * s->in_w + x_at) * s->in_c;
            float *to = scratch + (row * columns + x_at * s->spread_w + s->left) * s->in_c * VEC_WIDTH;
            if (x.turned)
                copy_live(from + at * VEC_WIDTH, live, run * s->in_c, to);
            else
                to_lanes(from + at, sample, live, run * s->in_c, to);
        }
    }
    return scratch;
}

/* The same of an image that is the gradient of what was pooled to x. */
static const float *unpooled_image(const twi_conv_shape *s, span read, twi_lanes_tensor x, const twi_lanes_pool *pool,
                                   int64_t n, int live, float *scratch, float *turned) {
    const int64_t pixel = s->in_c * VEC_WIDTH, columns = image_columns(s);
    pool_block block = pool_block_in_lanes(pool, x, s->in_c, n, live, turned);
    int64_t first, end;
    used_columns(s, &first, &end);
    if (!pool_is_exact(pool, s->in_h, s->in_w))
        memset(scratch, 0, (size_t)image_floats(s) * sizeof(float));
    else if (n == 0)
        clear_borders(s, read, scratch);
    unpool_rows(pool, &block,
                &(pool_target){.height = s->in_h,
                               .width = s->in_w,
                               .channels = s->in_c,
                               .some = s->in_c,
                               .first_column = first,
                               .end_column = end,
                               .row = columns * pixel,
                               .column = s->spread_w * pixel,
                               .at = scratch + s->left * pixel},
                0, s->in_h);
    return scratch;
}

#endif

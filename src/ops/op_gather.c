/* Where the samples of a run come from, in a program over a resident data set: the next ones of the epoch's order.
 *
 *   s = order[position + n]
 *   x[n,c,i,j] = normalised image[s] at c, i + down, j + right of the mirrored or plain sample; 0 outside
 *   labels[n] = label[s]
 *
 * Mirroring and shift (down, right) are drawn by (seed, epoch, s), as base/augment.h says. Images are u8 (gather.bytes)
 * or f32 (gather.floats). The data set itself is no operand: it is found through the control block, so that a program
 * can go from one to another, and so that nobody counts all of it as what a step touches. Images and labels are steps
 * of their own, which have no say in how others are cut (schedule.c): chunks are as if it had been fed. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

typedef tw_real pixel_fn(const void *image, int64_t at, const float *numbers);

static tw_real byte_at(const void *image, int64_t at, const float *numbers) {
    return twi_pixel_of_u8(((const uint8_t *)image)[at], numbers);
}
static tw_real float_at(const void *image, int64_t at, const float *numbers) {
    return twi_pixel_of_f32(((const float *)image)[at], numbers);
}

/* Sample n of x, element by element in logical order. */
static void write_sample(const twi_call *call, int64_t n, const void *image, tw_dtype dtype) {
    pixel_fn *pixel_at = dtype == TW_U8 ? byte_at : float_at;
    const twi_gather_attrs *attrs = call->attrs;
    const twi_operand *xo = &call->operand[1];
    const float *numbers = TWI_DATA(const float, call, 0);
    tw_real *x = TWI_DATA(tw_real, call, 1);
    const int64_t height = attrs->height, width = attrs->width;
    const twi_change change =
        twi_augment_draw(&attrs->augment, call->control->resident.epoch, (uint64_t)twi_call_resident(call, n));
    int64_t index = 0;
    for (int64_t c = 0; c < attrs->channels; c++, numbers += twi_pixel_numbers(dtype))
        for (int64_t i = 0; i < height; i++)
            for (int64_t j = 0; j < width; j++, index++) {
                int64_t row = i + change.down, column = j + change.right;
                bool inside = row >= 0 && row < height && column >= 0 && column < width;
                if (change.flip) column = width - 1 - column;
                x[twi_offset(xo, n, index)] =
                    inside ? pixel_at(image, (c * height + row) * width + column, numbers) : 0;
            }
}

static void write_images(const twi_call *call, tw_dtype dtype) {
    const size_t sample_bytes = (size_t)twi_sample_count(&call->operand[1]) * tw_dtype_size(dtype);
    for (int64_t n = 0; n < call->operand[1].shape.dim[0]; n++)
        write_sample(call, n,
                     (const char *)call->control->resident.images + (size_t)twi_call_resident(call, n) * sample_bytes,
                     dtype);
}

static void bytes_run(const twi_call *call) { write_images(call, TW_U8); }
static void floats_run(const twi_call *call) { write_images(call, TW_F32); }

static void labels_run(const twi_call *call) {
    for (int64_t n = 0; n < call->operand[0].shape.dim[0]; n++) TWI_DATA(int32_t, call, 0)
    [n * call->operand[0].stride[0]] = call->control->resident.labels[twi_call_resident(call, n)];
}

/* ---- kernels ---- */

/* numbers: of each channel those of twi_pixel_fill */
#define IMAGE_OPERANDS                                                                             \
    {                                                                                              \
        {"numbers", TWI_READ, TWI_F32, TWI_WHOLE, 0}, { "x", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0 } \
    }

static const twi_kernel bytes = {
    .name = "gather.bytes",
    .operand_count = 2,
    .operand = IMAGE_OPERANDS,
    .split = TWI_BY_SAMPLE,
    .types = TWI_TYPES_READERS,
    .run = bytes_run,
};

static const twi_kernel floats = {
    .name = "gather.floats",
    .operand_count = 2,
    .operand = IMAGE_OPERANDS,
    .split = TWI_BY_SAMPLE,
    .types = TWI_TYPES_READERS,
    .run = floats_run,
};

static const twi_kernel labels = {
    .name = "gather.labels",
    .operand_count = 1,
    .operand = {{"labels", TWI_WRITE, TWI_I32, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = labels_run,
};

/* ---- record: put before everything by the lowering pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&bytes, &floats, &labels, NULL};

const twi_op TWI_NAME(twi_op_gather) = {
    .name = "gather",
    .formula = "x[n], labels[n] = sample order[position + n] of a resident set",
    .attr_size = sizeof(twi_gather_attrs),
    .kernels = kernels,
};

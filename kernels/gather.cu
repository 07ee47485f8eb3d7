/* The samples of a run, taken from a resident data set in the epoch's order, normalised, mirrored and shifted. Formulas:
 * src/ops/op_gather.c; what chance does to a sample: src/base/augment.h. */
#include "backend/attrs.h"
#include "entries.h"
#include "space.cuh"

namespace {

/* Sample n of the run by its number in the set. */
__device__ inline int64_t resident_sample(const twi_resident_view &resident, int64_t n) {
    return resident.order[(int64_t)resident.position + n];
}

__device__ inline float pixel(uint8_t x, const float *numbers) { return twi_pixel_of_u8(x, numbers); }
__device__ inline float pixel(float x, const float *numbers) { return twi_pixel_of_f32(x, numbers); }

/* x in logical order, which is that of the set: its shape may be another than the samples'. */
enum { MEMORY, LOGICAL, VIEWS };

/* A thread makes one pixel in all channels. */
template <class T, class Pixel>
__global__ void gather(twi_gather_attrs attrs, const twi_control *control, int64_t first, int64_t samples,
                       twk_divisor height, twk_divisor width, const float *numbers, int count, T *x,
                       twk_space<VIEWS> space) {
    int64_t thread = twk_thread(), i, j, n = twk_divide(height, twk_divide(width, thread, &j), &i);
    if (n >= samples) return;
    int64_t plane = height.value * width.value, sample = resident_sample(control->resident, first + n);
    const twi_change change = twi_augment_draw(&attrs.augment, control->resident.epoch, (uint64_t)sample);
    int64_t row = i + change.down, column = j + change.right;
    bool inside = row >= 0 && row < height.value && column >= 0 && column < width.value;
    if (change.flip) column = width.value - 1 - column;
    const Pixel *image = (const Pixel *)control->resident.images + sample * attrs.channels * plane;
    for (int64_t c = 0; c < attrs.channels; c++) {
        int64_t at[VIEWS];
        space.offsets((n * attrs.channels + c) * plane + i * width.value + j, at);
        float value = inside ? pixel(image[c * plane + row * width.value + column], numbers + c * count) : 0;
        x[at[MEMORY]] = twk_element<T>(value);
    }
}

__global__ void gather_labels(const twi_control *control, int64_t first, int64_t samples, int32_t *labels,
                              int64_t stride) {
    int64_t n = twk_thread();
    if (n < samples) labels[n * stride] = control->resident.labels[resident_sample(control->resident, first + n)];
}

template <class T, class Pixel> cudaError_t run_images(const twi_call *call, const twk_launch *launch, tw_dtype dtype) {
    const twi_gather_attrs *attrs = (const twi_gather_attrs *)call->attrs;
    const twi_operand *numbers = &call->operand[0], *x = &call->operand[1];
    twk_view views[VIEWS] = {twk_view_of(x), {{0}}};
    twi_shape_row_major(&x->shape, views[LOGICAL].stride);
    int64_t samples = x->shape.dim[0], threads = samples * attrs->height * attrs->width;
    if (threads == 0) return cudaSuccess;
    return TWC_LAUNCH((gather<T, Pixel>), twk_blocks(threads), TWK_THREADS, 0, launch->stream, *attrs, call->control,
                      call->sample, samples, twk_divisor_of(attrs->height), twk_divisor_of(attrs->width),
                      (const float *)numbers->data, (int)twi_pixel_numbers(dtype), (T *)x->data,
                      (twk_space_of<VIEWS>(&x->shape, 0, -1, views, LOGICAL)));
}

template <class T> cudaError_t run_bytes(const twi_call *call, const twk_launch *launch) {
    return run_images<T, uint8_t>(call, launch, TW_U8);
}
template <class T> cudaError_t run_floats(const twi_call *call, const twk_launch *launch) {
    return run_images<T, float>(call, launch, TW_F32);
}

cudaError_t run_labels(const twi_call *call, const twk_launch *launch) {
    const twi_operand *labels = &call->operand[0];
    int64_t samples = labels->shape.dim[0];
    if (samples == 0) return cudaSuccess;
    return TWC_LAUNCH(gather_labels, twk_blocks(samples), TWK_THREADS, 0, launch->stream, call->control, call->sample,
                      samples, (int32_t *)labels->data, labels->stride[0]);
}

} // namespace

extern "C" const twk_entry twk_gather_entries[] = {
    {"gather.bytes", NULL, NULL, TWK_TYPED(run_bytes)},
    {"gather.floats", NULL, NULL, TWK_TYPED(run_floats)},
    {"gather.labels", NULL, NULL, run_labels},
    {},
};

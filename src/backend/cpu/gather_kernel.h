/* gather.bytes, gather.floats: samples of a resident set, row by row. Where channels are innermost, a row of all of them is
 * written in one go. */
#include "backend/attrs.h"
#include "dense.h"
#include "loops.h"
#include "vec.h"

/* A run of pixels: `lanes` channels, whose planes lie `plane` apart, become neighbours. */
typedef struct pixel_planes {
    const void *from;
    const float *numbers;
    int64_t plane, lanes;
} pixel_planes;

typedef void pixel_run(float *to, const pixel_planes *planes, int64_t first, int64_t step, int64_t count);

VEC_INLINE void byte_lanes(float *to, const pixel_planes *p, int64_t lanes, int64_t first, int64_t step,
                           int64_t count) {
    const uint8_t *from = (const uint8_t *)p->from + first;
    for (int64_t i = 0; i < count; i++, from += step, to += lanes)
        for (int64_t c = 0; c < lanes; c++) to[c] = p->numbers[256 * c + from[c * p->plane]];
}
VEC_INLINE void byte_run(float *to, const pixel_planes *p, int64_t first, int64_t step, int64_t count) {
    if (p->lanes == 1)
        byte_lanes(to, p, 1, first, step, count);
    else if (p->lanes == 3)
        byte_lanes(to, p, 3, first, step, count);
    else
        byte_lanes(to, p, p->lanes, first, step, count);
}

VEC_INLINE void float_lanes(float *to, const pixel_planes *p, int64_t lanes, int64_t first, int64_t step,
                            int64_t count) {
    const float *from = (const float *)p->from + first;
    for (int64_t i = 0; i < count; i++, from += step, to += lanes)
        for (int64_t c = 0; c < lanes; c++) to[c] = twi_pixel_of_f32(from[c * p->plane], p->numbers + 2 * c);
}
VEC_INLINE void float_run(float *to, const pixel_planes *p, int64_t first, int64_t step, int64_t count) {
    int64_t done = 0;
    if (p->lanes == 1 && step == 1) {
        const float *from = (const float *)p->from + first;
        const vec mean = vec_splat(p->numbers[0]), deviation = vec_splat(p->numbers[1]);
        for (; done + VEC_WIDTH <= count; done += VEC_WIDTH)
            vec_store(to + done, (vec_load(from + done) - mean) / deviation);
    }
    float_lanes(to + done * p->lanes, p, p->lanes, first + done * step, step, count - done);
}

VEC_INLINE float *clear_pixels(float *to, int64_t floats) {
    memset(to, 0, (size_t)floats * sizeof *to);
    return to + floats;
}

VEC_INLINE void gather_planes(float *to, const pixel_planes *planes, const twi_gather_attrs *attrs, twi_change change,
                              pixel_run *run) {
    if (twi_change_is_none(change)) {
        run(to, planes, 0, 1, planes->plane);
        return;
    }
    for (int64_t y = 0; y < attrs->height; y++) {
        const twi_changed_row row = twi_change_row(change, attrs->height, attrs->width, y);
        to = clear_pixels(to, row.left * planes->lanes);
        run(to, planes, row.first, row.step, row.count);
        to = clear_pixels(to + row.count * planes->lanes, row.right * planes->lanes);
    }
}

/* numbers, x */
VEC_INLINE void gather_samples(const twi_call *call, tw_dtype dtype, pixel_run *run) {
    const twi_gather_attrs *attrs = call->attrs;
    const twi_resident_view *resident = &call->control->resident;
    const twi_operand *xo = &call->operand[1];
    const int64_t plane = (int64_t)attrs->height * attrs->width, channels = attrs->channels;
    const int64_t lanes = twi_is_row_major(xo) ? 1 : channels;
    const size_t size = tw_dtype_size(dtype);
    float *x = xo->data;
    for (int64_t n = 0; n < xo->shape.dim[0]; n++, x += plane * channels) {
        const int64_t sample = twi_call_resident(call, n);
        const twi_change change = twi_augment_draw(&attrs->augment, resident->epoch, (uint64_t)sample);
        const char *image = (const char *)resident->images + (size_t)(sample * channels * plane) * size;
        for (int64_t c = 0; c < channels; c += lanes) {
            const pixel_planes planes = {image + (size_t)(c * plane) * size,
                                         (const float *)call->operand[0].data + c * twi_pixel_numbers(dtype), plane,
                                         lanes};
            gather_planes(x + c * plane, &planes, attrs, change, run);
        }
    }
}

static void gather_bytes(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    gather_samples(call, TW_U8, byte_run);
}
static void gather_floats(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    gather_samples(call, TW_F32, float_run);
}

/* gather.bytes, gather.floats: samples of a resident set, row by row. Where channels are innermost, a row of all of
 * them is written in one go. */
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

/* One channel, whose bytes lie on a line, forward or backward (step -1), as vectors where those of double are wide enough. */
VEC_INLINE bool is_on_line(const pixel_planes *p) {
    return VEC_WIDTH > 4 && p->lanes == 1 && !isnan(twi_pixel_line(p->numbers).scale);
}
VEC_INLINE void byte_line(float *restrict to, const uint8_t *restrict from, twi_byte_line line, int64_t step,
                          int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = (float)(from[i * step] * line.scale + line.shift);
}

VEC_INLINE void byte_lanes(float *to, const pixel_planes *p, int64_t lanes, int64_t first, int64_t step,
                           int64_t count) {
    const uint8_t *from = (const uint8_t *)p->from + first;
    for (int64_t i = 0; i < count; i++, from += step, to += lanes)
        for (int64_t c = 0; c < lanes; c++)
            to[c] = twi_pixel_of_u8(from[c * p->plane], p->numbers + c * twi_pixel_numbers(TW_U8));
}
/* The same loop for the numbers of channels and the direction that it mostly meets. */
VEC_INLINE void byte_run(float *to, const pixel_planes *p, int64_t first, int64_t step, int64_t count) {
    if (is_on_line(p) && step == 1)
        byte_line(to, (const uint8_t *)p->from + first, twi_pixel_line(p->numbers), 1, count);
    else if (is_on_line(p))
        byte_line(to, (const uint8_t *)p->from + first, twi_pixel_line(p->numbers), -1, count);
    else if (p->lanes == 1)
        byte_lanes(to, p, 1, first, step, count);
    else if (p->lanes == 3)
        byte_lanes(to, p, 3, first, step, count);
    else
        byte_lanes(to, p, p->lanes, first, step, count);
}

VEC_INLINE vec vec_reversed(vec v) {
#if VEC_WIDTH == 4
    return __builtin_shufflevector(v, v, 3, 2, 1, 0);
#elif VEC_WIDTH == 8
    return __builtin_shufflevector(v, v, 7, 6, 5, 4, 3, 2, 1, 0);
#else
    return __builtin_shufflevector(v, v, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#endif
}

VEC_INLINE void float_lanes(float *to, const pixel_planes *p, int64_t lanes, int64_t first, int64_t step,
                            int64_t count) {
    const float *from = (const float *)p->from + first;
    for (int64_t c = 0; c < lanes; c++, to++, from += p->plane) {
        const float *numbers = p->numbers + 2 * c;
        const vec mean = vec_splat(numbers[0]), deviation = vec_splat(numbers[1]);
        int64_t i = 0;
        for (; i + VEC_WIDTH <= count; i += VEC_WIDTH) {
            vec pixels = step == 1 ? vec_load(from + i) : vec_reversed(vec_load(from - i - (VEC_WIDTH - 1)));
            pixels = (pixels - mean) / deviation;
            if (lanes == 1)
                vec_store(to + i, pixels);
            else
                for (int k = 0; k < VEC_WIDTH; k++) to[(i + k) * lanes] = pixels[k];
        }
        for (; i < count; i++) to[i * lanes] = twi_pixel_of_f32(from[i * step], numbers);
    }
}
VEC_INLINE void float_run(float *to, const pixel_planes *p, int64_t first, int64_t step, int64_t count) {
    if (p->lanes == 1 && step == 1)
        float_lanes(to, p, 1, first, 1, count);
    else if (p->lanes == 3)
        float_lanes(to, p, 3, first, step, count);
    else
        float_lanes(to, p, p->lanes, first, step, count);
}

/* Samples lie anywhere: what is needed next is asked for while another one is made. Beyond so many bytes the processor
 * has seen by itself where it goes. */
enum { FETCHED_BYTES = 16384 };
VEC_INLINE void fetch_sample(const char *image, size_t bytes) {
    for (size_t at = 0; at < bytes && at < FETCHED_BYTES; at += 64) __builtin_prefetch(image + at);
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
    const int64_t lanes = twi_is_row_major(xo) ? 1 : channels, samples = xo->shape.dim[0];
    const size_t size = tw_dtype_size(dtype), bytes = (size_t)(plane * channels) * size;
    const char *images = resident->images;
    float *x = xo->data;
    for (int64_t n = 0; n < samples; n++, x += plane * channels) {
        const int64_t sample = twi_call_resident(call, n);
        const twi_change change = twi_augment_draw(&attrs->augment, resident->epoch, (uint64_t)sample);
        const char *image = images + (size_t)sample * bytes;
        if (n + 1 < samples) fetch_sample(images + (size_t)twi_call_resident(call, n + 1) * bytes, bytes);
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

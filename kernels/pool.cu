/* Pooling: a thread makes one element of the output, or eight neighbouring channels; backward, one of the image's gradient
 * from the windows over it, so that nothing is added to twice. Formulas: src/ops/op_max_pool.c, op_avg_pool.c,
 * op_global_avg_pool.c (the average whose window is the image). */
#include "backend/attrs.h"
#include "entries.h"
#include "space.cuh"

namespace {

/* ---- images, and places in them ---- */

template <class T> struct image {
    T *data;
    int64_t n, c, h, w; /* strides */
    __device__ T *at(int64_t in, int64_t ic, int64_t ih, int64_t iw) const {
        return data + in * n + ic * c + ih * h + iw * w;
    }
};
template <class T> image<T> image_of(const twi_operand *o) {
    image<T> i = {(T *)o->data, o->stride[0], o->stride[1], o->stride[2], o->stride[3]};
    return i;
}

/* How the threads of a launch are dealt the places of an image, so that neighbours in memory go to neighbours. */
typedef struct places {
    int64_t count;
    twk_divisor channels, height, width; /* channels in groups of what a thread takes */
    int taken;                           /* channels a thread takes */
    bool channels_first;                 /* the fastest in memory */
} places;

places places_of(const twi_operand *o, int taken) {
    const int64_t *dim = o->shape.dim;
    places p = {dim[0] * (dim[1] / taken) * dim[2] * dim[3],
                twk_divisor_of(dim[1] / taken),
                twk_divisor_of(dim[2]),
                twk_divisor_of(dim[3]),
                taken,
                o->stride[1] <= o->stride[3]};
    return p;
}

typedef struct place {
    int64_t n, c;
    int h, w;
} place;

__device__ place place_at(const places &p, int64_t index) {
    int64_t c, h, w, rest = index;
    if (p.channels_first) rest = twk_divide(p.channels, rest, &c);
    rest = twk_divide(p.width, rest, &w);
    rest = twk_divide(p.height, rest, &h);
    if (!p.channels_first) rest = twk_divide(p.channels, rest, &c);
    place at = {rest, c * p.taken, (int)h, (int)w};
    return at;
}

/* May an operand be taken eight channels at a time? */
bool packs(const twi_operand *o, size_t element) {
    return o->shape.dim[1] % TWK_PACK == 0 && o->stride[1] == 1 && o->stride[0] % TWK_PACK == 0 &&
           o->stride[2] % TWK_PACK == 0 && o->stride[3] % TWK_PACK == 0 &&
           twk_aligned(o->data, element == 1 ? TWK_PACK : TWK_PACK_ALIGNMENT);
}

template <int WIDTH, class T> __device__ inline void load(const T *from, float to[WIDTH]) {
    if constexpr (WIDTH == TWK_PACK)
        twk_load_pack(from, to);
    else
        to[0] = twk_float(*from);
}
template <int WIDTH, class T> __device__ inline void store(T *to, const float from[WIDTH]) {
    if constexpr (WIDTH == TWK_PACK)
        twk_store_pack(to, from);
    else
        *to = twk_element<T>(from[0]);
}

template <int WIDTH> struct alignas(WIDTH) bytes { uint8_t at[WIDTH]; };

/* ---- windows ---- */

typedef struct window {
    twi_pool_attrs attrs;
    int image_h, image_w, out_h, out_w;
} window;

window window_of(const twi_pool_attrs *attrs, const twi_operand *image, const twi_operand *out) {
    window w = {*attrs, (int)image->shape.dim[2], (int)image->shape.dim[3], (int)out->shape.dim[2],
                (int)out->shape.dim[3]};
    return w;
}

/* A run of numbers first..last-1. */
typedef struct span {
    int first, last;
} span;

/* What of window `position` lies inside the image. */
__device__ inline span inside(int position, int stride, int pad, int kernel, int size) {
    int start = position * stride - pad;
    span s = {start > 0 ? start : 0, start + kernel < size ? start + kernel : size};
    return s;
}

/* The windows that element `at` lies in. */
__device__ inline span over(int at, int stride, int pad, int kernel, int windows) {
    int reach = at + pad - kernel + stride; /* of the first one's start, rounded up */
    span s = {reach >= 0 ? reach / stride : 0, (at + pad) / stride + 1};
    if (s.last > windows) s.last = windows;
    return s;
}

/* ---- max ---- */

template <class T, int WIDTH>
__global__ void max_forward(window win, places p, image<const T> x, image<T> y, image<uint8_t> index) {
    int64_t thread = twk_thread();
    if (thread >= p.count) return;
    place at = place_at(p, thread);
    span rows = inside(at.h, win.attrs.stride_h, win.attrs.pad_top, win.attrs.kernel_h, win.image_h);
    span columns = inside(at.w, win.attrs.stride_w, win.attrs.pad_left, win.attrs.kernel_w, win.image_w);
    int top = at.h * win.attrs.stride_h - win.attrs.pad_top, left = at.w * win.attrs.stride_w - win.attrs.pad_left;
    float largest[WIDTH] = {};
    int winner[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) winner[i] = -1;
    for (int h = rows.first; h < rows.last; h++)
        for (int w = columns.first; w < columns.last; w++) {
            float value[WIDTH];
            load<WIDTH>(x.at(at.n, at.c, h, w), value);
            int here = (h - top) * win.attrs.kernel_w + w - left;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                bool first_nan = value[i] != value[i] && largest[i] == largest[i];
                if (winner[i] < 0 || value[i] > largest[i] || first_nan) {
                    largest[i] = value[i];
                    winner[i] = here;
                }
            }
        }
    bytes<WIDTH> won;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) won.at[i] = (uint8_t)winner[i];
    store<WIDTH>(y.at(at.n, at.c, at.h, at.w), largest);
    *reinterpret_cast<bytes<WIDTH> *>(index.at(at.n, at.c, at.h, at.w)) = won;
}

template <class T, int WIDTH>
__global__ void max_backward(window win, places p, image<const T> dy, image<const uint8_t> index, image<T> dx) {
    int64_t thread = twk_thread();
    if (thread >= p.count) return;
    place at = place_at(p, thread);
    span rows = over(at.h, win.attrs.stride_h, win.attrs.pad_top, win.attrs.kernel_h, win.out_h);
    span columns = over(at.w, win.attrs.stride_w, win.attrs.pad_left, win.attrs.kernel_w, win.out_w);
    float sum[WIDTH] = {};
    for (int h = rows.first; h < rows.last; h++)
        for (int w = columns.first; w < columns.last; w++) {
            int here = (at.h + win.attrs.pad_top - h * win.attrs.stride_h) * win.attrs.kernel_w + at.w +
                       win.attrs.pad_left - w * win.attrs.stride_w;
            float value[WIDTH];
            load<WIDTH>(dy.at(at.n, at.c, h, w), value);
            bytes<WIDTH> won = *reinterpret_cast<const bytes<WIDTH> *>(index.at(at.n, at.c, h, w));
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                if (won.at[i] == here) sum[i] += value[i];
        }
    store<WIDTH>(dx.at(at.n, at.c, at.h, at.w), sum);
}

template <class T> cudaError_t run_max_forward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *x = &call->operand[0], *y = &call->operand[1], *index = &call->operand[2];
    bool wide = packs(x, sizeof(T)) && packs(y, sizeof(T)) && packs(index, 1);
    window win = window_of((const twi_pool_attrs *)call->attrs, x, y);
    places p = places_of(y, wide ? TWK_PACK : 1);
    if (p.count == 0) return cudaSuccess;
    void (*kernel)(window, places, image<const T>, image<T>, image<uint8_t>) =
        wide ? max_forward<T, TWK_PACK> : max_forward<T, 1>;
    return TWC_LAUNCH(kernel, twk_blocks(p.count), TWK_THREADS, 0, launch->stream, win, p, image_of<const T>(x),
                      image_of<T>(y), image_of<uint8_t>(index));
}

template <class T> cudaError_t run_max_backward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *dy = &call->operand[0], *index = &call->operand[1], *dx = &call->operand[2];
    bool wide = packs(dy, sizeof(T)) && packs(dx, sizeof(T)) && packs(index, 1);
    window win = window_of((const twi_pool_attrs *)call->attrs, dx, dy);
    places p = places_of(dx, wide ? TWK_PACK : 1);
    if (p.count == 0) return cudaSuccess;
    void (*kernel)(window, places, image<const T>, image<const uint8_t>, image<T>) =
        wide ? max_backward<T, TWK_PACK> : max_backward<T, 1>;
    return TWC_LAUNCH(kernel, twk_blocks(p.count), TWK_THREADS, 0, launch->stream, win, p, image_of<const T>(dy),
                      image_of<const uint8_t>(index), image_of<T>(dx));
}

/* ---- average ---- */

/* How many elements of a window count along one axis. */
__device__ inline int counted(int position, int stride, int pad, int kernel, int size, int pad_after, bool exclude) {
    int start = position * stride - pad, limit = exclude ? size : size + pad_after;
    int end = start + kernel < limit ? start + kernel : limit;
    return end - (exclude && start < 0 ? 0 : start);
}
__device__ inline float divisor(const window &win, int p, int q) {
    const twi_pool_attrs &a = win.attrs;
    return (
        float)((int64_t)counted(p, a.stride_h, a.pad_top, a.kernel_h, win.image_h, a.pad_bottom, a.exclude_padding) *
               counted(q, a.stride_w, a.pad_left, a.kernel_w, win.image_w, a.pad_right, a.exclude_padding));
}

template <class T, int WIDTH> __global__ void average_forward(window win, places p, image<const T> x, image<T> y) {
    int64_t thread = twk_thread();
    if (thread >= p.count) return;
    place at = place_at(p, thread);
    span rows = inside(at.h, win.attrs.stride_h, win.attrs.pad_top, win.attrs.kernel_h, win.image_h);
    span columns = inside(at.w, win.attrs.stride_w, win.attrs.pad_left, win.attrs.kernel_w, win.image_w);
    float sum[WIDTH] = {}, by = divisor(win, at.h, at.w);
    for (int h = rows.first; h < rows.last; h++)
#pragma unroll 4
        for (int w = columns.first; w < columns.last; w++) {
            float value[WIDTH];
            load<WIDTH>(x.at(at.n, at.c, h, w), value);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sum[i] += value[i];
        }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] /= by;
    store<WIDTH>(y.at(at.n, at.c, at.h, at.w), sum);
}

template <class T, int WIDTH> __global__ void average_backward(window win, places p, image<const T> dy, image<T> dx) {
    int64_t thread = twk_thread();
    if (thread >= p.count) return;
    place at = place_at(p, thread);
    span rows = over(at.h, win.attrs.stride_h, win.attrs.pad_top, win.attrs.kernel_h, win.out_h);
    span columns = over(at.w, win.attrs.stride_w, win.attrs.pad_left, win.attrs.kernel_w, win.out_w);
    float sum[WIDTH] = {};
    for (int h = rows.first; h < rows.last; h++)
        for (int w = columns.first; w < columns.last; w++) {
            float value[WIDTH], by = divisor(win, h, w);
            load<WIDTH>(dy.at(at.n, at.c, h, w), value);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sum[i] += value[i] / by;
        }
    store<WIDTH>(dx.at(at.n, at.c, at.h, at.w), sum);
}

template <class T>
cudaError_t launch_average(const twk_launch *launch, const twi_pool_attrs *attrs, const twi_operand *from,
                           const twi_operand *to, bool forward) {
    bool wide = packs(from, sizeof(T)) && packs(to, sizeof(T));
    window win = forward ? window_of(attrs, from, to) : window_of(attrs, to, from);
    places p = places_of(to, wide ? TWK_PACK : 1);
    if (p.count == 0) return cudaSuccess;
    void (*kernel)(window, places, image<const T>, image<T>) =
        forward ? (wide ? average_forward<T, TWK_PACK> : average_forward<T, 1>)
                : (wide ? average_backward<T, TWK_PACK> : average_backward<T, 1>);
    return TWC_LAUNCH(kernel, twk_blocks(p.count), TWK_THREADS, 0, launch->stream, win, p, image_of<const T>(from),
                      image_of<T>(to));
}

template <class T> cudaError_t run_average_forward(const twi_call *call, const twk_launch *launch) {
    return launch_average<T>(launch, (const twi_pool_attrs *)call->attrs, &call->operand[0], &call->operand[1], true);
}

template <class T> cudaError_t run_average_backward(const twi_call *call, const twk_launch *launch) {
    return launch_average<T>(launch, (const twi_pool_attrs *)call->attrs, &call->operand[0], &call->operand[1], false);
}

twi_pool_attrs whole(const twi_operand *image) {
    twi_pool_attrs attrs = {};
    attrs.kernel_h = (int32_t)image->shape.dim[2];
    attrs.kernel_w = (int32_t)image->shape.dim[3];
    attrs.stride_h = attrs.stride_w = 1;
    return attrs;
}

template <class T> cudaError_t run_global_forward(const twi_call *call, const twk_launch *launch) {
    const twi_pool_attrs attrs = whole(&call->operand[0]);
    return launch_average<T>(launch, &attrs, &call->operand[0], &call->operand[1], true);
}

template <class T> cudaError_t run_global_backward(const twi_call *call, const twk_launch *launch) {
    const twi_pool_attrs attrs = whole(&call->operand[1]);
    return launch_average<T>(launch, &attrs, &call->operand[0], &call->operand[1], false);
}

} // namespace

extern "C" const twk_entry twk_pool_entries[] = {
    {"max_pool.forward", NULL, NULL, TWK_TYPED(run_max_forward)},
    {"max_pool.backward", NULL, NULL, TWK_TYPED(run_max_backward)},
    {"avg_pool.forward", NULL, NULL, TWK_TYPED(run_average_forward)},
    {"avg_pool.backward", NULL, NULL, TWK_TYPED(run_average_backward)},
    {"global_avg_pool.forward", NULL, NULL, TWK_TYPED(run_global_forward)},
    {"global_avg_pool.backward", NULL, NULL, TWK_TYPED(run_global_backward)},
    {},
};

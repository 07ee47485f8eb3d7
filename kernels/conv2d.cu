/* Convolutions as plain products over patches, with groups, dilation and any padding, for where the library of convolutions
 * is missing or refuses. Formulas: src/ops/op_conv2d.c, fused_conv2d_bias_relu.c.
 *
 * In a group, forward:  rows n,p,q  columns o      depth a,b,c    backward data: rows n,h,w  columns c  depth a,b,o
 *            backward weights:      rows o         columns a,b,c  depth n,p,q */
#include "backend/attrs.h"
#include "combine.cuh"
#include "entries.h"
#include "space.cuh"
#include "tile.cuh"

namespace {

/* ---- a convolution's shapes, strides, and places ---- */

typedef struct conv {
    twi_conv2d_attrs attrs;
    int64_t batch, height, width, out_height, out_width;
    twk_divisor kernel_h, kernel_w, channels, filters, stride_h, stride_w; /* channels and filters of a group */
    twk_divisor place_h, place_w; /* of what rows or depth run over: pixels of y, or of x */
    int64_t x[4], w[4], y[4];     /* strides */
} conv;

conv conv_of(const twi_call *call, const twi_operand *x, const twi_operand *w, const twi_operand *y, bool over_x) {
    conv c = {};
    c.attrs = *(const twi_conv2d_attrs *)call->attrs;
    c.batch = x->shape.dim[0];
    c.height = x->shape.dim[2];
    c.width = x->shape.dim[3];
    c.out_height = y->shape.dim[2];
    c.out_width = y->shape.dim[3];
    c.kernel_h = twk_divisor_of(w->shape.dim[2]);
    c.kernel_w = twk_divisor_of(w->shape.dim[3]);
    c.channels = twk_divisor_of(w->shape.dim[1]);
    c.filters = twk_divisor_of(w->shape.dim[0] / c.attrs.groups);
    c.stride_h = twk_divisor_of(c.attrs.stride_h);
    c.stride_w = twk_divisor_of(c.attrs.stride_w);
    c.place_h = twk_divisor_of(over_x ? c.height : c.out_height);
    c.place_w = twk_divisor_of(over_x ? c.width : c.out_width);
    for (int axis = 0; axis < 4; axis++) {
        c.x[axis] = x->stride[axis];
        c.w[axis] = w->stride[axis];
        c.y[axis] = y->stride[axis];
    }
    return c;
}

typedef struct spot {
    int64_t n, h, w; /* of a pixel; of a tap: channel, a, b */
} spot;

__device__ inline spot spot_of(twk_divisor last, twk_divisor middle, int64_t index) {
    spot s;
    s.n = twk_divide(middle, twk_divide(last, index, &s.w), &s.h);
    return s;
}
/* Taps a,b,channel with the channel fastest, as weights lie. */
__device__ inline spot tap_of(twk_divisor channels, twk_divisor kernel_w, int64_t index) {
    spot t;
    t.h = twk_divide(kernel_w, twk_divide(channels, index, &t.n), &t.w);
    return t;
}

__device__ inline int64_t offset(const int64_t stride[4], int64_t n, int64_t c, int64_t h, int64_t w) {
    return n * stride[0] + c * stride[1] + h * stride[2] + w * stride[3];
}

/* Element of x under tap t of the output pixel s, channel of the whole; 0 in the padding. */
template <class T> __device__ inline float under(const conv &c, const T *x, spot s, spot t, int64_t channel) {
    int64_t h = s.h * c.attrs.stride_h - c.attrs.pad_top + t.h * c.attrs.dilation_h;
    int64_t w = s.w * c.attrs.stride_w - c.attrs.pad_left + t.w * c.attrs.dilation_w;
    if (h < 0 || h >= c.height || w < 0 || w >= c.width) return 0;
    return twk_float(x[offset(c.x, s.n, channel, h, w)]);
}

/* ---- forward ---- */

template <class T> struct forward {
    static constexpr bool LEFT_ALONG_DEPTH = true, RIGHT_ALONG_DEPTH = true;
    int64_t rows, columns, depth;
    conv c;
    const T *x, *w, *bias; /* bias NULL: none */
    T *y;
    int64_t bias_stride;
    bool relu;

    __device__ float left(int group, int64_t m, int64_t k) const {
        spot t = tap_of(c.channels, c.kernel_w, k);
        return under(c, x, spot_of(c.place_w, c.place_h, m), t, group * c.channels.value + t.n);
    }
    __device__ float right(int group, int64_t k, int64_t n) const {
        spot t = tap_of(c.channels, c.kernel_w, k);
        return twk_float(w[offset(c.w, group * c.filters.value + n, t.n, t.h, t.w)]);
    }
    __device__ void store(int group, int64_t m, int64_t n, float sum, int) const {
        spot s = spot_of(c.place_w, c.place_h, m);
        int64_t filter = group * c.filters.value + n;
        if (bias) sum += twk_float(bias[filter * bias_stride]);
        if (relu) sum = sum < 0 ? 0 : sum;
        y[offset(c.y, s.n, filter, s.h, s.w)] = twk_element<T>(sum);
    }
};

template <class T>
cudaError_t launch_forward(const twi_call *call, const twk_launch *launch, const twi_operand *bias, bool relu,
                           const twi_operand *y) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1];
    forward<T> p = {};
    p.c = conv_of(call, x, w, y, false);
    p.rows = p.c.batch * p.c.out_height * p.c.out_width;
    p.columns = p.c.filters.value;
    p.depth = twi_shape_count_from(&w->shape, 1);
    p.x = (const T *)x->data;
    p.w = (const T *)w->data;
    p.bias = bias ? (const T *)bias->data : NULL;
    p.bias_stride = bias ? bias->stride[0] : 0;
    p.relu = relu;
    p.y = (T *)y->data;
    return twk_tile_product(launch, p, p.c.attrs.groups, 1);
}

template <class T> cudaError_t run_forward(const twi_call *call, const twk_launch *launch) {
    return launch_forward<T>(call, launch, NULL, false, &call->operand[2]);
}
template <class T> cudaError_t run_forward_bias(const twi_call *call, const twk_launch *launch) {
    return launch_forward<T>(call, launch, &call->operand[2], false, &call->operand[3]);
}
template <class T> cudaError_t run_forward_bias_relu(const twi_call *call, const twk_launch *launch) {
    return launch_forward<T>(call, launch, &call->operand[2], true, &call->operand[3]);
}

/* ---- backward data ---- */

template <class T> struct backward_data {
    static constexpr bool LEFT_ALONG_DEPTH = true, RIGHT_ALONG_DEPTH = false;
    int64_t rows, columns, depth;
    conv c;
    const T *dy, *w;
    T *dx;

    __device__ float left(int group, int64_t m, int64_t k) const {
        spot s = spot_of(c.place_w, c.place_h, m), t = tap_of(c.filters, c.kernel_w, k);
        int64_t h = s.h + c.attrs.pad_top - t.h * c.attrs.dilation_h, rest_h;
        int64_t w_ = s.w + c.attrs.pad_left - t.w * c.attrs.dilation_w, rest_w;
        if (h < 0 || w_ < 0) return 0;
        h = twk_divide(c.stride_h, h, &rest_h);
        w_ = twk_divide(c.stride_w, w_, &rest_w);
        if (rest_h != 0 || rest_w != 0 || h >= c.out_height || w_ >= c.out_width) return 0;
        return twk_float(dy[offset(c.y, s.n, group * c.filters.value + t.n, h, w_)]);
    }
    __device__ float right(int group, int64_t k, int64_t n) const {
        spot t = tap_of(c.filters, c.kernel_w, k);
        return twk_float(w[offset(c.w, group * c.filters.value + t.n, n, t.h, t.w)]);
    }
    __device__ void store(int group, int64_t m, int64_t n, float sum, int) const {
        spot s = spot_of(c.place_w, c.place_h, m);
        dx[offset(c.x, s.n, group * c.channels.value + n, s.h, s.w)] = twk_element<T>(sum);
    }
};

template <class T> cudaError_t run_backward_data(const twi_call *call, const twk_launch *launch) {
    const twi_operand *dy = &call->operand[0], *w = &call->operand[1], *dx = &call->operand[2];
    backward_data<T> p = {};
    p.c = conv_of(call, dx, w, dy, true);
    p.rows = p.c.batch * p.c.height * p.c.width;
    p.columns = p.c.channels.value;
    p.depth = p.c.filters.value * w->shape.dim[2] * w->shape.dim[3];
    p.dy = (const T *)dy->data;
    p.w = (const T *)w->data;
    p.dx = (T *)dx->data;
    return twk_tile_product(launch, p, p.c.attrs.groups, 1);
}

/* ---- backward weights: a deep product with few results, so the depth is cut into slices ---- */

template <class T, class Out> struct backward_weights {
    static constexpr bool LEFT_ALONG_DEPTH = false, RIGHT_ALONG_DEPTH = false;
    int64_t rows, columns, depth;
    conv c;
    const T *x, *dy;
    Out *dw;
    int64_t slice_size; /* how far apart the slices' results lie */

    __device__ float left(int group, int64_t m, int64_t k) const {
        spot s = spot_of(c.place_w, c.place_h, k);
        return twk_float(dy[offset(c.y, s.n, group * c.filters.value + m, s.h, s.w)]);
    }
    __device__ float right(int group, int64_t k, int64_t n) const {
        spot t = tap_of(c.channels, c.kernel_w, n);
        return under(c, x, spot_of(c.place_w, c.place_h, k), t, group * c.channels.value + t.n);
    }
    __device__ void store(int group, int64_t m, int64_t n, float sum, int slice) const {
        spot t = tap_of(c.channels, c.kernel_w, n);
        dw[slice * slice_size + offset(c.w, group * c.filters.value + m, t.n, t.h, t.w)] =
            twk_element<Out>(sum);
    }
};

enum { BLOCKS_WANTED = 512, LEAST_SLICE = 512 };

/* By shapes alone. Slices are added element by element in memory, so the weights must lie densely. */
int slices_of(const twi_call *call) {
    const twi_operand *dy = &call->operand[1], *dw = &call->operand[2];
    int64_t groups = ((const twi_conv2d_attrs *)call->attrs)->groups, last = 0;
    for (int axis = 0; axis < 4; axis++) last += (dw->shape.dim[axis] - 1) * dw->stride[axis];
    if (last + 1 != twi_shape_count(&dw->shape)) return 1;
    int64_t tiles = groups * twk_ceil(dw->shape.dim[0] / groups, TWK_TILE) *
                    twk_ceil(twi_shape_count_from(&dw->shape, 1), TWK_TILE);
    int64_t depth = dy->shape.dim[0] * dy->shape.dim[2] * dy->shape.dim[3];
    int64_t most = twk_ceil(BLOCKS_WANTED, tiles), wanted = twk_ceil(depth, LEAST_SLICE);
    int64_t slices = wanted < most ? wanted : most;
    return slices > 0 ? (int)slices : 1;
}

size_t workspace_weights(const twi_call *call) {
    int slices = slices_of(call);
    return slices == 1 ? 0 : (size_t)slices * (size_t)twi_shape_count(&call->operand[2].shape) * sizeof(float);
}

/* Out: what the product is written as, the slices' as float. */
template <class T, class Out> cudaError_t launch_weights(const twi_call *call, const twk_launch *launch, Out *out) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    backward_weights<T, Out> p = {};
    p.c = conv_of(call, x, dw, dy, false);
    p.rows = p.c.filters.value;
    p.columns = twi_shape_count_from(&dw->shape, 1);
    p.depth = p.c.batch * p.c.out_height * p.c.out_width;
    p.x = (const T *)x->data;
    p.dy = (const T *)dy->data;
    p.dw = out;
    p.slice_size = twi_shape_count(&dw->shape);
    return twk_tile_product(launch, p, p.c.attrs.groups, slices_of(call));
}

template <class T> cudaError_t run_backward_weights(const twi_call *call, const twk_launch *launch) {
    const twi_operand *dw = &call->operand[2];
    const int slices = slices_of(call);
    const bool half = dw->store == TWI_REAL;
    float *parts = (float *)launch->workspace;
    if (slices == 1)
        return half ? launch_weights<T, T>(call, launch, (T *)dw->data)
                    : launch_weights<T, float>(call, launch, (float *)dw->data);
    cudaError_t error = launch_weights<T, float>(call, launch, parts);
    if (error != cudaSuccess) return error;
    const int64_t count = twi_shape_count(&dw->shape);
    return half ? twk_combine(launch, parts, slices, count, (T *)dw->data)
                : twk_combine(launch, parts, slices, count, (float *)dw->data);
}

/* ---- table ---- */

/* Operand 1 is the weight, whose sides are the columns of the products; in the gradient of the weights it is operand 2. */
const char *refuse_by(const twi_call *call, const twi_operand *w, int slices) {
    int64_t columns =
        w->shape.dim[0] > twi_shape_count_from(&w->shape, 1) ? w->shape.dim[0] : twi_shape_count_from(&w->shape, 1);
    return twk_tile_refusal(columns, (int64_t)((const twi_conv2d_attrs *)call->attrs)->groups * slices);
}
const char *refuse(const twi_call *call) { return refuse_by(call, &call->operand[1], 1); }
const char *refuse_weights(const twi_call *call) { return refuse_by(call, &call->operand[2], slices_of(call)); }

} // namespace

extern "C" const twk_entry twk_conv2d_entries[] = {
    {"conv2d.forward", refuse, NULL, TWK_TYPED(run_forward)},
    {"conv2d.forward_bias", refuse, NULL, TWK_TYPED(run_forward_bias)},
    {"conv2d.forward_bias_relu", refuse, NULL, TWK_TYPED(run_forward_bias_relu)},
    {"conv2d.backward_data", refuse, NULL, TWK_TYPED(run_backward_data)},
    {"conv2d.backward_weights", refuse_weights, workspace_weights, TWK_TYPED(run_backward_weights)},
    {},
};

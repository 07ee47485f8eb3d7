/* What operation graphs mean, what the engines are like, and how a graph is computed: plain loops in float. */
#include "cudnn_stand_in.h"

#include "emu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace stand_in {

/* ---- meaning ---- */

static size_t element_bytes(cudnnDataType_t type) { return type == CUDNN_DATA_FLOAT ? 4 : 2; }

size_t Tensor::bytes() const {
    int64_t last = 0;
    for (size_t axis = 0; axis < 4; axis++) last += (dim[axis] - 1) * stride[axis];
    return static_cast<size_t>(last + 1) * element_bytes(type);
}

Tensor tensor_of(const Descriptor &d) {
    Tensor t;
    t.uid = d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t.alignment = d.one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    t.type = static_cast<cudnnDataType_t>(d.one<int>(CUDNN_ATTR_TENSOR_DATA_TYPE));
    t.dim = d.some<int64_t, 4>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    t.stride = d.some<int64_t, 4>(CUDNN_ATTR_TENSOR_STRIDES);
    t.inner = d.has(CUDNN_ATTR_TENSOR_IS_VIRTUAL) && d.one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    if (t.type != CUDNN_DATA_FLOAT && t.type != CUDNN_DATA_HALF && t.type != CUDNN_DATA_BFLOAT16)
        fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensor %lld: type %d", (long long)t.uid, t.type);
    if (t.alignment < 4 || (t.alignment & (t.alignment - 1)))
        fail(CUDNN_STATUS_BAD_PARAM, "tensor %lld: alignment %lld", (long long)t.uid, (long long)t.alignment);
    std::vector<std::pair<int64_t, int64_t>> axes; /* no two elements may share an address */
    for (size_t axis = 0; axis < 4; axis++) {
        if (t.dim[axis] < 1 || t.stride[axis] < 1)
            fail(CUDNN_STATUS_BAD_PARAM, "tensor %lld: axis %zu", (long long)t.uid, axis);
        if (t.dim[axis] > 1) axes.emplace_back(t.stride[axis], t.dim[axis]);
    }
    std::sort(axes.begin(), axes.end());
    int64_t covered = 1;
    for (const auto &axis : axes) {
        if (axis.first < covered) fail(CUDNN_STATUS_BAD_PARAM, "tensor %lld: strides overlap", (long long)t.uid);
        covered = axis.first * axis.second;
    }
    return t;
}

struct Direction {
    cudnnBackendDescriptorType_t kind;
    int alpha, beta, geometry, x, w, y;
};
#define DIRECTION(kind, prefix, x, w, y) \
    { kind, prefix##_ALPHA, prefix##_BETA, prefix##_CONV_DESC, prefix##_##x, prefix##_##w, prefix##_##y }
static const Direction directions[] = {
    DIRECTION(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD, X, W,
              Y),
    DIRECTION(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA,
              DX, W, DY),
    DIRECTION(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER, X, DW, DY),
};

static int direction_of(const Descriptor &d) {
    for (int i = 0; i < 3; i++)
        if (directions[i].kind == d.kind) return i;
    return -1;
}

static void read_geometry(Graph *g, const Descriptor &d) {
    if (d.one<int>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION)
        fail(CUDNN_STATUS_NOT_SUPPORTED, "a convolution that flips its kernel");
    if (d.one<int>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT)
        fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums in another type than f32");
    if (d.one<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2) fail(CUDNN_STATUS_NOT_SUPPORTED, "not two axes");
    g->before = d.some<int64_t, 2>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    g->after = d.some<int64_t, 2>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    g->stride = d.some<int64_t, 2>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    g->dilation = d.some<int64_t, 2>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
}

static Graph convolution_of(const Descriptor &d) {
    Graph g;
    g.direction = direction_of(d);
    const Direction &names = directions[g.direction];
    if (d.one<double>(names.alpha) != 1 || d.one<double>(names.beta) != 0)
        fail(CUDNN_STATUS_NOT_SUPPORTED, "alpha is not 1 or beta not 0");
    read_geometry(&g, d.part(names.geometry));
    g.x = tensor_of(d.part(names.x));
    g.w = tensor_of(d.part(names.w));
    g.y = tensor_of(d.part(names.y));
    const int64_t groups = g.x.dim[1] / g.w.dim[1];
    if (g.x.dim[0] != g.y.dim[0] || g.w.dim[0] != g.y.dim[1] || groups < 1 || groups * g.w.dim[1] != g.x.dim[1] ||
        g.w.dim[0] % groups)
        fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "batch or channels do not fit");
    for (size_t axis = 0; axis < 2; axis++) {
        const int64_t reach = (g.w.dim[2 + axis] - 1) * g.dilation[axis] + 1;
        const int64_t room = g.x.dim[2 + axis] + g.before[axis] + g.after[axis] - reach;
        if (g.stride[axis] < 1 || g.dilation[axis] < 1 || room < 0 || room / g.stride[axis] + 1 != g.y.dim[2 + axis])
            fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "output axis %zu does not fit", axis);
    }
    return g;
}

void check_operation(const Descriptor &d) {
    if (direction_of(d) >= 0) (void)convolution_of(d);
}

static bool same_dims(const Tensor &a, const Tensor &b) { return a.dim == b.dim; }

/* A pointwise operation after what the graph does so far. */
static void append(Graph *g, const Descriptor &d) {
    const Descriptor &pointwise = d.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const Tensor x = tensor_of(d.part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    const Tensor y = tensor_of(d.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    const int mode = pointwise.one<int>(CUDNN_ATTR_POINTWISE_MODE);
    if (pointwise.one<int>(CUDNN_ATTR_POINTWISE_MATH_PREC) != CUDNN_DATA_FLOAT || g->direction != 0 || g->relu ||
        x.uid != g->out.uid || !x.inner || x.type != CUDNN_DATA_FLOAT || !same_dims(x, y))
        fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "a pointwise operation that does not continue the graph");
    if (mode == CUDNN_POINTWISE_ADD && d.has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) && !g->bias) {
        g->bias = true;
        g->b = tensor_of(d.part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
        if (g->b.dim != std::array<int64_t, 4>{1, y.dim[1], 1, 1} || g->b.type != g->x.type)
            fail(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "a bias that is not one of the channels");
    } else if (mode == CUDNN_POINTWISE_RELU_FWD && !d.has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)) {
        g->relu = true;
        g->relu_keeps_nan = pointwise.has(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION) &&
                            pointwise.one<int>(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION) == CUDNN_PROPAGATE_NAN;
    } else {
        fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "pointwise mode %d", mode);
    }
    g->out = y;
}

Graph graph_of(const Descriptor &d) {
    const std::vector<void *> operations = d.all<void *>(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const Descriptor &first = alive(operations.at(0));
    if (direction_of(first) < 0) fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no convolution comes first");
    Graph g = convolution_of(first);
    g.out = g.direction == 0 ? g.y : g.direction == 1 ? g.x : g.w;
    for (size_t i = 1; i < operations.size(); i++) append(&g, alive(operations[i]));
    std::vector<int64_t> uid;
    for (const Tensor *t : g.in_memory()) {
        uid.push_back(t->uid);
        if (t->inner) fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "tensor %lld ends nowhere", (long long)t->uid);
        if (t->type != g.x.type && !(g.direction == 2 && t == &g.out))
            fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensors of different types");
    }
    std::sort(uid.begin(), uid.end());
    if (std::adjacent_find(uid.begin(), uid.end()) != uid.end())
        fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two tensors of one identifier");
    return g;
}

std::vector<const Tensor *> Graph::in_memory() const {
    std::vector<const Tensor *> list{&out};
    if (direction != 0) list.push_back(&y);
    if (direction != 1) list.push_back(&x);
    if (direction != 2) list.push_back(&w);
    if (bias) list.push_back(&b);
    return list;
}

/* ---- engines ---- */

int64_t engine_workspace(int64_t engine, int64_t tile) {
    return engine == 2 ? int64_t(1) << 30 : engine == 4 ? 131 + 64 * tile : 0;
}

uint32_t engine_notes(int64_t engine, const Graph &g) {
    const bool f32 = g.x.type == CUDNN_DATA_FLOAT;
    if (engine == 0) return 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    if (engine != 1) return 0;
    return 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | (f32 ? 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS : 0);
}

/* ---- computing ---- */

static int64_t offset(const Tensor &t, int64_t n, int64_t c, int64_t h, int64_t w) {
    return n * t.stride[0] + c * t.stride[1] + h * t.stride[2] + w * t.stride[3];
}

static float load(const Tensor &t, const void *data, int64_t at) {
    if (t.type == CUDNN_DATA_HALF) return __half2float(static_cast<const __half *>(data)[at]);
    if (t.type == CUDNN_DATA_BFLOAT16) return __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[at]);
    return static_cast<const float *>(data)[at];
}

static void store(const Tensor &t, void *data, int64_t at, float value) {
    if (t.type == CUDNN_DATA_HALF)
        static_cast<__half *>(data)[at] = __float2half_rn(value);
    else if (t.type == CUDNN_DATA_BFLOAT16)
        static_cast<__nv_bfloat16 *>(data)[at] = __float2bfloat16_rn(value);
    else
        static_cast<float *>(data)[at] = value;
}

/* As TF32: 10 bits behind the first. */
static float rounded(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* Tensors are computed with as f32, their elements without gaps, in this order of the axes: the last is what the innermost
 * loop runs over. */
using Order = std::array<size_t, 4>;
static const Order channels_last{0, 2, 3, 1}, filters_last{2, 3, 1, 0};

static size_t elements(const Tensor &t) { return static_cast<size_t>(t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3]); }

/* Calls for every element, in this order, with where it lies on the device and its channel. */
template <class F> static void each(const Tensor &t, const Order &order, const F &call) {
    std::array<int64_t, 4> at;
    for (at[order[0]] = 0; at[order[0]] < t.dim[order[0]]; at[order[0]]++)
        for (at[order[1]] = 0; at[order[1]] < t.dim[order[1]]; at[order[1]]++)
            for (at[order[2]] = 0; at[order[2]] < t.dim[order[2]]; at[order[2]]++)
                for (at[order[3]] = 0; at[order[3]] < t.dim[order[3]]; at[order[3]]++)
                    call(offset(t, at[0], at[1], at[2], at[3]), at[1]);
}

static std::vector<float> widened(const Tensor &t, const Order &order, const void *data, bool tf32) {
    std::vector<float> values;
    values.reserve(elements(t));
    each(t, order, [&](int64_t at, int64_t) {
        const float value = load(t, data, at);
        values.push_back(tf32 ? rounded(value) : value);
    });
    return values;
}

/* Visits, for image n, every pixel of x and of y that meet, and the element of the kernel at which they do. */
template <class F> static void visit(const Graph &g, int64_t n, const F &meet) {
    for (int64_t p = 0; p < g.y.dim[2]; p++)
        for (int64_t q = 0; q < g.y.dim[3]; q++)
            for (int64_t i = 0; i < g.w.dim[2]; i++)
                for (int64_t j = 0; j < g.w.dim[3]; j++) {
                    const int64_t row = p * g.stride[0] + i * g.dilation[0] - g.before[0];
                    const int64_t column = q * g.stride[1] + j * g.dilation[1] - g.before[1];
                    if (row < 0 || row >= g.x.dim[2] || column < 0 || column >= g.x.dim[3]) continue;
                    meet((n * g.x.dim[2] + row) * g.x.dim[3] + column, i * g.w.dim[3] + j,
                         (n * g.y.dim[2] + p) * g.y.dim[3] + q);
                }
}

/* Most of the time of the tests with convolutions is spent here. */
static void add_products(float *__restrict sums, float factor, const float *__restrict factors, int64_t count) {
    for (int64_t i = 0; i < count; i++) sums[i] += factor * factors[i];
}

/* In what order the weights lie. */
static const Order &weight_order(const Graph &g) { return g.direction == 1 ? channels_last : filters_last; }

/* What the convolution adds to its result, sums in f32. */
static void convolve(const Graph &g, bool tf32, const std::map<int64_t, void *> &data, float *sums) {
    const auto values = [&](const Tensor &t, const Order &order, int direction) {
        return g.direction == direction ? std::vector<float>() : widened(t, order, data.at(t.uid), tf32);
    };
    const std::vector<float> x_values = values(g.x, channels_last, 1), w_values = values(g.w, weight_order(g), 2),
                             y_values = values(g.y, channels_last, 0);
    const float *x = x_values.data(), *w = w_values.data(), *y = y_values.data();
    const int64_t channels = g.x.dim[1], filters = g.w.dim[0], taps = g.w.dim[2] * g.w.dim[3];
    const int64_t channels_each = g.w.dim[1], filters_each = filters / (channels / channels_each); /* of a group */
    for (int64_t n = 0; n < g.y.dim[0]; n++) {
        if (g.direction == 1)
            for (int64_t o = 0; o < filters; o++)
                visit(g, n, [=](int64_t xi, int64_t tap, int64_t yi) {
                    add_products(sums + xi * channels + o / filters_each * channels_each, y[yi * filters + o],
                                 w + (o * taps + tap) * channels_each, channels_each);
                });
        else
            visit(g, n, [=](int64_t xi, int64_t tap, int64_t yi) {
                for (int64_t c = 0; c < channels; c++) {
                    const int64_t first = c / channels_each * filters_each; /* of the group's filters */
                    const int64_t wi = (tap * channels_each + c % channels_each) * filters + first;
                    const float factor = x[xi * channels + c];
                    if (g.direction == 0)
                        add_products(sums + yi * filters + first, factor, w + wi, filters_each);
                    else
                        add_products(sums + wi, factor, y + yi * filters + first, filters_each);
                }
            });
    }
}

static void compute(const Graph &g, int64_t engine, const std::map<int64_t, void *> &data) {
    const Tensor &summed = g.direction == 0 ? g.y : g.direction == 1 ? g.x : g.w;
    std::vector<float> sums(elements(summed), engine == 0 ? 0.5f : 0.0f);
    convolve(g, engine == 1 && g.x.type == CUDNN_DATA_FLOAT, data, sums.data());
    const float *next = sums.data();
    each(g.out, g.direction == 2 ? weight_order(g) : channels_last, [&](int64_t at, int64_t c) {
        float v = *next++;
        if (g.bias) v += load(g.b, data.at(g.b.uid), c * g.b.stride[1]);
        if (g.relu) v = v > 0 || (g.relu_keeps_nan && std::isnan(v)) ? v : 0;
        store(g.out, data.at(g.out.uid), at, v);
    });
}

void run(const Graph &g, int64_t engine, int64_t workspace_bytes, const std::map<int64_t, void *> &data,
         void *workspace, cudaStream_t stream) {
    std::vector<emu_range> reads, writes;
    for (const Tensor *t : g.in_memory()) (t == &g.out ? writes : reads).push_back({data.at(t->uid), t->bytes()});
    if (workspace_bytes) writes.push_back({workspace, static_cast<size_t>(workspace_bytes)});
    const cudaError_t error = emu_enqueue(
        stream, "cudnnBackendExecute",
        [=] {
            compute(g, engine, data);
            if (workspace_bytes) memset(workspace, 0xff, static_cast<size_t>(workspace_bytes));
        },
        reads, writes);
    if (error) fail(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "%s", cudaGetErrorString(error));
}

} // namespace stand_in

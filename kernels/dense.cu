/* Dense layers as plain products, with what fusion puts behind them: bias, relu, gelu, gradients of a bias; where the library of
 * matrix products takes them, that is faster. Formulas: src/ops/op_dense.c, fused_dense_*.c. */
#include "channels.cuh"
#include "entries.h"
#include "gelu.cuh"
#include "rows.cuh"
#include "tile.cuh"

namespace {

/* ---- what becomes of a sum before it is stored as element (m, n) ---- */

struct as_it_is {
    __device__ float operator()(float sum, int64_t, int64_t) const { return sum; }
};

template <class T> struct biased {
    const T *bias; /* NULL: none */
    int64_t bias_stride;
    bool relu;
    __device__ float operator()(float sum, int64_t, int64_t n) const {
        if (bias) sum += twk_float(bias[n * bias_stride]);
        return relu && sum < 0 ? 0 : sum;
    }
};

template <class T> struct biased_gelu {
    const T *bias;
    int64_t bias_stride;
    twk_matrix<T> kept; /* data NULL: nobody wants what the gelu reads */
    __device__ float operator()(float sum, int64_t m, int64_t n) const {
        sum += twk_float(bias[n * bias_stride]);
        if (kept.data) *kept.at(m, n) = twk_element<T>(sum);
        return sum * twk_gelu_tanh::share(sum);
    }
};

template <class T> struct gelu_slope {
    twk_matrix<const T> z;
    twk_matrix<float> unrounded; /* data NULL: the result is not rounded either */
    __device__ float operator()(float sum, int64_t m, int64_t n) const {
        sum *= twk_gelu_tanh::slope(twk_float(*z.at(m, n)));
        if (unrounded.data) *unrounded.at(m, n) = sum;
        return sum;
    }
};

/* out[m,n] = sum over k of left * right, the sides of which are x, w or dy as they lie or transposed. */
template <class T, class Out, bool LEFT_ALONG, bool RIGHT_ALONG, class Last> struct product {
    static constexpr bool LEFT_ALONG_DEPTH = LEFT_ALONG, RIGHT_ALONG_DEPTH = RIGHT_ALONG;
    int64_t rows, columns, depth;
    twk_matrix<const T> a, b; /* left(m,k) = a(m,k), right(k,n) = b(k,n) */
    twk_matrix<Out> out;
    Last last;

    __device__ float left(int, int64_t m, int64_t k) const { return twk_float(*a.at(m, k)); }
    __device__ float right(int, int64_t k, int64_t n) const { return twk_float(*b.at(k, n)); }
    __device__ void store(int, int64_t m, int64_t n, float sum, int) const {
        *out.at(m, n) = twk_element<Out>(last(sum, m, n));
    }
};

template <class T> twk_matrix<const T> transposed(const twi_operand *o) {
    twk_matrix<const T> matrix = {(const T *)o->data, o->stride[1], o->stride[0]};
    return matrix;
}

/* ---- forward ---- */

template <class T, class Last>
cudaError_t forward(const twi_call *call, const twk_launch *launch, const twi_operand *y, const Last &last) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1];
    const product<T, T, true, true, Last> p = {y->shape.dim[0],
                                               y->shape.dim[1],
                                               x->shape.dim[1],
                                               twk_matrix_of<const T>(x),
                                               transposed<T>(w),
                                               twk_matrix_of<T>(y),
                                               last};
    return twk_tile_product(launch, p, 1, 1);
}

template <class T> biased<T> bias_of(const twi_operand *bias, bool relu) {
    biased<T> last = {bias ? (const T *)bias->data : NULL, bias ? bias->stride[0] : 0, relu};
    return last;
}

template <class T> cudaError_t run_forward(const twi_call *call, const twk_launch *launch) {
    return forward<T>(call, launch, &call->operand[2], bias_of<T>(NULL, false));
}
template <class T> cudaError_t run_forward_bias(const twi_call *call, const twk_launch *launch) {
    return forward<T>(call, launch, &call->operand[3], bias_of<T>(&call->operand[2], false));
}
template <class T> cudaError_t run_forward_bias_relu(const twi_call *call, const twk_launch *launch) {
    return forward<T>(call, launch, &call->operand[3], bias_of<T>(&call->operand[2], true));
}
template <class T> cudaError_t run_forward_bias_gelu(const twi_call *call, const twk_launch *launch) {
    const twi_operand *bias = &call->operand[2];
    const biased_gelu<T> last = {(const T *)bias->data, bias->stride[0], twk_matrix_of<T>(&call->operand[4])};
    return forward<T>(call, launch, &call->operand[3], last);
}

/* ---- backward: the gradient of x ---- */

template <class T, class Last>
cudaError_t backward_data(const twi_call *call, const twk_launch *launch, const twi_operand *dx, const Last &last) {
    const twi_operand *dy = &call->operand[0], *w = &call->operand[1];
    const product<T, T, true, false, Last> p = {dx->shape.dim[0],
                                                dx->shape.dim[1],
                                                dy->shape.dim[1],
                                                twk_matrix_of<const T>(dy),
                                                twk_matrix_of<const T>(w),
                                                twk_matrix_of<T>(dx),
                                                last};
    return twk_tile_product(launch, p, 1, 1);
}

template <class T> cudaError_t run_backward_data(const twi_call *call, const twk_launch *launch) {
    return backward_data<T>(call, launch, &call->operand[2], as_it_is());
}

/* Partial sums, then the gradient of z before it is rounded, where it is: what is summed is not. */
size_t sums_workspace(const twi_operand *o) {
    return (twk_channels_workspace(o, TWK_CHANNELS, 1) + TWK_PACK_ALIGNMENT - 1) / TWK_PACK_ALIGNMENT *
           TWK_PACK_ALIGNMENT;
}
size_t data_gelu_workspace(const twi_call *call) {
    const twi_operand *g = &call->operand[3];
    return sums_workspace(g) + (g->dtype == TW_F32 ? 0 : (size_t)twi_shape_count(&g->shape) * sizeof(float));
}

template <class T> cudaError_t run_backward_data_gelu(const twi_call *call, const twk_launch *launch) {
    const twi_operand *g = &call->operand[3];
    twi_operand summed = *g;
    if (sizeof(T) != sizeof(float)) {
        summed.data = (char *)launch->workspace + sums_workspace(g);
        twi_shape_row_major(&summed.shape, summed.stride);
    }
    gelu_slope<T> last = {twk_matrix_of<const T>(&call->operand[2]), twk_matrix_of<float>(&summed)};
    if (sizeof(T) == sizeof(float)) last.unrounded.data = NULL;
    const twi_operand *const in[] = {&summed};
    cudaError_t error = backward_data<T>(call, launch, g, last);
    if (error != cudaSuccess) return error;
    return twk_channel_sums<float>(launch, twk_channel_sum(), TWK_CHANNELS, in, NULL, NULL, NULL,
                                   twk_floats_of(call, 4));
}

/* ---- backward: the gradients of w and bias ---- */

template <class T, class Out> cudaError_t backward_weights(const twi_call *call, const twk_launch *launch) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    const product<T, Out, false, false, as_it_is> p = {dw->shape.dim[0],
                                                         dw->shape.dim[1],
                                                         x->shape.dim[0],
                                                         transposed<T>(dy),
                                                         twk_matrix_of<const T>(x),
                                                         twk_matrix_of<Out>(dw),
                                                         as_it_is()};
    return twk_tile_product(launch, p, 1, 1);
}
template <class T> cudaError_t run_backward_weights(const twi_call *call, const twk_launch *launch) {
    return call->operand[2].store == TWI_REAL ? backward_weights<T, T>(call, launch)
                                              : backward_weights<T, float>(call, launch);
}

size_t weights_bias_workspace(const twi_call *call) {
    return twk_channels_workspace(&call->operand[1], TWK_CHANNELS, 1);
}

template <class T> cudaError_t run_backward_weights_bias(const twi_call *call, const twk_launch *launch) {
    const twi_operand *const in[] = {&call->operand[1]};
    cudaError_t error = run_backward_weights<T>(call, launch);
    if (error != cudaSuccess) return error;
    return twk_channel_sums<T>(launch, twk_channel_sum(), TWK_CHANNELS, in, NULL, NULL, NULL, twk_floats_of(call, 3));
}

/* The columns of all products are those of one of these. */
const char *refuse(const twi_call *call) {
    int64_t columns = 0;
    for (int o = 0; o < call->operand_count; o++)
        if (call->operand[o].shape.rank > 1 && call->operand[o].shape.dim[1] > columns)
            columns = call->operand[o].shape.dim[1];
    return twk_tile_refusal(columns, 1);
}

} // namespace

extern "C" const twk_entry twk_dense_entries[] = {
    {"dense.forward", refuse, NULL, TWK_TYPED(run_forward)},
    {"dense.forward_bias", refuse, NULL, TWK_TYPED(run_forward_bias)},
    {"dense.forward_bias_relu", refuse, NULL, TWK_TYPED(run_forward_bias_relu)},
    {"dense.forward_bias_gelu", refuse, NULL, TWK_TYPED(run_forward_bias_gelu)},
    {"dense.backward_data", refuse, NULL, TWK_TYPED(run_backward_data)},
    {"dense.backward_data_gelu", refuse, data_gelu_workspace, TWK_TYPED(run_backward_data_gelu)},
    {"dense.backward_weights", refuse, NULL, TWK_TYPED(run_backward_weights)},
    {"dense.backward_weights_bias", refuse, weights_bias_workspace, TWK_TYPED(run_backward_weights_bias)},
    {},
};

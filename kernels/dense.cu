/* Dense layers as plain products, with bias and relu; where the library of matrix products takes them, that is faster.
 * Formulas: src/ops/op_dense.c, fused_dense_bias_relu.c. */
#include "entries.h"
#include "rows.cuh"
#include "tile.cuh"

namespace {

/* out[m,n] = sum over k of left * right, the sides of which are x, w or dy as they lie or transposed; then bias and relu. */
template <class T, class Out, bool LEFT_ALONG, bool RIGHT_ALONG> struct product {
    static constexpr bool LEFT_ALONG_DEPTH = LEFT_ALONG, RIGHT_ALONG_DEPTH = RIGHT_ALONG;
    int64_t rows, columns, depth;
    twk_matrix<const T> a, b; /* left(m,k) = a(m,k), right(k,n) = b(k,n) */
    twk_matrix<Out> out;
    const T *bias; /* NULL: none */
    int64_t bias_stride;
    bool relu;

    __device__ float left(int, int64_t m, int64_t k) const { return twk_float(*a.at(m, k)); }
    __device__ float right(int, int64_t k, int64_t n) const { return twk_float(*b.at(k, n)); }
    __device__ void store(int, int64_t m, int64_t n, float sum, int) const {
        if (bias) sum += twk_float(bias[n * bias_stride]);
        if (relu) sum = sum < 0 ? 0 : sum;
        *out.at(m, n) = twk_element<Out>(sum);
    }
};

template <class T> twk_matrix<const T> transposed(const twi_operand *o) {
    twk_matrix<const T> matrix = {(const T *)o->data, o->stride[1], o->stride[0]};
    return matrix;
}

template <class T>
cudaError_t forward(const twi_call *call, const twk_launch *launch, const twi_operand *bias, bool relu,
                    const twi_operand *y) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1];
    const product<T, T, true, true> p = {y->shape.dim[0],
                                         y->shape.dim[1],
                                         x->shape.dim[1],
                                         twk_matrix_of<const T>(x),
                                         transposed<T>(w),
                                         twk_matrix_of<T>(y),
                                         bias ? (const T *)bias->data : NULL,
                                         bias ? bias->stride[0] : 0,
                                         relu};
    return twk_tile_product(launch, p, 1, 1);
}

template <class T> cudaError_t run_forward(const twi_call *call, const twk_launch *launch) {
    return forward<T>(call, launch, NULL, false, &call->operand[2]);
}
template <class T> cudaError_t run_forward_bias(const twi_call *call, const twk_launch *launch) {
    return forward<T>(call, launch, &call->operand[2], false, &call->operand[3]);
}
template <class T> cudaError_t run_forward_bias_relu(const twi_call *call, const twk_launch *launch) {
    return forward<T>(call, launch, &call->operand[2], true, &call->operand[3]);
}

template <class T> cudaError_t run_backward_data(const twi_call *call, const twk_launch *launch) {
    const twi_operand *dy = &call->operand[0], *w = &call->operand[1], *dx = &call->operand[2];
    const product<T, T, true, false> p = {dx->shape.dim[0],
                                          dx->shape.dim[1],
                                          dy->shape.dim[1],
                                          twk_matrix_of<const T>(dy),
                                          twk_matrix_of<const T>(w),
                                          twk_matrix_of<T>(dx),
                                          NULL,
                                          0,
                                          false};
    return twk_tile_product(launch, p, 1, 1);
}

template <class T> cudaError_t run_backward_weights(const twi_call *call, const twk_launch *launch) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    const product<T, float, false, false> p = {dw->shape.dim[0],
                                               dw->shape.dim[1],
                                               x->shape.dim[0],
                                               transposed<T>(dy),
                                               twk_matrix_of<const T>(x),
                                               twk_matrix_of<float>(dw),
                                               NULL,
                                               0,
                                               false};
    return twk_tile_product(launch, p, 1, 1);
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
    {"dense.backward_data", refuse, NULL, TWK_TYPED(run_backward_data)},
    {"dense.backward_weights", refuse, NULL, TWK_TYPED(run_backward_weights)},
    {},
};

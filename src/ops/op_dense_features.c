/* A small dense layer behind a large one by ranges of the features x between them, which lie feature by feature
 * (src/program/features.c). What each kernel does by samples stands with its name:
 *
 *   dense.forward_parts           parts[p,o,n] = sum over i of block p of x[n,i] * w[o,i]
 *   dense.join_parts              y[n,o] = sum over p of parts[p,o,n], plus b[o]; both: dense.forward_bias
 *   dense.backward_data_relu_features    g, db: as dense.backward_data_relu, for a range of i
 *   dense.backward_weights_columns       dw[:,i], db: as dense.backward_weights_bias, for a range of i
 *
 * A block is TWI_FEATURE_BLOCK features. b and the db of the weights' gradient may be absent. */
#include "backend/attrs.h"
#include "kernels.h"

/* ---- specification ---- */

static inline tw_real *at(const twi_operand *o, int64_t row, int64_t column) {
    return (tw_real *)o->data + row * o->stride[0] + column * o->stride[1];
}

static void run_forward_parts(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1], *parts = &call->operand[2];
    for (int64_t i = call->begin; i < call->end; i++)
        for (int64_t o = 0; o < w->shape.dim[0]; o++)
            for (int64_t n = 0; n < x->shape.dim[0]; n++) {
                tw_real *sum = (tw_real *)parts->data + i / TWI_FEATURE_BLOCK * parts->stride[0] +
                               o * parts->stride[1] + n * parts->stride[2];
                if (i % TWI_FEATURE_BLOCK == 0) *sum = 0;
                *sum += *at(x, n, i) * *at(w, o, i);
            }
}

static void run_join_parts(const twi_call *call) {
    const twi_operand *parts = &call->operand[0], *b = &call->operand[1], *y = &call->operand[2];
    for (int64_t n = 0; n < y->shape.dim[0]; n++)
        for (int64_t o = 0; o < y->shape.dim[1]; o++) {
            tw_real sum = 0;
            for (int64_t p = 0; p < parts->shape.dim[0]; p++)
                sum +=
                    ((const tw_real *)parts
                         ->data)[p * parts->stride[0] + o * parts->stride[1] + (call->sample + n) * parts->stride[2]];
            *at(y, n, o) = b->data ? sum + ((const tw_real *)b->data)[o * b->stride[0]] : sum;
        }
}

static void run_backward_data(const twi_call *call) {
    const twi_operand *dy = &call->operand[0], *w = &call->operand[1], *y = &call->operand[2], *g = &call->operand[3],
                      *db = &call->operand[4];
    for (int64_t i = call->begin; i < call->end; i++) {
        tw_real total = 0;
        for (int64_t n = 0; n < g->shape.dim[0]; n++) {
            tw_real sum = 0;
            for (int64_t o = 0; o < w->shape.dim[0]; o++) sum += *at(dy, n, o) * *at(w, o, i);
            total += *at(g, n, i) = !(*at(y, n, i) <= 0) ? sum : 0;
        }
        ((tw_real *)db->data)[i * db->stride[0]] = total;
    }
}

/* The bias is no matter of features: who has the first does it. */
static void run_backward_weights(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2], *db = &call->operand[3];
    for (int64_t o = 0; o < dw->shape.dim[0]; o++) {
        tw_real total = 0;
        for (int64_t n = 0; n < dy->shape.dim[0]; n++) total += *at(dy, n, o);
        if (db->data && call->begin == 0) ((tw_real *)db->data)[o * db->stride[0]] = total;
        for (int64_t i = call->begin; i < call->end; i++) {
            tw_real sum = 0;
            for (int64_t n = 0; n < x->shape.dim[0]; n++) sum += *at(dy, n, o) * *at(x, n, i);
            *at(dw, o, i) = sum;
        }
    }
}

/* ---- kernels ---- */

static int64_t features_of_first(const twi_call *call) { return call->operand[0].shape.dim[1]; }
static int64_t features_of_weight(const twi_call *call) { return call->operand[1].shape.dim[1]; }

static double flops_forward(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[1].shape) * (double)call->operand[0].shape.dim[0];
}
static double flops_backward_weights(const twi_call *call) {
    return 2.0 * (double)twi_shape_count(&call->operand[2].shape) * (double)call->operand[0].shape.dim[0];
}

static const twi_kernel kernel_forward_parts = {
    .name = "dense.forward_parts",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_RANGED, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"parts", TWI_WRITE, TWI_ACC, TWI_RANGED, 0}},
    .split = TWI_BY_RANGE,
    .range = features_of_first,
    .grain = TWI_FEATURE_BLOCK,
    .flops = flops_forward,
    .run = run_forward_parts,
};

static const twi_kernel kernel_join_parts = {
    .name = "dense.join_parts",
    .operand_count = 3,
    .operand = {{"parts", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"b", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_join_parts,
};

static const twi_kernel kernel_backward_data = {
    .name = "dense.backward_data_relu_features",
    .operand_count = 5,
    .operand = {{"dy", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"w", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"y", TWI_READ, TWI_REAL, TWI_RANGED, 0},
                {"g", TWI_WRITE, TWI_REAL, TWI_RANGED, 0},
                {"db", TWI_WRITE, TWI_ACC, TWI_RANGED, 0}},
    .split = TWI_BY_RANGE,
    .range = features_of_weight,
    .grain = TWI_FEATURE_BLOCK,
    .flops = flops_forward,
    .run = run_backward_data,
};

static const twi_kernel kernel_backward_weights = {
    .name = "dense.backward_weights_columns",
    .operand_count = 4,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_RANGED, 0},
                {"dy", TWI_READ, TWI_REAL, TWI_WHOLE, 0},
                {"dw", TWI_WRITE, TWI_GRADIENT, TWI_RANGED, 0},
                {"db", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = features_of_first,
    .grain = TWI_FEATURE_BLOCK,
    .flops = flops_backward_weights,
    .run = run_backward_weights,
};

static const twi_kernel *const kernels[] = {&kernel_forward_parts, &kernel_join_parts, &kernel_backward_data,
                                            &kernel_backward_weights, NULL};

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_dense_features) = {
    .name = "dense_features",
    .formula = "y[n,o] = sum over p of (sum over i of block p of x[n,i] * w[o,i]), and its gradients",
    .kernels = kernels,
    .asked = true,
};

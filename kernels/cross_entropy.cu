/* Cross-entropy of labels with the softmax of logits: in steps, and loss and gradient in one pass over the logits. Formulas:
 * src/ops/op_cross_entropy.c, fused_softmax_cross_entropy.c. */
#include "backend/attrs.h"
#include "entries.h"
#include "fault.cuh"
#include "rows.cuh"

namespace {

/* ---- labels, and what blocks of rows leave behind ---- */

typedef struct part {
    long long fault; /* the first row whose label is none of the classes */
    float loss;
} part;

/* What the losses of a batch are told. */
struct losses {
    twk_matrix<const int32_t> labels;
    float smoothing;
    twi_control *control;
    int32_t node;
    int64_t sample;
    float *loss;
    part *parts; /* one a block of rows */

    /* What the probability of class c is wanted to be. */
    __device__ float target(int64_t classes, int64_t label, int64_t c) const {
        return (c == label ? 1 - smoothing : 0) + smoothing / (float)classes;
    }
    __device__ void report(part sum) const {
        loss[0] = sum.loss;
        if (sum.fault != TWK_NO_FAULT)
            twk_fault_raise(control, TW_ERROR_LABEL, node, control->window_sample + sample + sum.fault,
                            *labels.at(sum.fault, 0));
    }
    /* Called by all threads of a block, with their own. A single block has the last word. */
    __device__ void leave(float own_loss, long long own_fault) const {
        part sum = {twk_block_join(own_fault, twk_smaller()), twk_block_join(own_loss, twk_add())};
        if (threadIdx.x > 0) return;
        if (gridDim.x == 1)
            report(sum);
        else
            parts[blockIdx.x] = sum;
    }
};

__global__ void __launch_bounds__(TWK_THREADS) sum_parts(losses all, unsigned blocks) {
    float loss = 0;
    long long fault = TWK_NO_FAULT;
    for (unsigned b = threadIdx.x; b < blocks; b += TWK_THREADS) {
        loss += all.parts[b].loss;
        if (all.parts[b].fault < fault) fault = all.parts[b].fault;
    }
    all.leave(loss, fault);
}

size_t workspace(const twi_call *call) {
    const twi_shape *shape = &call->operand[0].shape;
    return twk_row_blocks(shape->dim[0], shape->dim[1]) * sizeof(part);
}

losses losses_of(const twi_call *call, const twk_launch *launch, const twi_operand *labels, const twi_operand *loss) {
    losses all = {twk_matrix_of<const int32_t>(labels),
                  ((const twi_cross_entropy_attrs *)call->attrs)->label_smoothing,
                  call->control,
                  call->node,
                  call->sample,
                  loss ? (float *)loss->data : NULL,
                  (part *)launch->workspace};
    return all;
}

/* Runs rows that leave parts, and adds these. */
template <class F> cudaError_t run_losses(const twk_launch *launch, const F &f, int64_t rows, int64_t classes) {
    unsigned blocks = twk_row_blocks(rows, classes);
    cudaError_t error = twk_over_rows(launch, f, rows, classes);
    if (error != cudaSuccess || blocks <= 1) return error;
    return TWC_LAUNCH(sum_parts, 1, TWK_THREADS, 0, launch->stream, f.all, blocks);
}

/* ---- log_softmax ---- */

template <class T> struct log_softmax {
    twk_matrix<const T> x;
    twk_matrix<float> logp;
    template <int TEAM> __device__ void row(twk_team<TEAM> team, int64_t rows, int64_t classes) const {
        float largest, sum;
        twk_row_scale(team, x, rows, classes, &largest, &sum);
        if (team.row >= rows) return;
        float log_sum = logf(sum);
        for (int64_t c = team.lane; c < classes; c += TEAM)
            *logp.at(team.row, c) = twk_float(*x.at(team.row, c)) - largest - log_sum;
    }
};

template <class T> cudaError_t run_log_softmax(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const log_softmax<T> f = {twk_matrix_of<const T>(&o[0]), twk_matrix_of<float>(&o[1])};
    return twk_over_rows(launch, f, o[0].shape.dim[0], o[0].shape.dim[1]);
}

/* ---- loss ---- */

struct loss {
    twk_matrix<const float> logp;
    losses all;
    template <int TEAM> __device__ void row(twk_team<TEAM> team, int64_t rows, int64_t classes) const {
        bool live = team.row < rows;
        int64_t label = live ? *all.labels.at(team.row, 0) : 0;
        bool valid = label >= 0 && label < classes;
        float sum = 0;
        for (int64_t c = team.lane; live && valid && c < classes; c += TEAM) {
            float target = all.target(classes, label, c);
            if (target > 0) sum -= target * *logp.at(team.row, c); /* not 0 * infinity */
        }
        all.leave(sum, live && !valid ? (long long)team.row : TWK_NO_FAULT);
    }
};

cudaError_t run_loss(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const loss f = {twk_matrix_of<const float>(&o[0]), losses_of(call, launch, &o[1], &o[2])};
    return run_losses(launch, f, o[0].shape.dim[0], o[0].shape.dim[1]);
}

/* ---- backward ---- */

template <class T> struct backward {
    twk_matrix<const float> logp;
    losses all;
    const float *seed;
    twk_matrix<T> dx;
    template <int TEAM> __device__ void row(twk_team<TEAM> team, int64_t rows, int64_t classes) const {
        if (team.row >= rows) return;
        int64_t label = *all.labels.at(team.row, 0);
        bool valid = label >= 0 && label < classes;
        for (int64_t c = team.lane; c < classes; c += TEAM) {
            float d = (expf(*logp.at(team.row, c)) - all.target(classes, label, c)) * seed[0];
            *dx.at(team.row, c) = twk_element<T>(valid ? d : 0);
        }
    }
};

template <class T> cudaError_t run_backward(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const backward<T> f = {twk_matrix_of<const float>(&o[0]), losses_of(call, launch, &o[1], NULL),
                           (const float *)o[2].data, twk_matrix_of<T>(&o[3])};
    return twk_over_rows(launch, f, o[0].shape.dim[0], o[0].shape.dim[1]);
}

/* ---- both: dx may lie over x, whose elements are read and written by the same thread ---- */

template <class T> struct both {
    twk_matrix<const T> x;
    losses all;
    const float *seed;
    twk_matrix<T> dx;
    template <int TEAM> __device__ void row(twk_team<TEAM> team, int64_t rows, int64_t classes) const {
        bool live = team.row < rows;
        int64_t label = live ? *all.labels.at(team.row, 0) : 0;
        bool valid = label >= 0 && label < classes;
        float largest, sum, own = 0;
        twk_row_scale(team, x, rows, classes, &largest, &sum);
        float log_sum = logf(sum);
        for (int64_t c = team.lane; live && c < classes; c += TEAM) {
            float logp = twk_float(*x.at(team.row, c)) - largest - log_sum, target = all.target(classes, label, c);
            if (valid && target > 0) own -= target * logp; /* not 0 * infinity */
            *dx.at(team.row, c) = twk_element<T>(valid ? (expf(logp) - target) * seed[0] : 0);
        }
        all.leave(own, live && !valid ? (long long)team.row : TWK_NO_FAULT);
    }
};

template <class T> cudaError_t run_both(const twi_call *call, const twk_launch *launch) {
    const twi_operand *o = call->operand;
    const both<T> f = {twk_matrix_of<const T>(&o[0]), losses_of(call, launch, &o[1], &o[3]), (const float *)o[2].data,
                       twk_matrix_of<T>(&o[4])};
    return run_losses(launch, f, o[0].shape.dim[0], o[0].shape.dim[1]);
}

} // namespace

extern "C" const twk_entry twk_cross_entropy_entries[] = {
    {"cross_entropy.log_softmax", NULL, NULL, TWK_TYPED(run_log_softmax)},
    {"cross_entropy.loss", NULL, workspace, run_loss},
    {"cross_entropy.backward", NULL, NULL, TWK_TYPED(run_backward)},
    {"softmax_cross_entropy.both", NULL, workspace, TWK_TYPED(run_both)},
    {},
};

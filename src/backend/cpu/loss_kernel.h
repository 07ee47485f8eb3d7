/* Softmax and cross-entropy over rows of classes, one after the other; rows of few classes go by loss_lanes_kernel.h. A
 * row is filled up with minus infinity to whole vectors, so that it may have any length; its exponentials lie in scratch,
 * so that dx may take the place of x.
 *
 * The largest logit is subtracted first, and the logarithm is taken of the sum alone: the loss of a sample stays exact
 * however far its label is behind, and an infinite or undefined logit gives an undefined loss, never a wrong one. */
#include "loss_lanes_kernel.h"
#include "parts.h"

/* What a row came to: its largest element, and the sum of exp(x - largest). */
typedef struct row_sum {
    float largest, sum;
} row_sum;

/* Elements c and on of a row, and minus infinity behind its end. */
VEC_INLINE vec row_load(const float *x, int64_t c, int64_t classes) {
    if (c + VEC_WIDTH <= classes) return vec_load(x + c);
    const int rest = (int)(classes - c);
    return vec_choose(vec_test_from((1u << rest) - 1), vec_load_part(x + c, rest), vec_splat(-INFINITY));
}

/* e[c] = exp(x[c] - largest), then zeros to whole vectors. */
static row_sum row_exponentials(float *e, const float *x, int64_t classes) {
    vec most = row_load(x, 0, classes), sum = {0};
    for (int64_t c = VEC_WIDTH; c < classes; c += VEC_WIDTH) {
        vec v = row_load(x, c, classes);
        most = vec_choose(vec_beats(v, most), v, most);
    }
    float largest = vec_largest(most);
    for (int64_t c = 0; c < classes; c += VEC_WIDTH) {
        vec v = vec_exp(row_load(x, c, classes) - vec_splat(largest));
        vec_store(e + c, v);
        sum += v;
    }
    return (row_sum){largest, vec_sum(sum)};
}

/* y[c] = e[c] * factor - part */
static void row_scaled(float *y, const float *e, float factor, float part, int64_t classes) {
    for (int64_t c = 0; c < classes; c += VEC_WIDTH)
        vec_store_some(y + c, vec_load(e + c) * vec_splat(factor) - vec_splat(part),
                       (int)(classes - c < VEC_WIDTH ? classes - c : VEC_WIDTH));
}

/* x, y */
static void softmax_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    int64_t classes = call->operand[0].shape.dim[1], end = call->operand[0].shape.dim[0] * classes;
    if (classes <= TWI_FEW_CLASSES) {
        softmax_in_lanes(call);
        return;
    }
    for (int64_t i = 0; i < end; i += classes) {
        row_sum row = row_exponentials(workspace->scratch, TWI_DATA(const float, call, 0) + i, classes);
        row_scaled(TWI_DATA(float, call, 1) + i, workspace->scratch, 1 / row.sum, 0, classes);
    }
}

/* x, logp */
static void log_softmax(const twi_call *call, const twi_cpu_workspace *workspace) {
    int64_t classes = call->operand[0].shape.dim[1], end = call->operand[0].shape.dim[0] * classes;
    if (classes <= TWI_FEW_CLASSES) {
        log_softmax_in_lanes(call);
        return;
    }
    for (int64_t i = 0; i < end; i += classes) {
        const float *x = TWI_DATA(const float, call, 0) + i;
        float *logp = TWI_DATA(float, call, 1) + i;
        row_sum row = row_exponentials(workspace->scratch, x, classes);
        float log_sum = logf(row.sum);
        for (int64_t c = 0; c < classes; c++) logp[c] = x[c] - row.largest - log_sum;
    }
}

/* dx = (p - target) * seed for p = e * factor, where the target is 1 - smoothing at the label and smoothing / classes
 * on top everywhere; 0 for a label that is none. */
static void row_gradient(float *dx, const float *e, float factor, int32_t label, float smoothing, float seed,
                         int64_t classes) {
    if (label < 0 || label >= classes) {
        memset(dx, 0, (size_t)classes * sizeof(float));
        return;
    }
    float everywhere = smoothing / (float)classes;
    float at_label = (e[label] * factor - (1 - smoothing + everywhere)) * seed;
    row_scaled(dx, e, factor * seed, everywhere * seed, classes);
    dx[label] = at_label;
}

/* logp, labels, seed, dx: element by element but for the label's, over as many rows at once as stay in the nearest
 * cache. */
static void cross_entropy_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    enum { AT_ONCE = 1024 };
    const twi_cross_entropy_attrs *attrs = call->attrs;
    const int64_t samples = call->operand[0].shape.dim[0], classes = call->operand[0].shape.dim[1];
    const int64_t rows = twi_larger(AT_ONCE / classes, 1);
    const float smoothing = attrs->label_smoothing, seed = *TWI_DATA(const float, call, 2);
    for (int64_t n = 0; n < samples; n += rows) {
        const int64_t live = twi_smaller(samples - n, rows), count = live * classes;
        const float *logp = TWI_DATA(const float, call, 0) + n * classes;
        const int32_t *labels = TWI_DATA(const int32_t, call, 1) + n;
        float *dx = TWI_DATA(float, call, 3) + n * classes;
        for (int64_t i = 0; i < count; i += VEC_WIDTH) {
            const int some = (int)twi_smaller(count - i, VEC_WIDTH);
            vec_store_some(dx + i, vec_exp(vec_load_some(logp + i, some)), some);
        }
        for (int64_t r = 0; r < live; r++)
            if (labels[r] >= 0 && labels[r] < classes) dx[r * classes + labels[r]] -= 1 - smoothing;
        for (int64_t i = 0; i < count; i++) dx[i] = (dx[i] - smoothing / (float)classes) * seed;
        for (int64_t r = 0; r < live; r++)
            if (labels[r] < 0 || labels[r] >= classes) memset(dx + r * classes, 0, (size_t)classes * sizeof(float));
    }
}

/* x, labels, seed, loss, dx */
static void softmax_cross_entropy(const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_cross_entropy_attrs *attrs = call->attrs;
    int64_t samples = call->operand[0].shape.dim[0], classes = call->operand[0].shape.dim[1];
    if (classes <= TWI_FEW_CLASSES) {
        cross_entropy_in_lanes(call);
        return;
    }
    float *e = workspace->scratch, smoothing = attrs->label_smoothing, seed = *TWI_DATA(const float, call, 2);
    double loss = 0;
    for (int64_t n = 0; n < samples; n++) {
        const float *x = TWI_DATA(const float, call, 0) + n * classes;
        int32_t label = TWI_DATA(const int32_t, call, 1)[n];
        row_sum row = row_exponentials(e, x, classes);
        if (label < 0 || label >= classes) {
            twi_fault_raise(call->control, TW_ERROR_LABEL, call->node, twi_call_position(call, n), label);
        } else {
            float log_sum = logf(row.sum);
            loss += (double)(1 - smoothing) * (log_sum + (row.largest - x[label]));
            if (smoothing > 0) {
                double behind = 0;
                for (int64_t c = 0; c < classes; c++) behind += row.largest - x[c];
                loss += smoothing * (log_sum + behind / (double)classes);
            }
        }
        row_gradient(TWI_DATA(float, call, 4) + n * classes, e, 1 / row.sum, label, smoothing, seed, classes);
    }
    float *sum = TWI_DATA(float, call, 3);
    *sum = (call->first ? 0 : *sum) + (float)loss;
}

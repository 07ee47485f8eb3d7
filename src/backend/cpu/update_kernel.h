/* The optimizers' updates of a run of the flat parameter arena. The formulas are those of the specifications; what is
 * here is that four streams of memory pass once. */
#include "loops.h"
#include "backend/attrs.h"
#include "vec_math.h"

/* ---- sgd: param, grad, momentum (may be absent) ---- */

typedef struct sgd_numbers {
    vec rate, decay, momentum, factor;
    bool nesterov;
} sgd_numbers;

VEC_INLINE void sgd_step(float *w, const float *grad, float *buffer, const sgd_numbers *k, int lanes) {
    vec weight = vec_load_some(w, lanes), step = vec_fma(k->decay, weight, k->factor * vec_load_some(grad, lanes));
    if (buffer) {
        vec b = k->momentum * vec_load_some(buffer, lanes) + step;
        vec_store_some(buffer, b, lanes);
        step = k->nesterov ? step + k->momentum * b : b;
    }
    vec_store_some(w, weight - k->rate * step, lanes);
}

static void sgd_update(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    const twi_update_attrs *attrs = call->attrs;
    if (twi_run_refused(call->control)) return;
    float *w = call->operand[0].data, *buffer = call->operand[2].data;
    const float *grad = call->operand[1].data;
    for (int32_t s = 0; s < attrs->segment_count; s++) {
        twi_update_segment part = twi_update_part(attrs->segment[s], call->begin, call->end);
        sgd_numbers k = {vec_splat((float)call->control->learning_rate), vec_splat(part.weight_decay),
                         vec_splat(attrs->momentum), vec_splat((float)call->control->guard.factor),
                         attrs->nesterov};
        int64_t i = part.begin;
        for (; i + VEC_WIDTH <= part.end; i += VEC_WIDTH)
            sgd_step(w + i, grad + i, buffer ? buffer + i : NULL, &k, VEC_WIDTH);
        if (i < part.end) sgd_step(w + i, grad + i, buffer ? buffer + i : NULL, &k, (int)(part.end - i));
    }
}

/* ---- adamw: param, grad, m, v ---- */

typedef struct adamw_numbers {
    vec beta1, beta2, rest1, rest2;   /* rest = 1 - beta */
    vec step, keep, inverse, epsilon; /* inverse of the correction of sqrt(v) */
    vec factor;
} adamw_numbers;

VEC_INLINE void adamw_step(float *w, const float *grad, float *m, float *v, const adamw_numbers *k, int lanes) {
    vec g = k->factor * vec_load_some(grad, lanes);
    vec mean = k->beta1 * vec_load_some(m, lanes) + k->rest1 * g;
    vec square = k->beta2 * vec_load_some(v, lanes) + k->rest2 * g * g;
    vec_store_some(m, mean, lanes);
    vec_store_some(v, square, lanes);
    vec step = k->step * mean / (vec_sqrt(square) * k->inverse + k->epsilon);
    vec_store_some(w, k->keep * vec_load_some(w, lanes) - step, lanes);
}

static void adamw_update(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    const twi_update_attrs *attrs = call->attrs;
    if (twi_run_refused(call->control)) return;
    float *w = call->operand[0].data, *m = call->operand[2].data, *v = call->operand[3].data;
    const float *grad = call->operand[1].data;
    double t = (double)call->control->update + 1, rate = call->control->learning_rate;
    double correction1 = 1 - pow((double)attrs->beta1, t), correction2 = sqrt(1 - pow((double)attrs->beta2, t));
    for (int32_t s = 0; s < attrs->segment_count; s++) {
        twi_update_segment part = twi_update_part(attrs->segment[s], call->begin, call->end);
        adamw_numbers k = {.beta1 = vec_splat(attrs->beta1),
                           .beta2 = vec_splat(attrs->beta2),
                           .rest1 = vec_splat(1 - attrs->beta1),
                           .rest2 = vec_splat(1 - attrs->beta2),
                           .step = vec_splat((float)(rate / correction1)),
                           .keep = vec_splat((float)(1 - rate * part.weight_decay)),
                           .inverse = vec_splat((float)(1 / correction2)),
                           .epsilon = vec_splat(attrs->epsilon),
                           .factor = vec_splat((float)call->control->guard.factor)};
        int64_t i = part.begin;
        for (; i + VEC_WIDTH <= part.end; i += VEC_WIDTH) adamw_step(w + i, grad + i, m + i, v + i, &k, VEC_WIDTH);
        if (i < part.end) adamw_step(w + i, grad + i, m + i, v + i, &k, (int)(part.end - i));
    }
}

/* The optimizers' updates of a run of the flat parameter arena. The formulas are those of the specifications; what is
 * here is that four streams of memory pass once, and that weights are asked for ahead where workers share a run:
 * others may have read them, and a write to a line that another core has a copy of waits until that is given up, one
 * write after the other. */
#include "loops.h"
#include "backend/attrs.h"
#include "vec_half.h"
#include "vec_math.h"

/* ---- both ---- */

/* Where the elements of a segment lie: gradients in f32 or in half precision, and, if there is one, a copy of the
 * weights in that. */
typedef struct update_halves {
    const float *grad;
    const uint16_t *grad_half; /* NULL: grad it is */
    uint16_t *param_half;      /* NULL: there is none */
    bool bf16;
} update_halves;

VEC_INLINE vec update_gradient(const update_halves *h, int64_t i, int lanes) {
    return h->grad_half ? vec_from_halves(h->grad_half + i, h->bf16, lanes) : vec_load_some(h->grad + i, lanes);
}
VEC_INLINE void update_store(float *w, vec weight, const update_halves *h, int64_t i, int lanes) {
    vec_store_some(w + i, weight, lanes);
    if (h->param_half) vec_to_halves(h->param_half + i, weight, h->bf16, lanes);
}

/* half: the number of the weights' copy among the operands, before the gradients'. */
static update_halves update_halves_of(const twi_call *call, int half, const twi_update_segment *segment) {
    const twi_operand *param = &call->operand[half], *grad = &call->operand[half + 1];
    return (update_halves){.grad = call->operand[1].data,
                           .grad_half = segment->half ? grad->data : NULL,
                           .param_half = param->data,
                           .bf16 = (param->data ? param : grad)->dtype == TW_BF16};
}

/* Asks for the line of an element that is updated in a moment. */
VEC_INLINE void update_ask(const float *w, const update_halves *h, int64_t i) {
    __builtin_prefetch(w + i, 1);
    if (h->param_half) __builtin_prefetch(h->param_half + i, 1);
}

/* So many elements ahead; and where a segment begins, so many segments ahead, since they may be short. */
enum { UPDATE_AHEAD = 8 * TWI_UPDATE_LINE, UPDATE_SEGMENTS_AHEAD = 3 };

static void update_ask_segment(const twi_call *call, int half, int32_t s, int64_t shares) {
    const twi_update_attrs *attrs = call->attrs;
    if (s >= attrs->segment_count) return;
    const twi_update_segment part = twi_update_share(&attrs->segment[s], call->begin, call->end, shares);
    const update_halves h = update_halves_of(call, half, &part);
    for (int64_t i = part.begin; i < part.end && i < part.begin + UPDATE_AHEAD; i += TWI_UPDATE_LINE)
        update_ask(call->operand[0].data, &h, i);
}

/* ---- sgd: param, grad, momentum (may be absent) ---- */

typedef struct sgd_numbers {
    vec rate, decay, momentum, factor;
    bool nesterov;
} sgd_numbers;

VEC_INLINE void sgd_step(float *w, float *buffer, const update_halves *h, const sgd_numbers *k, int64_t i, int lanes) {
    vec weight = vec_load_some(w + i, lanes), step = vec_fma(k->decay, weight, k->factor * update_gradient(h, i, lanes));
    if (buffer) {
        vec b = k->momentum * vec_load_some(buffer + i, lanes) + step;
        vec_store_some(buffer + i, b, lanes);
        step = k->nesterov ? step + k->momentum * b : b;
    }
    update_store(w, weight - k->rate * step, h, i, lanes);
}

static void sgd_update(const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_update_attrs *attrs = call->attrs;
    const int64_t shares = twi_update_shares(twi_call_elements(call));
    const bool shared = workspace->workers > 1;
    if (twi_run_refused(call->control)) return;
    float *w = call->operand[0].data, *buffer = call->operand[2].data;
    for (int32_t s = -UPDATE_SEGMENTS_AHEAD; s < attrs->segment_count; s++) {
        if (shared) update_ask_segment(call, 3, s + UPDATE_SEGMENTS_AHEAD, shares);
        if (s < 0) continue;
        twi_update_segment part = twi_update_share(&attrs->segment[s], call->begin, call->end, shares);
        sgd_numbers k = {vec_splat((float)call->control->learning_rate), vec_splat(part.weight_decay),
                         vec_splat(attrs->momentum), vec_splat((float)call->control->guard.factor),
                         attrs->nesterov};
        const update_halves h = update_halves_of(call, 3, &part);
        int64_t i = part.begin;
        for (; i + VEC_WIDTH <= part.end; i += VEC_WIDTH) {
            if (shared) update_ask(w, &h, twi_smaller(i + UPDATE_AHEAD, part.end - 1));
            sgd_step(w, buffer, &h, &k, i, VEC_WIDTH);
        }
        if (i < part.end) sgd_step(w, buffer, &h, &k, i, (int)(part.end - i));
    }
}

/* ---- adamw: param, grad, m, v ---- */

typedef struct adamw_numbers {
    vec beta1, beta2, rest1, rest2;   /* rest = 1 - beta */
    vec step, keep, inverse, epsilon; /* inverse of the correction of sqrt(v) */
    vec factor;
} adamw_numbers;

VEC_INLINE void adamw_step(float *w, float *m, float *v, const update_halves *h, const adamw_numbers *k, int64_t i,
                           int lanes) {
    vec g = k->factor * update_gradient(h, i, lanes);
    vec mean = k->beta1 * vec_load_some(m + i, lanes) + k->rest1 * g;
    vec square = k->beta2 * vec_load_some(v + i, lanes) + k->rest2 * g * g;
    vec_store_some(m + i, mean, lanes);
    vec_store_some(v + i, square, lanes);
    vec step = k->step * mean / (vec_sqrt(square) * k->inverse + k->epsilon);
    update_store(w, k->keep * vec_load_some(w + i, lanes) - step, h, i, lanes);
}

static void adamw_update(const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_update_attrs *attrs = call->attrs;
    const int64_t shares = twi_update_shares(twi_call_elements(call));
    const bool shared = workspace->workers > 1;
    if (twi_run_refused(call->control)) return;
    float *w = call->operand[0].data, *m = call->operand[2].data, *v = call->operand[3].data;
    double t = (double)call->control->update + 1, rate = call->control->learning_rate;
    double correction1 = 1 - pow((double)attrs->beta1, t), correction2 = sqrt(1 - pow((double)attrs->beta2, t));
    for (int32_t s = -UPDATE_SEGMENTS_AHEAD; s < attrs->segment_count; s++) {
        if (shared) update_ask_segment(call, 4, s + UPDATE_SEGMENTS_AHEAD, shares);
        if (s < 0) continue;
        twi_update_segment part = twi_update_share(&attrs->segment[s], call->begin, call->end, shares);
        adamw_numbers k = {.beta1 = vec_splat(attrs->beta1),
                           .beta2 = vec_splat(attrs->beta2),
                           .rest1 = vec_splat(1 - attrs->beta1),
                           .rest2 = vec_splat(1 - attrs->beta2),
                           .step = vec_splat((float)(rate / correction1)),
                           .keep = vec_splat((float)(1 - rate * part.weight_decay)),
                           .inverse = vec_splat((float)(1 / correction2)),
                           .epsilon = vec_splat(attrs->epsilon),
                           .factor = vec_splat((float)call->control->guard.factor)};
        const update_halves h = update_halves_of(call, 4, &part);
        int64_t i = part.begin;
        for (; i + VEC_WIDTH <= part.end; i += VEC_WIDTH) {
            if (shared) update_ask(w, &h, twi_smaller(i + UPDATE_AHEAD, part.end - 1));
            adamw_step(w, m, v, &h, &k, i, VEC_WIDTH);
        }
        if (i < part.end) adamw_step(w, m, v, &h, &k, i, (int)(part.end - i));
    }
}

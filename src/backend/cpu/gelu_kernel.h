/* gelu as sweeps, in both forms, and its gradient with that of a bias. Formulas: src/ops/op_gelu.c. */
#include "sweep_kernel.h"
#include "vec_math.h"

/* |x|, but no more than `most`, where the share below x is 0 or 1 and its slope 0; keeps not-a-number. */
VEC_INLINE vec gelu_distance(vec x, float most) {
    vec a = (vec)((vec_mask)x & vec_splat_int(0x7fffffff));
    return vec_choose(vec_not_less(vec_splat(most), a), a, vec_splat(most));
}

/* What of a normal distribution lies below x, and the derivative of x times that. */
typedef struct gelu_share {
    vec below, slope;
} gelu_share;

/* The upper tail is exp(-a^2/2) times a smooth function of t = 1 / (1 + a/4): a polynomial, fitted for the least
 * relative error, 5e-8, over a = 0 .. 13.3, where the exponential reaches the least normal number. */
VEC_INLINE gelu_share gelu_share_erf(vec x) {
    vec a = gelu_distance(x, 14), e = vec_exp(a * a * vec_splat(-0.5f));
    vec t = vec_splat(1) / (vec_splat(1) + a * vec_splat(0.25f));
    vec p = vec_splat(0.0265313182f);
    p = p * t - vec_splat(0.156806365f);
    p = p * t + vec_splat(0.304550111f);
    p = p * t - vec_splat(0.215655312f);
    p = p * t + vec_splat(0.208768845f);
    p = p * t + vec_splat(0.0298434217f);
    p = p * t + vec_splat(0.104566246f);
    p = p * t + vec_splat(0.0983968005f);
    p = p * t + vec_splat(0.0998048931f);
    vec tail = e * p * t;
    vec_test up = vec_not_less(x, (vec){0});
    vec below = vec_choose(up, vec_splat(1) - tail, tail), z = vec_choose(up, a, -a);
    return (gelu_share){below, below + z * e * vec_splat(0.398942280f)};
}

/* e is exp(-2u) of |x|, so that both tails keep their digits. */
VEC_INLINE gelu_share gelu_share_tanh(vec x) {
    const vec twice = vec_splat(1.59576912f); /* 2 sqrt(2/pi) */
    vec a = gelu_distance(x, 14), square = a * a;
    vec e = vec_exp(-twice * a * (vec_splat(1) + vec_splat(0.044715f) * square));
    vec s = vec_splat(1) / (vec_splat(1) + e);
    vec_test up = vec_not_less(x, (vec){0});
    vec below = vec_choose(up, s, e * s), z = vec_choose(up, a, -a);
    return (gelu_share){below, below + z * e * s * s * twice * (vec_splat(1) + vec_splat(3 * 0.044715f) * square)};
}

/* ---- x, y ---- */

VEC_INLINE void gelu_sweep_forward(const twi_call *call, const twi_cpu_workspace *workspace, sweep_step *step) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.out = call->operand[1].data;
    sweep_run(&sweep, step, (sweep_rows){0, 0});
}

VEC_INLINE void step_gelu(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    vec x = sweep_get(s, 0, i);
    sweep_put(s, i, x * gelu_share_erf(x).below);
}
static void gelu_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    gelu_sweep_forward(call, workspace, step_gelu);
}

VEC_INLINE void step_gelu_tanh(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    vec x = sweep_get(s, 0, i);
    sweep_put(s, i, x * gelu_share_tanh(x).below);
}
static void gelu_forward_tanh(const twi_call *call, const twi_cpu_workspace *workspace) {
    gelu_sweep_forward(call, workspace, step_gelu_tanh);
}

/* ---- dy, x, dx ---- */

VEC_INLINE void gelu_sweep_backward(const twi_call *call, const twi_cpu_workspace *workspace, sweep_step *step) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.in[1] = call->operand[1].data;
    sweep.out = call->operand[2].data;
    sweep_run(&sweep, step, (sweep_rows){0, 0});
}

VEC_INLINE void step_gelu_backward(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    sweep_put(s, i, sweep_get(s, 0, i) * gelu_share_erf(sweep_get(s, 1, i)).slope);
}
static void gelu_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    gelu_sweep_backward(call, workspace, step_gelu_backward);
}

VEC_INLINE void step_gelu_backward_tanh(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    sweep_put(s, i, sweep_get(s, 0, i) * gelu_share_tanh(sweep_get(s, 1, i)).slope);
}
static void gelu_backward_tanh(const twi_call *call, const twi_cpu_workspace *workspace) {
    gelu_sweep_backward(call, workspace, step_gelu_backward_tanh);
}

/* ---- bias and gelu: dy, z, g, db ---- */

VEC_INLINE void step_bias_gelu_backward(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    vec g = sweep_get(s, 0, i) * gelu_share_tanh(sweep_get(s, 1, i)).slope;
    sweep_put(s, i, g);
    of->sum[0] += g;
}
static void bias_gelu_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.in[1] = call->operand[1].data;
    sweep.out = call->operand[2].data;
    twi_sweep_begin_sums(&sweep, 1);
    sweep_run(&sweep, step_bias_gelu_backward, (sweep_rows){0, 1});
    twi_sweep_fold(&sweep, 0, call->operand[3].data, call->first);
}

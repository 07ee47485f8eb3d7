/* Bias, relu and add as sweeps. A step does one vector of elements at position i, given the numbers and sums of its
 * channels. */
#include "sweep_kernel.h"

/* ---- bias: x, b, y; dy, db ---- */

VEC_INLINE void step_bias(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    sweep_put(s, i, sweep_get(s, 0, i) + of->coef[0]);
}
static void bias_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    twi_sweep_spread_operand(&sweep, 0, &call->operand[1]);
    sweep.out = call->operand[2].data;
    sweep_run(&sweep, step_bias, (sweep_rows){1, 0});
}

VEC_INLINE void step_bias_backward(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    of->sum[0] += sweep_get(s, 0, i);
}
static void bias_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    twi_sweep_begin_sums(&sweep, 1);
    sweep_run(&sweep, step_bias_backward, (sweep_rows){0, 1});
    twi_sweep_fold(&sweep, 0, call->operand[1].data, call->first);
}

/* ---- bias and relu: dy, y, g, db ---- */

/* The gradient behind a relu whose result is in[1]. */
VEC_INLINE vec through_relu(const twi_sweep *s, int64_t i) {
    return vec_keep(vec_positive(sweep_get(s, 1, i)), sweep_get(s, 0, i));
}

VEC_INLINE void step_bias_relu_backward(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    vec g = through_relu(s, i);
    sweep_put(s, i, g);
    of->sum[0] += g;
}
static void bias_relu_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.in[1] = call->operand[1].data;
    sweep.out = call->operand[2].data;
    twi_sweep_begin_sums(&sweep, 1);
    sweep_run(&sweep, step_bias_relu_backward, (sweep_rows){0, 1});
    twi_sweep_fold(&sweep, 0, call->operand[3].data, call->first);
}

/* ---- relu: x, y; dy, y, dx ---- */

VEC_INLINE void step_relu(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    sweep_put(s, i, vec_relu(sweep_get(s, 0, i)));
}
static void relu_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.out = call->operand[1].data;
    sweep_run(&sweep, step_relu, (sweep_rows){0, 0});
}

VEC_INLINE void step_relu_backward(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    sweep_put(s, i, through_relu(s, i));
}
static void relu_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.in[1] = call->operand[1].data;
    sweep.out = call->operand[2].data;
    sweep_run(&sweep, step_relu_backward, (sweep_rows){0, 0});
}

/* ---- add: a, b, y ---- */

VEC_INLINE void step_add(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    sweep_put(s, i, sweep_get(s, 0, i) + sweep_get(s, 1, i));
}
static void add_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.in[1] = call->operand[1].data;
    sweep.out = call->operand[2].data;
    sweep_run(&sweep, step_add, (sweep_rows){0, 0});
}

VEC_INLINE void step_add_relu(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    sweep_put(s, i, vec_relu(sweep_get(s, 0, i) + sweep_get(s, 1, i)));
}
static void add_relu(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.in[1] = call->operand[1].data;
    sweep.out = call->operand[2].data;
    sweep_run(&sweep, step_add_relu, (sweep_rows){0, 0});
}

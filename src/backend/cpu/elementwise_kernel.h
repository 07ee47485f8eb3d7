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

static void sum_parts(const float *parts, int64_t part_row, int64_t count, int64_t out, int64_t columns,
                      const float *bias, float *sum) {
    for (int64_t o = 0; o < out; o++, sum += columns)
        for (int64_t n = 0; n < columns; n += VEC_WIDTH) {
            const int some = (int)(columns - n < VEC_WIDTH ? columns - n : VEC_WIDTH);
            const float *part = parts + o * part_row + n;
            vec total = vec_load_some(part, some);
            for (int64_t p = 1; p < count; p++) total += vec_load_some(part + p * out * part_row, some);
            vec_store_some(sum + n, bias ? total + vec_splat(bias[o]) : total, some);
        }
}

/* A row's sum, a vector of them. */
VEC_INLINE vec relu_backward_row(const float *dy, const float *y, float *g, int64_t count) {
    vec sum = {0};
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        const int some = (int)(count - i < VEC_WIDTH ? count - i : VEC_WIDTH);
        const vec kept = vec_keep(vec_positive(vec_load_some(y + i, some)), vec_load_some(dy + i, some));
        vec_store_some(g + i, kept, some);
        sum += kept;
    }
    return sum;
}
static void relu_backward_rows(const float *dy, const float *y, float *g, float *sum, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r += 4) {
        vec of[4] = {{0}};
        const int64_t some = rows - r < 4 ? rows - r : 4;
        for (int64_t k = 0; k < some; k++, dy += columns, y += columns, g += columns)
            of[k] = relu_backward_row(dy, y, g, columns);
        const quad sums = vec_sum4(of);
        for (int64_t k = 0; k < some; k++) sum[r + k] = sums[k];
    }
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

/* The kernels of norm.h as sweeps, written once; norm_<isa>.c compiles them as NORM_LOOPS. A step does one vector of
 * elements at position i, given the numbers and sums of its channels. Relu masks are bits. */
#include "backend/attrs.h"
#include "norm.h"
#include "sweep_kernel.h"

VEC_INLINE vec masked(const twi_sweep *s, int k, int64_t i) {
    return vec_keep(vec_get_bits(s->bits_in, i), sweep_get(s, k, i));
}

/* operand[o] = sums[3,C]: what the sweep summed, and the count of each channel's elements. */
static void write_sums(const twi_sweep *sweep, const twi_call *call, int o) {
    float *sums = call->operand[o].data;
    for (int k = 0; k < TWI_NORM_COUNT; k++) twi_sweep_fold(sweep, k, sums + k * sweep->channels, call->first);
    float count = (float)(sweep->runs * sweep->run / sweep->channels);
    for (int64_t c = TWI_NORM_COUNT * sweep->channels; c < (TWI_NORM_COUNT + 1) * sweep->channels; c++)
        sums[c] = call->first ? count : sums[c] + count;
}

/* ---- statistics: x, shift, sums of x - shift and of its square ---- */

VEC_INLINE void step_statistics(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    vec distance = sweep_get(s, 0, i) - of->coef[0];
    of->sum[0] += distance;
    of->sum[1] = vec_fma(distance, distance, of->sum[1]);
}

static void statistics(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, false, workspace);
    sweep.in[0] = call->operand[0].data;
    twi_sweep_spread(&sweep, 0, call->operand[1].data);
    twi_sweep_begin_sums(&sweep, TWI_NORM_COUNT);
    sweep_run(&sweep, step_statistics, (sweep_rows){1, TWI_NORM_COUNT});
    write_sums(&sweep, call, 2);
}

/* The same around other centers (operand 1's first row), if any channel asks for it (its second row). */
static void refine(const twi_call *call, const twi_cpu_workspace *workspace) {
    int64_t channels = call->operand[0].shape.dim[1];
    const float *far = (const float *)call->operand[1].data + TWI_NORM_FAR * channels;
    bool any = false;
    for (int64_t c = 0; c < channels; c++) any |= far[c] != 0;
    if (any)
        statistics(call, workspace);
    else if (call->first)
        memset(call->operand[2].data, 0, (size_t)(TWI_NORM_SUMS * channels) * sizeof(float));
}

/* ---- apply: x, coef, [r,] y, [mask]; y = [relu of] scale*x + offset [+ r] ---- */

VEC_INLINE vec normalized(const twi_sweep *s, int64_t i, const sweep_numbers *of) {
    return vec_fma(of->coef[0], sweep_get(s, 0, i), of->coef[1]);
}
VEC_INLINE void store_relu(const twi_sweep *s, int64_t i, vec v) {
    vec_test positive = vec_positive(v);
    vec_put_bits(s->bits_out, i, positive);
    sweep_put(s, i, vec_keep(positive, v));
}
VEC_INLINE void step_apply(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    sweep_put(s, i, normalized(s, i, of));
}
VEC_INLINE void step_apply_relu(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    store_relu(s, i, normalized(s, i, of));
}
VEC_INLINE void step_apply_add_relu(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    store_relu(s, i, normalized(s, i, of) + sweep_get(s, 1, i));
}

/* Without a backward nobody wants the mask. */
VEC_INLINE void step_apply_relu_alone(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    vec v = normalized(s, i, of);
    sweep_put(s, i, vec_keep(vec_positive(v), v));
}
VEC_INLINE void step_apply_add_relu_alone(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    vec v = normalized(s, i, of) + sweep_get(s, 1, i);
    sweep_put(s, i, vec_keep(vec_positive(v), v));
}

static twi_sweep apply_sweep(const twi_call *call, int y, bool bits, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, bits, workspace);
    const float *coef = call->operand[1].data;
    sweep.in[0] = call->operand[0].data;
    twi_sweep_spread(&sweep, 0, coef + TWI_NORM_SCALE * sweep.channels);
    twi_sweep_spread(&sweep, 1, coef + TWI_NORM_OFFSET * sweep.channels);
    sweep.out = call->operand[y].data;
    if (bits) sweep.bits_out = call->operand[y + 1].data;
    return sweep;
}

static void apply(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = apply_sweep(call, 2, false, workspace);
    sweep_run(&sweep, step_apply, (sweep_rows){2, 0});
}

static void apply_relu(const twi_call *call, const twi_cpu_workspace *workspace) {
    bool mask = call->operand[3].data != NULL;
    twi_sweep sweep = apply_sweep(call, 2, mask, workspace);
    if (mask)
        sweep_run(&sweep, step_apply_relu, (sweep_rows){2, 0});
    else
        sweep_run(&sweep, step_apply_relu_alone, (sweep_rows){2, 0});
}

static void apply_add_relu(const twi_call *call, const twi_cpu_workspace *workspace) {
    bool mask = call->operand[4].data != NULL;
    twi_sweep sweep = apply_sweep(call, 3, mask, workspace);
    sweep.in[1] = call->operand[2].data;
    if (mask)
        sweep_run(&sweep, step_apply_add_relu, (sweep_rows){2, 0});
    else
        sweep_run(&sweep, step_apply_add_relu_alone, (sweep_rows){2, 0});
}

/* ---- backward: dy, [mask,] x, ... ---- */

static twi_sweep backward_sweep(const twi_call *call, bool bits, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, bits, workspace);
    sweep.in[1] = call->operand[0].data;
    if (bits) sweep.bits_in = call->operand[1].data;
    sweep.in[0] = call->operand[1 + bits].data;
    return sweep;
}

/* ..., coef, sums of dy and of dy*(x - mean) */
VEC_INLINE void add_backward_sums(const twi_sweep *s, int64_t i, sweep_numbers *of, vec dy) {
    of->sum[0] += dy;
    of->sum[1] = vec_fma(dy, sweep_get(s, 0, i) - of->coef[0], of->sum[1]);
}
VEC_INLINE void step_backward_sums(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    add_backward_sums(s, i, of, sweep_get(s, 1, i));
}
VEC_INLINE void step_backward_sums_masked(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    add_backward_sums(s, i, of, masked(s, 1, i));
}

VEC_INLINE void any_backward_sums(const twi_call *call, bool bits, sweep_step *step,
                                  const twi_cpu_workspace *workspace) {
    twi_sweep sweep = backward_sweep(call, bits, workspace);
    const float *coef = call->operand[2 + bits].data;
    twi_sweep_spread(&sweep, 0, coef + TWI_NORM_MEAN * sweep.channels);
    twi_sweep_begin_sums(&sweep, TWI_NORM_COUNT);
    sweep_run(&sweep, step, (sweep_rows){1, TWI_NORM_COUNT});
    write_sums(&sweep, call, 3 + bits);
}
static void backward_sums(const twi_call *call, const twi_cpu_workspace *workspace) {
    any_backward_sums(call, false, step_backward_sums, workspace);
}
static void backward_sums_masked(const twi_call *call, const twi_cpu_workspace *workspace) {
    any_backward_sums(call, true, step_backward_sums_masked, workspace);
}

/* ..., dcoef, dx = A*dy + B*x + K */
VEC_INLINE void store_backward(const twi_sweep *s, int64_t i, sweep_numbers *of, vec dy) {
    vec of_x = vec_fma(of->coef[TWI_NORM_B], sweep_get(s, 0, i), of->coef[TWI_NORM_K]);
    sweep_put(s, i, vec_fma(of->coef[TWI_NORM_A], dy, of_x));
}
VEC_INLINE void step_backward_apply(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    store_backward(s, i, of, sweep_get(s, 1, i));
}
VEC_INLINE void step_backward_apply_masked(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    store_backward(s, i, of, masked(s, 1, i));
}

VEC_INLINE void any_backward_apply(const twi_call *call, bool bits, sweep_step *step,
                                   const twi_cpu_workspace *workspace) {
    twi_sweep sweep = backward_sweep(call, bits, workspace);
    const float *dcoef = call->operand[2 + bits].data;
    for (int k = 0; k < TWI_NORM_GRADIENTS; k++) twi_sweep_spread(&sweep, k, dcoef + k * sweep.channels);
    sweep.out = call->operand[3 + bits].data;
    sweep_run(&sweep, step, (sweep_rows){TWI_NORM_GRADIENTS, 0});
}
static void backward_apply(const twi_call *call, const twi_cpu_workspace *workspace) {
    any_backward_apply(call, false, step_backward_apply, workspace);
}
static void backward_apply_masked(const twi_call *call, const twi_cpu_workspace *workspace) {
    any_backward_apply(call, true, step_backward_apply_masked, workspace);
}

/* ---- masks alone: dy, mask, [b,] dx = masked dy [+ b] ---- */

VEC_INLINE void step_mask(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    sweep_put(s, i, masked(s, 0, i));
}
VEC_INLINE void step_mask_add(const twi_sweep *s, int64_t i, sweep_numbers *of) {
    (void)of;
    sweep_put(s, i, masked(s, 0, i) + sweep_get(s, 1, i));
}

static void relu_backward_masked(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, true, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.bits_in = call->operand[1].data;
    sweep.out = call->operand[2].data;
    sweep_run(&sweep, step_mask, (sweep_rows){0, 0});
}

static void add_masked(const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_sweep sweep = twi_sweep_over(call, true, workspace);
    sweep.in[0] = call->operand[0].data;
    sweep.bits_in = call->operand[1].data;
    sweep.in[1] = call->operand[2].data;
    sweep.out = call->operand[3].data;
    sweep_run(&sweep, step_mask_add, (sweep_rows){0, 0});
}

#define NORM_LOOP(name, kernel) .name = name,
const twi_norm_loops NORM_LOOPS = {TWI_NORM_KERNELS(NORM_LOOP)};

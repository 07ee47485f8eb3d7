/* Softmax and cross-entropy over rows of few classes, VEC_WIDTH rows at once: vector c holds class c of as many
 * samples, so that largest, exponential, sum and logarithm are one instruction each for all of them, where a row by
 * itself would leave most of its vectors empty and be summed across. No lane sees another, and lanes that are left
 * over do what a sample's do: a sample's result depends on neither its place nor the number of rows. */
#include "point.h"
#include "backend/attrs.h"
#include "parts.h"
#include "vec_math.h"

/* ---- rows to lanes and back, 4 classes of every row at a time; the last 4 overlap those before ---- */

/* Lanes without a row hold the last one. */
VEC_INLINE void turn_rows(vec *to, const float *from, int live, int64_t classes) {
    const float *row[VEC_WIDTH];
    for (int lane = 0; lane < VEC_WIDTH; lane++) row[lane] = from + (lane < live ? lane : live - 1) * classes;
    if (classes < 4) {
        float class[VEC_WIDTH];
        for (int64_t c = 0; c < classes; c++) {
            for (int lane = 0; lane < VEC_WIDTH; lane++) class[lane] = row[lane][c];
            to[c] = vec_load(class);
        }
        return;
    }
    for (int64_t c = 0; c < classes; c += 4) {
        const int64_t at = twi_smaller(c, classes - 4);
        vec v[4];
        VEC_UNROLL
        for (int r = 0; r < 4; r++) {
            const float *quads[VEC_WIDTH / 4];
            VEC_UNROLL
            for (int q = 0; q < VEC_WIDTH / 4; q++) quads[q] = row[4 * q + r] + at;
            v[r] = vec_from_quads(quads);
        }
        vec_transpose4(v);
        VEC_UNROLL
        for (int r = 0; r < 4; r++) to[at + r] = v[r];
    }
}
static void rows_to_lanes(vec *to, const float *from, int live, int64_t classes) {
    if (live == 1) /* an answer to one sample */
        for (int64_t c = 0; c < classes; c++) to[c] = vec_splat(from[c]);
    else if (live == VEC_WIDTH)
        turn_rows(to, from, VEC_WIDTH, classes);
    else
        turn_rows(to, from, live, classes);
}

VEC_INLINE void turn_back(float *to, const vec *from, int live, int64_t classes) {
    if (classes < 4 || live == 1) {
        for (int64_t c = 0; c < classes; c++)
            for (int lane = 0; lane < live; lane++) to[lane * classes + c] = from[c][lane];
        return;
    }
    float spare[4];
    for (int64_t c = 0; c < classes; c += 4) {
        const int64_t at = twi_smaller(c, classes - 4);
        vec v[4] = {from[at], from[at + 1], from[at + 2], from[at + 3]};
        vec_transpose4(v);
        VEC_UNROLL
        for (int r = 0; r < 4; r++) {
            float *quads[VEC_WIDTH / 4];
            VEC_UNROLL
            for (int q = 0; q < VEC_WIDTH / 4; q++)
                quads[q] = 4 * q + r < live ? to + (4 * q + r) * classes + at : spare;
            vec_to_quads(quads, v[r]);
        }
    }
}
static void lanes_to_rows(float *to, const vec *from, int live, int64_t classes) {
    if (live == VEC_WIDTH)
        turn_back(to, from, VEC_WIDTH, classes);
    else
        turn_back(to, from, live, classes);
}

/* ---- what all have in common ---- */

/* What every lane's row came to: its largest element, and the sum of exp(x - largest). Not-a-number may get lost in the
 * former, but not in the latter; neither may infinity. */
typedef struct lane_sums {
    vec largest, sum;
} lane_sums;

/* e[c] = exp(x[c] - largest) */
VEC_INLINE lane_sums lane_exponentials(vec *e, const vec *x, int64_t classes) {
    lane_sums s = {x[0], {0}};
    for (int64_t c = 1; c < classes; c++) s.largest = vec_larger(x[c], s.largest);
    for (int64_t c = 0; c < classes; c++) s.sum += e[c] = vec_exp(x[c] - s.largest);
    return s;
}

/* ---- kernels ---- */

/* x, y */
static void softmax_in_lanes(const twi_call *call) {
    const int64_t samples = call->operand[0].shape.dim[0], classes = call->operand[0].shape.dim[1];
    vec x[TWI_FEW_CLASSES], e[TWI_FEW_CLASSES];
    for (int64_t n = 0; n < samples; n += VEC_WIDTH) {
        const int live = (int)twi_smaller(samples - n, VEC_WIDTH);
        rows_to_lanes(x, TWI_DATA(const float, call, 0) + n * classes, live, classes);
        const vec factor = vec_splat(1) / lane_exponentials(e, x, classes).sum;
        for (int64_t c = 0; c < classes; c++) e[c] *= factor;
        lanes_to_rows(TWI_DATA(float, call, 1) + n * classes, e, live, classes);
    }
}

/* x, logp */
static void log_softmax_in_lanes(const twi_call *call) {
    const int64_t samples = call->operand[0].shape.dim[0], classes = call->operand[0].shape.dim[1];
    vec x[TWI_FEW_CLASSES], e[TWI_FEW_CLASSES];
    for (int64_t n = 0; n < samples; n += VEC_WIDTH) {
        const int live = (int)twi_smaller(samples - n, VEC_WIDTH);
        rows_to_lanes(x, TWI_DATA(const float, call, 0) + n * classes, live, classes);
        const lane_sums s = lane_exponentials(e, x, classes);
        const vec log_sum = vec_log(s.sum);
        for (int64_t c = 0; c < classes; c++) x[c] = x[c] - s.largest - log_sum;
        lanes_to_rows(TWI_DATA(float, call, 1) + n * classes, x, live, classes);
    }
}

/* Lanes without a row have a label that is none. */
VEC_INLINE vec_mask labels_in_lanes(const int32_t *labels, int live) {
    vec_mask v = vec_splat_int(-1);
    if (live == VEC_WIDTH)
        memcpy(&v, labels, sizeof v);
    else
        memcpy(&v, labels, (size_t)live * sizeof *labels);
    return v;
}

/* Lanes whose labels are classes: not negative, and less than there are. Rounded to float, no label changes sides. */
VEC_INLINE vec_test labels_found(vec_mask labels, int64_t classes) {
    const vec label = __builtin_convertvector(labels, vec);
    return vec_test_from(vec_test_bits(vec_not_less(label, (vec){0})) &
                         ~vec_test_bits(vec_not_less(label, vec_splat((float)classes))));
}

typedef double double_half __attribute__((vector_size(4 * VEC_WIDTH)));
typedef float float_half __attribute__((vector_size(2 * VEC_WIDTH)));
VEC_INLINE void add_in_double(double_half sum[2], vec v) {
    float_half half[2];
    memcpy(half, &v, sizeof v);
    sum[0] += __builtin_convertvector(half[0], double_half);
    sum[1] += __builtin_convertvector(half[1], double_half);
}
VEC_INLINE double sum_of_double(const double_half sum[2]) {
    const double_half both = sum[0] + sum[1];
    double total = 0;
    for (int e = 0; e < VEC_WIDTH / 2; e++) total += both[e];
    return total;
}

/* Rows whose labels are none raise a fault and have no gradient. */
static void refuse_labels(const twi_call *call, int64_t n, int live, unsigned found, float *dx, int64_t classes) {
    for (int lane = 0; lane < live; lane++) {
        if (found >> lane & 1) continue;
        twi_fault_raise(call->control, TW_ERROR_LABEL, call->node, twi_call_position(call, n + lane),
                        TWI_DATA(const int32_t, call, 1)[n + lane]);
        memset(dx + lane * classes, 0, (size_t)classes * sizeof(float));
    }
}

/* x, labels, seed, loss, dx */
static void cross_entropy_in_lanes(const twi_call *call) {
    const twi_cross_entropy_attrs *attrs = call->attrs;
    const int64_t samples = call->operand[0].shape.dim[0], classes = call->operand[0].shape.dim[1];
    const float smoothing = attrs->label_smoothing, everywhere = smoothing / (float)classes;
    const vec seed = vec_splat(*TWI_DATA(const float, call, 2));
    const vec target = vec_splat(everywhere), target_at_label = vec_splat(1 - smoothing + everywhere);
    double_half at_labels[2] = {{0}}, log_sums[2] = {{0}}, behind[2] = {{0}};
    vec x[TWI_FEW_CLASSES], e[TWI_FEW_CLASSES];
    for (int64_t n = 0; n < samples; n += VEC_WIDTH) {
        const int live = (int)twi_smaller(samples - n, VEC_WIDTH);
        float *dx = TWI_DATA(float, call, 4) + n * classes;
        rows_to_lanes(x, TWI_DATA(const float, call, 0) + n * classes, live, classes);
        const vec_mask labels = labels_in_lanes(TWI_DATA(const int32_t, call, 1) + n, live);
        const lane_sums s = lane_exponentials(e, x, classes);
        const vec factor = vec_splat(1) / s.sum, log_sum = vec_log(s.sum);
        vec at_label = s.largest;
        for (int64_t c = 0; c < classes; c++) {
            const vec_test here = vec_same(labels, vec_splat_int((int32_t)c));
            at_label = vec_choose(here, x[c], at_label);
            e[c] = (e[c] * factor - vec_choose(here, target_at_label, target)) * seed;
        }
        lanes_to_rows(dx, e, live, classes);
        const vec_test found = labels_found(labels, classes);
        add_in_double(at_labels, vec_keep(found, log_sum + (s.largest - at_label)));
        const unsigned bits = vec_test_bits(found);
        if (smoothing > 0) {
            add_in_double(log_sums, vec_keep(found, log_sum));
            for (int64_t c = 0; c < classes; c++) add_in_double(behind, vec_keep(found, s.largest - x[c]));
        }
        if (bits != (1u << live) - 1) refuse_labels(call, n, live, bits, dx, classes);
    }
    float *sum = TWI_DATA(float, call, 3);
    const double smoothed = sum_of_double(log_sums) + sum_of_double(behind) / (double)classes;
    *sum = (call->first ? 0 : *sum) + (float)((1 - smoothing) * sum_of_double(at_labels) + smoothing * smoothed);
}

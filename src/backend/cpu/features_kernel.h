/* What is done with values that lie feature by feature (features_impls.c), beside products. */
#include "parts.h"
#include "point.h"
#include "vec_test.h"

static void sum_parts(const float *parts, int64_t part_row, int64_t count, int64_t out, int64_t columns,
                      const float *bias, float *sum) {
    for (int64_t o = 0; o < out; o++, sum += columns)
        for (int64_t n = 0; n < columns; n += VEC_WIDTH) {
            const int some = (int)twi_smaller(VEC_WIDTH, columns - n);
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
        const int some = (int)twi_smaller(VEC_WIDTH, count - i);
        const vec kept = vec_keep(vec_positive(vec_load_some(y + i, some)), vec_load_some(dy + i, some));
        vec_store_some(g + i, kept, some);
        sum += kept;
    }
    return sum;
}
static void relu_backward_rows(const float *dy, const float *y, float *g, float *sum, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r += 4) {
        vec of[4] = {{0}};
        const int64_t some = twi_smaller(4, rows - r);
        for (int64_t k = 0; k < some; k++, dy += columns, y += columns, g += columns)
            of[k] = relu_backward_row(dy, y, g, columns);
        const quad sums = vec_sum4(of);
        for (int64_t k = 0; k < some; k++) sum[r + k] = sums[k];
    }
}

/* The matrices of winograd.h, applied to one line of numbers: along columns, then along rows, they make the
 * transforms. `m` is a constant where they are called.
 *                   m = 2, at the points 0, 1, -1 and infinity; the sign of the last is turned, which spares a negation
 *           1  0 -1  0          1    0    0             1  1  1  0
 *     B^T = 0  1  1  0    G  = 1/2  1/2  1/2      A^T = 0  1 -1  1
 *           0 -1  1  0         1/2 -1/2  1/2
 *           0 -1  0  1          0    0    1
 *                   m = 4, at the points 0, 1, -1, 2, -2 and infinity
 *           4  0 -5  0  1  0         1/4    0    0
 *           0 -4 -4  1  1  0        -1/6  -1/6 -1/6            1  1  1  1  1  0
 *     B^T = 0  4 -4 -1  1  0    G = -1/6   1/6 -1/6      A^T = 0  1 -1  2 -2  0
 *           0 -2 -1  2  1  0        1/24  1/12  1/6            0  1  1  4  4  0
 *           0  2 -1 -2  1  0        1/24 -1/12  1/6            0  1 -1  8 -8  1
 *           0  4  0 -5  0  1          0     0    1 */
#ifndef TWI_CPU_WINOGRAD_LINES_KERNEL_H
#define TWI_CPU_WINOGRAD_LINES_KERNEL_H

#include "vec.h"

enum { MOST_TILE = 4, MOST_LINE = MOST_TILE + 2, MOST_POINTS = MOST_LINE * MOST_LINE };

VEC_INLINE vec times(float k, vec v) { return vec_splat(k) * v; }
VEC_INLINE vec plus(vec a, float k, vec v) { return vec_fma(vec_splat(k), v, a); }

/* to[m + 2] = B^T d[m + 2] */
VEC_INLINE void input_line(const int m, const vec *d, vec *to) {
    if (m == 2) {
        to[0] = d[0] - d[2];
        to[1] = d[1] + d[2];
        to[2] = d[2] - d[1];
        to[3] = d[3] - d[1];
    } else {
        const vec a = plus(d[4], -4, d[2]), b = plus(d[3], -4, d[1]), c = d[4] - d[2], e = d[3] - d[1];
        to[0] = plus(plus(d[4], -5, d[2]), 4, d[0]);
        to[1] = a + b;
        to[2] = a - b;
        to[3] = plus(c, 2, e);
        to[4] = plus(c, -2, e);
        to[5] = plus(plus(d[5], -5, d[3]), 4, d[1]);
    }
}

/* to[m + 2] = G w[3] */
VEC_INLINE void filter_line(const int m, const vec *w, vec *to) {
    const vec ends = w[0] + w[2];
    if (m == 2) {
        to[0] = w[0];
        to[1] = times(0.5f, ends + w[1]);
        to[2] = times(0.5f, ends - w[1]);
        to[3] = w[2];
    } else {
        const vec far = plus(w[0], 4, w[2]);
        to[0] = times(1.0f / 4, w[0]);
        to[1] = times(-1.0f / 6, ends + w[1]);
        to[2] = times(-1.0f / 6, ends - w[1]);
        to[3] = times(1.0f / 24, plus(far, 2, w[1]));
        to[4] = times(1.0f / 24, plus(far, -2, w[1]));
        to[5] = w[2];
    }
}

/* to[m] = A^T p[m + 2] */
VEC_INLINE void output_line(const int m, const vec *p, vec *to) {
    const vec s = p[1] + p[2], d = p[1] - p[2];
    if (m == 2) {
        to[0] = p[0] + s;
        to[1] = d + p[3];
    } else {
        const vec s2 = p[3] + p[4], d2 = p[3] - p[4];
        to[0] = p[0] + s + s2;
        to[1] = plus(d, 2, d2);
        to[2] = plus(s, 4, s2);
        to[3] = plus(d, 8, d2) + p[5];
    }
}

/* to[m + 2] = A dy[m] */
VEC_INLINE void gradient_line(const int m, const vec *dy, vec *to) {
    if (m == 2) {
        to[0] = dy[0];
        to[1] = dy[0] + dy[1];
        to[2] = dy[0] - dy[1];
        to[3] = dy[1];
    } else {
        const vec even = dy[0] + dy[2], odd = dy[1] + dy[3];
        const vec far = plus(dy[0], 4, dy[2]), far_odd = plus(dy[1], 4, dy[3]);
        to[0] = dy[0];
        to[1] = even + odd;
        to[2] = even - odd;
        to[3] = plus(far, 2, far_odd);
        to[4] = plus(far, -2, far_odd);
        to[5] = dy[3];
    }
}

/* to[3] = G^T p[m + 2] */
VEC_INLINE void taps_line(const int m, const vec *p, vec *to) {
    if (m == 2) {
        const vec s = times(0.5f, p[1] + p[2]);
        to[0] = p[0] + s;
        to[1] = times(0.5f, p[1] - p[2]);
        to[2] = s + p[3];
    } else {
        const vec s = times(-1.0f / 6, p[1] + p[2]), d = times(-1.0f / 6, p[1] - p[2]);
        const vec s2 = p[3] + p[4], d2 = p[3] - p[4];
        to[0] = plus(plus(s, 1.0f / 24, s2), 1.0f / 4, p[0]);
        to[1] = plus(d, 1.0f / 12, d2);
        to[2] = plus(s, 1.0f / 6, s2) + p[5];
    }
}

#endif

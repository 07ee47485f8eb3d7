/* What winograd_kernel.h does to weights, once a run: into its matrices and, for their gradient, out of them. Vectors
 * hold channels, as there; where the matrices and O,H,W,I disagree about which channels lie side by side, four times
 * as many are taken at once and turned. */
#ifndef TWI_CPU_WINOGRAD_WEIGHTS_KERNEL_H
#define TWI_CPU_WINOGRAD_WEIGHTS_KERNEL_H

#include "winograd.h"
#include "winograd_lines_kernel.h"
#include "parts.h"
#include "vec_half.h"

/* Output channels that products take at once: the weights of so many lie side by side for every input channel. Where
 * fewer are left, so many. */
enum { WINOGRAD_PANEL = 2 * VEC_WIDTH };

/* ---- four rows turned ---- */

/* Stores the quads of a vector `distance` numbers apart. */
VEC_INLINE void store_quads(const tw_dtype dtype, void *to, int64_t distance, vec v) {
    unsigned char part[sizeof v];
    const int64_t quad = 4 * bytes_of(dtype);
    store_real(dtype, part, v);
    for (int q = 0; q < VEC_WIDTH / 4; q++)
        memcpy((unsigned char *)to + q * distance * bytes_of(dtype), part + q * quad, (size_t)quad);
}

/* Element i of a[0..3] becomes four neighbours at to + i * row. */
VEC_INLINE void store_turned(const tw_dtype dtype, vec a[4], void *to, int64_t row) {
    vec_transpose4(a);
    for (int i = 0; i < 4; i++)
        store_quads(dtype, (unsigned char *)to + i * row * bytes_of(dtype), 4 * row, a[i]);
}

/* ---- weights ---- */

/* Where the weight of output channel k at input channel c begins in one of the matrices. */
VEC_INLINE int64_t weight_at(const twi_conv_shape *s, int64_t c, int64_t k) {
    const int64_t first = k / WINOGRAD_PANEL * WINOGRAD_PANEL, panel = twi_smaller(WINOGRAD_PANEL, s->out_c - first);
    return first * s->in_c + c * panel + k - first;
}

/* to[points] = G g G^T of the nine taps, `distance` numbers apart; turned: the last tap first. */
VEC_INLINE void filter(const int m, const tw_dtype dtype, const void *w, int64_t distance, bool turned, vec *to) {
    vec columns[3][MOST_LINE];
    for (int j = 0; j < 3; j++) {
        vec g[3];
        for (int i = 0; i < 3; i++) {
            const int64_t tap = turned ? 8 - 3 * i - j : 3 * i + j;
            g[i] = load_real(dtype, (const unsigned char *)w + tap * distance * bytes_of(dtype));
        }
        filter_line(m, g, columns[j]);
    }
    for (int i = 0; i < m + 2; i++) {
        const vec line[3] = {columns[0][i], columns[1][i], columns[2][i]};
        filter_line(m, line, to + (m + 2) * i);
    }
}

/* w[out_c][9][in_c]: vectors of input channels, four output channels at once. */
VEC_INLINE void weights_forward(const int m, const tw_dtype dtype, const twi_conv_shape *s, const void *w, float *to) {
    for (int64_t k = 0; k < s->out_c; k += 4) {
        for (int64_t c = 0; c < s->in_c; c += VEC_WIDTH) {
            vec u[4][MOST_POINTS];
            for (int o = 0; o < 4; o++)
                filter(m, dtype, (const unsigned char *)w + ((k + o) * 9 * s->in_c + c) * bytes_of(dtype), s->in_c,
                       false, u[o]);
            for (int i = 0; i < (m + 2) * (m + 2); i++) {
                vec a[4] = {u[0][i], u[1][i], u[2][i], u[3][i]};
                store_turned(TW_F32, a, to + i * s->in_c * s->out_c + weight_at(s, c, k),
                             weight_at(s, 1, k) - weight_at(s, 0, k));
            }
        }
    }
}

/* The channels change places: w[in_c][9][out_c], vectors of output channels as the matrices have them. */
VEC_INLINE void weights_backward(const int m, const tw_dtype dtype, const twi_conv_shape *s, const void *w, float *to) {
    for (int64_t c = 0; c < s->in_c; c++) {
        for (int64_t k = 0; k < s->out_c; k += VEC_WIDTH) {
            vec u[MOST_POINTS];
            filter(m, dtype, (const unsigned char *)w + (c * 9 * s->out_c + k) * bytes_of(dtype), s->out_c, true, u);
            for (int i = 0; i < (m + 2) * (m + 2); i++)
                vec_store(to + i * s->in_c * s->out_c + weight_at(s, c, k), u[i]);
        }
    }
}

VEC_INLINE void weights_as(const int m, const tw_dtype dtype, const twi_conv_shape *s, const void *w, bool backward,
                           float *to) {
    if (backward)
        weights_backward(m, dtype, s, w, to);
    else
        weights_forward(m, dtype, s, w, to);
}

/* ---- their gradient ---- */

/* taps[9] = G^T p G of a vector of channels */
VEC_INLINE void taps_of(const int m, const float *p, int64_t matrix, vec taps[9]) {
    vec columns[MOST_LINE][3];
    for (int j = 0; j < m + 2; j++) {
        vec line[MOST_LINE];
        for (int i = 0; i < m + 2; i++) line[i] = vec_load(p + ((m + 2) * i + j) * matrix);
        taps_line(m, line, columns[j]);
    }
    for (int i = 0; i < 3; i++) {
        vec line[MOST_LINE];
        for (int j = 0; j < m + 2; j++) line[j] = columns[j][i];
        taps_line(m, line, taps + 3 * i);
    }
}

/* dw[out_c][9][in_c] of p[points][in_c][out_c] */
VEC_INLINE void weights_gradient_as(const int m, const tw_dtype dtype, const twi_conv_shape *s, const float *p,
                                    void *dw) {
    for (int64_t c = 0; c < s->in_c; c += 4) {
        for (int64_t k = 0; k < s->out_c; k += VEC_WIDTH) {
            vec taps[4][9];
            for (int i = 0; i < 4; i++) taps_of(m, p + (c + i) * s->out_c + k, s->in_c * s->out_c, taps[i]);
            for (int t = 0; t < 9; t++) {
                vec a[4] = {taps[0][t], taps[1][t], taps[2][t], taps[3][t]};
                unsigned char *to = (unsigned char *)dw + ((k * 9 + t) * s->in_c + c) * bytes_of(dtype);
                store_turned(dtype, a, to, 9 * s->in_c);
            }
        }
    }
}

#endif

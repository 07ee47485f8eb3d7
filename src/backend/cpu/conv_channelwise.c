/* Convolutions with one filter a channel (depthwise), by plain loops over channels that compilers turn into vectors:
 * the products of patches would be one number wide. Every other convolution is left to the other families. */
#include "conv_shape.h"
#include "cpu.h"
#include "parts.h"
#include "base/memory.h"

#include <string.h>

/* ---- walking ---- */

/* What is done for one tap of the kernel on a part of a row of the output: `count` pixels of `channels` floats, in y
 * one after the other, in x `step` apart; w is the tap's weight of every channel. */
typedef void tap_fn(int64_t count, int64_t channels, float *x, int64_t step, float *w, float *y);

static void add_to_y(int64_t count, int64_t channels, float *x, int64_t step, float *w, float *y) {
    for (; count > 0; count--, x += step, y += channels) {
        for (int64_t c = 0; c < channels; c++) y[c] += x[c] * w[c];
    }
}
static void add_to_x(int64_t count, int64_t channels, float *x, int64_t step, float *w, float *y) {
    for (; count > 0; count--, x += step, y += channels) {
        for (int64_t c = 0; c < channels; c++) x[c] += y[c] * w[c];
    }
}
static void add_to_w(int64_t count, int64_t channels, float *x, int64_t step, float *w, float *y) {
    for (; count > 0; count--, x += step, y += channels) {
        for (int64_t c = 0; c < channels; c++) w[c] += x[c] * y[c];
    }
}

/* One row of y, counted through all samples: its taps in order. w holds taps of all channels:
 * [kernel_h][kernel_w][C]. */
static void walk_row(const twi_conv_shape *s, int64_t row, tap_fn *fn, float *x, float *w, float *y) {
    const int64_t channels = s->in_c, top = row % s->out_h * s->stride_h - s->top;
    x += row / s->out_h * s->in_h * s->in_w * channels;
    y += row * s->out_w * channels;
    for (int64_t k = 0; k < s->kernel_h; k++) {
        int64_t in_y = top + k * s->dilation_h;
        if (in_y < 0 || in_y >= s->in_h) continue;
        for (int64_t l = 0; l < s->kernel_w; l++) {
            /* Outputs first .. end-1 have this tap inside the image. */
            int64_t shift = l * s->dilation_w - s->left,
                    first = shift < 0 ? (-shift + s->stride_w - 1) / s->stride_w : 0;
            int64_t end = shift < s->in_w ? twi_smaller(s->out_w, (s->in_w - 1 - shift) / s->stride_w + 1) : 0;
            if (first >= end) continue;
            fn(end - first, channels, x + (in_y * s->in_w + first * s->stride_w + shift) * channels,
               s->stride_w * channels, w + (k * s->kernel_w + l) * channels, y + first * channels);
        }
    }
}

static int64_t rows_of(const twi_conv_shape *s) { return s->samples * s->out_h; }
static int64_t weights_of(const twi_conv_shape *s) { return s->in_c * s->kernel_h * s->kernel_w; }

/* to[t][c] = w[c][t] */
static void taps_first(const twi_conv_shape *s, const float *w, float *to) {
    int64_t taps = s->kernel_h * s->kernel_w;
    for (int64_t c = 0; c < s->in_c; c++) {
        for (int64_t t = 0; t < taps; t++) to[t * s->in_c + c] = w[c * taps + t];
    }
}

/* ---- implementations ---- */

static const char *refuse(const twi_call *call, const twi_conv_shape *s) {
    if (s->groups != s->in_c || s->groups != s->out_c) return "not one filter a channel";
    if (s->in_c < 4) return "too few channels to fill a vector";
    return twi_conv_refuse_layout(call);
}

/* Scratch: the weights, taps first. */
static tw_status prepare_for(twi_cpu_site *site, const twi_conv_shape *s) {
    return twi_mul_size(&site->worker_bytes, (size_t)weights_of(s), sizeof(float), "depthwise convolution weights");
}

/* The three kinds of call differ in where x, w and y stand. */
#define KIND(kind, at_x, at_w, at_y)                                                                               \
    static twi_conv_shape shape_##kind(const twi_call *call) { return twi_conv_shape_of(call, at_x, at_w, at_y); } \
    static const char *refuse_##kind(const twi_call *call, twi_isa isa) {                                          \
        twi_conv_shape s = shape_##kind(call);                                                                     \
        (void)isa;                                                                                                 \
        return refuse(call, &s);                                                                                   \
    }                                                                                                              \
    static tw_status prepare_##kind(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {              \
        twi_conv_shape s = shape_##kind(main);                                                                     \
        (void)tail;                                                                                                \
        return prepare_for(site, &s);                                                                              \
    }
KIND(forward, 0, 1, call->operand_count - 1)
KIND(backward_data, 2, 1, 0)
KIND(backward_weights, 0, 2, 1)

static void run_with(const twi_call *call, float *taps, const float *bias, bool relu) {
    twi_conv_shape s = shape_forward(call);
    float *x = call->operand[0].data, *y = call->operand[call->operand_count - 1].data;
    int64_t floats = s.out_w * s.out_c;
    taps_first(&s, call->operand[1].data, taps);
    for (int64_t row = 0; row < rows_of(&s); row++) {
        float *to = y + row * floats;
        for (int64_t i = 0; i < s.out_w; i++) {
            for (int64_t c = 0; c < s.out_c; c++) to[i * s.out_c + c] = bias ? bias[c] : 0;
        }
        walk_row(&s, row, add_to_y, x, taps, y);
        for (int64_t i = 0; relu && i < floats; i++) to[i] = to[i] < 0 ? 0 : to[i];
    }
}
static void run_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site;
    run_with(call, workspace->scratch, NULL, false);
}
static void run_forward_bias(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site;
    run_with(call, workspace->scratch, call->operand[2].data, false);
}
static void run_forward_bias_relu(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site;
    run_with(call, workspace->scratch, call->operand[2].data, true);
}

static void run_backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site;
    twi_conv_shape s = shape_backward_data(call);
    float *dy = call->operand[0].data, *dx = call->operand[2].data;
    taps_first(&s, call->operand[1].data, workspace->scratch);
    memset(dx, 0, (size_t)(s.samples * s.in_h * s.in_w * s.in_c) * sizeof *dx);
    for (int64_t row = 0; row < rows_of(&s); row++) walk_row(&s, row, add_to_x, dx, workspace->scratch, dy);
}

static void run_backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site;
    twi_conv_shape s = shape_backward_weights(call);
    float *x = call->operand[0].data, *dy = call->operand[1].data, *dw = call->operand[2].data,
          *sums = workspace->scratch;
    int64_t taps = s.kernel_h * s.kernel_w;
    memset(sums, 0, (size_t)weights_of(&s) * sizeof *sums);
    for (int64_t row = 0; row < rows_of(&s); row++) walk_row(&s, row, add_to_w, x, sums, dy);
    for (int64_t c = 0; c < s.in_c; c++) {
        for (int64_t t = 0; t < taps; t++)
            dw[c * taps + t] = sums[t * s.in_c + c] + (call->first ? 0 : dw[c * taps + t]);
    }
}

#define IMPL(kernel_name, kind)                                                                                      \
    {                                                                                                                \
        .kernel = "conv2d." #kernel_name, .name = "channelwise", .refuse = refuse_##kind, .prepare = prepare_##kind, \
        .run = run_##kernel_name                                                                                     \
    }

const twi_cpu_impl twi_cpu_channelwise_impls[] = {
    IMPL(forward, forward),
    IMPL(forward_bias, forward),
    IMPL(forward_bias_relu, forward),
    IMPL(backward_data, backward_data),
    IMPL(backward_weights, backward_weights),
    {.kernel = NULL},
};

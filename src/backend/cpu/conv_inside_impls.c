/* Convolutions of images so small that at most positions a good part of the kernel lies outside: only the taps inside
 * are multiplied. Each place of the result makes products of its own, of several samples, one for each row of the kernel;
 * all places read the same weights of some filters, one after the other, while these are in the cache. */
#include "conv_shape.h"
#include "gemm.h"
#include "parts.h"
#include "base/memory.h"

#include <string.h>

/* POSITIONS: of the result, that are worked on at once. FILTERS: whose weights stay in the second-level cache, if the
 * kernel is not larger than 3x3x512. */
enum { MOST_PLACES = 16, POSITIONS = 64, FILTERS = 32 };
/* Of all products of a kernel and positions, those that are inside: the most at which this is faster. */
#define MOST_INSIDE 0.5

/* ---- what lies inside ---- */

static twi_span rows_inside(const twi_conv_shape *s, int64_t y) {
    return twi_span_inside(y * s->stride_h - s->top, s->dilation_h, s->kernel_h, s->in_h);
}
static twi_span columns_inside(const twi_conv_shape *s, int64_t x) {
    return twi_span_inside(x * s->stride_w - s->left, s->dilation_w, s->kernel_w, s->in_w);
}

static double share_inside(const twi_conv_shape *s) {
    double down = 0, across = 0;
    for (int64_t y = 0; y < s->out_h; y++) down += (double)(rows_inside(s, y).end - rows_inside(s, y).first);
    for (int64_t x = 0; x < s->out_w; x++) across += (double)(columns_inside(s, x).end - columns_inside(s, x).first);
    return down / ((double)s->out_h * (double)s->kernel_h) * across / ((double)s->out_w * (double)s->kernel_w);
}

/* ---- forward ---- */

/* A place of the result with its taps, and where its rows begin among the patches: of every sample one. */
typedef struct place {
    int64_t y, x;
    twi_span down, across;
    const float *patches;
    int64_t patch; /* floats of one */
} place;

/* Copies what the kernel lies on at a place of every sample; gives where the next patch would begin. */
static float *copy_place(const twi_conv_shape *s, int64_t samples, const place *p, const float *x, float *to) {
    const int64_t top = p->y * s->stride_h - s->top, left = p->x * s->stride_w - s->left;
    for (int64_t n = 0; n < samples; n++)
        for (int64_t row = p->down.first; row < p->down.end; row++) {
            const float *line = x + (n * s->in_h + top + row * s->dilation_h) * s->in_w * s->in_c;
            for (int64_t column = p->across.first; column < p->across.end; column++, to += s->in_c)
                memcpy(to, line + (left + column * s->dilation_w) * s->in_c, (size_t)s->in_c * sizeof *to);
        }
    return to;
}

static int places_of(const twi_conv_shape *s, place *places) {
    int count = 0;
    for (int64_t y = 0; y < s->out_h; y++)
        for (int64_t x = 0; x < s->out_w; x++) {
            place *p = &places[count++];
            *p = (place){.y = y, .x = x, .down = rows_inside(s, y), .across = columns_inside(s, x)};
            p->patch = (p->down.end - p->down.first) * (p->across.end - p->across.first) * s->in_c;
        }
    return count;
}

static int64_t samples_at_once(const twi_conv_shape *s) {
    return twi_smaller(s->samples, twi_larger(1, POSITIONS / (s->out_h * s->out_w)));
}

/* Filters first .. first + filters - 1 at one place of some samples. */
static void multiply_place(const twi_gemm *gemm, const twi_conv_shape *s, int64_t samples, const place *p,
                           int64_t first, int64_t filters, const float *w, const float *bias, bool relu, float *y) {
    const int64_t kernel_row = s->kernel_w * s->in_c, kernel = s->kernel_h * kernel_row;
    const int64_t terms = (p->across.end - p->across.first) * s->in_c, rows = terms ? p->down.end - p->down.first : 0;
    const float *from = w + first * kernel + p->down.first * kernel_row + p->across.first * s->in_c, *a = p->patches;
    float *to = y + (p->y * s->out_w + p->x) * s->out_c + first;
    const int64_t to_row = s->out_h * s->out_w * s->out_c;
    if (rows == 0) gemm->dot(samples, filters, 0, a, 0, w, 0, bias ? bias + first : NULL, false, relu, to, to_row);
    for (int64_t row = 0; row < rows; row++, from += kernel_row, a += terms)
        gemm->dot(samples, filters, terms, a, p->patch, from, kernel, bias ? bias + first : NULL, row > 0,
                  relu && row == rows - 1, to, to_row);
}

static void run_forward(const twi_cpu_site *site, const twi_call *call, const float *bias, bool relu, float *scratch) {
    const int y_at = call->operand_count - 1;
    const twi_conv_shape s = twi_conv_shape_of(call, 0, 1, y_at);
    const float *x = call->operand[0].data, *w = call->operand[1].data;
    float *y = call->operand[y_at].data;
    place places[MOST_PLACES];
    const int count = places_of(&s, places);
    for (int64_t n = 0, samples; n < s.samples; n += samples) {
        samples = twi_smaller(samples_at_once(&s), s.samples - n);
        float *patches = scratch;
        for (int i = 0; i < count; i++) {
            places[i].patches = patches;
            patches = copy_place(&s, samples, &places[i], x + n * s.in_h * s.in_w * s.in_c, patches);
        }
        for (int64_t first = 0; first < s.out_c; first += FILTERS)
            for (int i = 0; i < count; i++)
                multiply_place(twi_gemm_for(site->isa), &s, samples, &places[i], first,
                               twi_smaller(FILTERS, s.out_c - first), w, bias, relu,
                               y + n * s.out_h * s.out_w * s.out_c);
    }
}
static void forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_forward(site, call, NULL, false, workspace->scratch);
}
static void forward_bias(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_forward(site, call, call->operand[2].data, false, workspace->scratch);
}
static void forward_bias_relu(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_forward(site, call, call->operand[2].data, true, workspace->scratch);
}

static tw_status prepare_forward(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const twi_conv_shape s = twi_conv_shape_of(main, 0, 1, main->operand_count - 1);
    size_t floats;
    TWI_TRY(twi_mul_size(&floats, (size_t)(samples_at_once(&s) * s.out_h * s.out_w), (size_t)(s.kernel_h * s.kernel_w),
                         "convolution patches"));
    TWI_TRY(twi_mul_size(&floats, floats, (size_t)s.in_c, "convolution patches"));
    return twi_mul_size(&site->worker_bytes, floats, sizeof(float), "convolution patches");
}

/* ---- table ---- */

static const char *refuse_forward(const twi_call *call, twi_isa isa) {
    (void)isa;
    const char *layout = twi_conv_refuse_layout(call);
    if (layout) return layout;
    const twi_conv_shape s = twi_conv_shape_of(call, 0, 1, call->operand_count - 1);
    if (s.groups != 1) return "more than one group";
    if (s.out_h > MOST_PLACES || s.out_w > MOST_PLACES || s.out_h * s.out_w > MOST_PLACES)
        return "images are not small";
    if ((double)s.kernel_h * (double)s.kernel_w * (double)s.in_c * (double)s.out_c * sizeof(float) < TWI_CACHED_BYTES)
        return "weights that stay in the cache";
    if (share_inside(&s) > MOST_INSIDE) return "most of the kernel lies inside the images";
    return NULL;
}

#define INSIDE(kernel_name, run_fn)                                                                              \
    {                                                                                                            \
        .kernel = "conv2d." kernel_name, .name = "inside", .refuse = refuse_forward, .prepare = prepare_forward, \
        .run = run_fn, .describe = twi_conv_describe                                                             \
    }
const twi_cpu_impl twi_cpu_inside_impls[] = {
    INSIDE("forward", forward),
    INSIDE("forward_bias", forward_bias),
    INSIDE("forward_bias_relu", forward_bias_relu),
    {.kernel = NULL},
};

/* Convolutions of few channels on few images, output channels in a vector, and the pooling behind them: which calls are
 * taken, and how they reach conv_pixels.h. With more images a vector of those is faster (conv_lanes_impls.c). */
#include "conv_pixels.h"
#include "loops.h"
#include "parts.h"
#include "base/memory.h"

/* ---- what a kernel's operands are ---- */

typedef struct roles {
    int8_t bias, y, index; /* -1: there is none; x and w are 0 and 1 */
    bool relu;
} roles;

static const roles plain = {-1, 2, -1, false}, biased = {2, 3, -1, false}, biased_relu = {2, 3, -1, true},
                   pooled = {2, 3, 4, false}, pooled_relu = {2, 3, 4, true};

static twi_conv_shape shape_of(const twi_call *call, const roles *r) {
    return r->index < 0 ? twi_conv_shape_of(call, 0, 1, r->y) : twi_conv_pooled_shape_of(call, 0, 1, r->y);
}

/* NULL without a pooling. */
static const twi_pixels_pool *pool_of(const twi_call *call, const roles *r, twi_pixels_pool *pool) {
    if (r->index < 0) return NULL;
    const twi_conv2d_pool_attrs *attrs = call->attrs;
    const int64_t *dim = call->operand[r->y].shape.dim;
    *pool = (twi_pixels_pool){&attrs->pool, dim[2], dim[3], call->operand[r->index].data};
    return pool;
}

/* ---- what is taken ---- */

/* Limits found by trial, of which no figures are kept: with more channels others are faster, and larger images leave
 * the first cache. */
enum { MOST_IN = 8, MOST_OUT = 64, MOST_FLOATS = 1 << 16 };

static const char *refuse(const twi_call *call, twi_isa isa, const roles *r) {
    const char *layout = twi_conv_refuse_layout(call);
    if (layout) return layout;
    const twi_conv_shape s = shape_of(call, r);
    if (s.groups != 1) return "more than one group";
    if (s.dilation_h != 1 || s.dilation_w != 1) return "the kernel is dilated";
    if (s.stride_w > 2) return "a stride beyond 2";
    if (s.samples * 2 >= TWI_FOR_ISA(isa, pixels)->width) return "images for half a vector or more";
    if (s.in_c > MOST_IN || s.out_c > MOST_OUT) return "too many channels";
    const double rows = (double)s.out_h * (double)s.stride_h + (double)s.kernel_h,
                 columns = (double)s.out_w * (double)s.stride_w + (double)s.kernel_w;
    const double taps = (double)s.kernel_h * (double)s.kernel_w * (double)s.in_c;
    if (rows * columns * (double)s.in_c > MOST_FLOATS || taps * (double)(s.out_c + 16) > MOST_FLOATS)
        return "image or kernel too large";
    return NULL;
}

static tw_status prepare(twi_cpu_site *site, const twi_call *main, const roles *r) {
    twi_pixels_pool pool;
    const twi_conv_shape s = shape_of(main, r);
    const twi_pixels *pixels = TWI_FOR_ISA(site->isa, pixels);
    const size_t scratch = (size_t)pixels->scratch(&s, pool_of(main, r, &pool));
    TWI_TRY(twi_mul_size(&site->shared_bytes, (size_t)pixels->packed(&s), sizeof(float), "convolution weights"));
    return twi_mul_size(&site->worker_bytes, scratch, sizeof(float), "convolution scratch");
}

static void begin(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace, const roles *r) {
    const twi_conv_shape s = shape_of(call, r);
    TWI_FOR_ISA(site->isa, pixels)
        ->pack(&s, call->operand[1].data, r->bias < 0 ? NULL : call->operand[r->bias].data, workspace->shared);
}

static void run(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace, const roles *r) {
    twi_pixels_pool pool;
    const twi_conv_shape s = shape_of(call, r);
    TWI_FOR_ISA(site->isa, pixels)
        ->forward(&s, call->operand[0].data, workspace->shared, pool_of(call, r, &pool), r->relu,
                  call->operand[r->y].data, workspace->scratch);
}

/* ---- table ---- */

#define FORWARD(roles)                                                                                              \
    static const char *refuse_##roles(const twi_call *call, twi_isa isa) { return refuse(call, isa, &roles); }      \
    static tw_status prepare_##roles(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {              \
        (void)tail;                                                                                                 \
        return prepare(site, main, &roles);                                                                         \
    }                                                                                                               \
    static void begin_##roles(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) { \
        begin(site, call, workspace, &roles);                                                                       \
    }                                                                                                               \
    static void run_##roles(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {   \
        run(site, call, workspace, &roles);                                                                         \
    }
FORWARD(plain)
FORWARD(biased)
FORWARD(biased_relu)
FORWARD(pooled)
FORWARD(pooled_relu)

#define ROW(kernel_name, fn)                                                                               \
    {                                                                                                      \
        .kernel = "conv2d." kernel_name, .name = "pixels", .refuse = refuse_##fn, .prepare = prepare_##fn, \
        .begin = begin_##fn, .run = run_##fn                                                               \
    }

const twi_cpu_impl twi_cpu_pixels_impls[] = {
    ROW("forward", plain),
    ROW("forward_bias", biased),
    ROW("forward_bias_relu", biased_relu),
    ROW("forward_bias_max_pool", pooled),
    ROW("forward_bias_max_pool_relu", pooled_relu),
    {.kernel = NULL},
};

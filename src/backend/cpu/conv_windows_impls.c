/* Convolutions of few channels whose result is pooled in windows of 2x2: which calls are taken, and how they reach
 * conv_lanes.h. What is refused here goes by conv_lanes_impls.c. */
#include "conv_lanes.h"
#include "parts.h"

static const twi_pooled_roles forward_roles = {0, 1, 3, 4};
enum { FORWARD_BIAS = 2 };

/* ---- what is taken ---- */

/* As in conv_lanes_impls.c; of more channels than a picture has, choosing reads the image too often for what it saves. */
enum { MOST_CHANNELS = 24, MOST_CHANNELS_OF_WEIGHTS = 3, MOST_FLOATS = 4 << 20 };

/* No less than either kernel's scratch, in a form that cannot overflow. */
static double scratch_bound(const twi_conv_shape *s, const twi_lanes_pool *pool, int64_t width) {
    const double in_c = (double)s->in_c, out_c = (double)s->out_c, taps = (double)s->kernel_h * (double)s->kernel_w;
    const double columns = (double)s->out_w + (double)s->kernel_w, rows = (double)s->out_h + (double)s->kernel_h;
    const double pairs = ((double)s->kernel_h + 1) * (double)s->kernel_w * columns;
    const double pooled = 2 * (double)pool->rows * (double)pool->columns * out_c;
    return ((pairs + rows * columns + taps * out_c) * in_c + pooled) * (double)width;
}

static const char *refuse_windows(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    const twi_pool_attrs *a = pool->attrs;
    if (a->kernel_h != 2 || a->kernel_w != 2 || a->stride_h != 2 || a->stride_w != 2 || a->pad_top || a->pad_left ||
        2 * pool->rows != s->out_h || 2 * pool->columns != s->out_w)
        return "windows that are not 2x2, side by side over all of the result";
    return NULL;
}

static const char *refuse(const twi_call *call, twi_isa isa, const twi_pooled_roles *r, int64_t most_channels) {
    const char *layout = twi_conv_refuse_layout(call);
    if (layout) return layout;
    const int64_t width = twi_lanes_for(isa)->width;
    const char *turned = twi_lanes_refuse_width(call, width);
    if (turned) return turned;
    const twi_pooled_call c = twi_pooled_call_of(call, r);
    const twi_conv_shape s = c.shape;
    const twi_lanes_pool pool = c.pool;
    if (s.groups != 1) return "more than one group";
    if (s.stride_h != 1 || s.stride_w != 1) return "the convolution is strided";
    if (s.dilation_h != 1 || s.dilation_w != 1) return "the kernel is dilated";
    if (s.kernel_w < 2) return "the kernel is one column wide";
    if (s.samples * 2 < width) return "images for less than half a vector";
    if (s.in_c > most_channels) return "too many channels";
    if (scratch_bound(&s, &pool, width) > MOST_FLOATS) return "images too large";
    return refuse_windows(&s, &pool);
}

/* ---- forward ---- */

/* In 16 registers tiles have too few sums for what they load, which products wait for, unless they are done in two
 * steps. Not measured on aarch64. */
static const char *refuse_forward(const twi_call *call, twi_isa isa) {
    return isa == TWI_ISA_AVX2 ? "the instruction set has few registers"
                               : refuse(call, isa, &forward_roles, MOST_CHANNELS);
}

static tw_status prepare_forward(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const twi_windows *windows = &twi_lanes_for(site->isa)->windows;
    const twi_pooled_call c = twi_pooled_call_of(main, &forward_roles);
    TWI_TRY(twi_mul_size(&site->shared_bytes, (size_t)windows->packed(&c.shape), sizeof(float), "convolution weights"));
    return twi_mul_size(&site->worker_bytes, (size_t)windows->forward_scratch(&c.shape, &c.pool), sizeof(float),
                        "convolution scratch");
}

static void begin_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_pooled_call c = twi_pooled_call_of(call, &forward_roles);
    twi_lanes_for(site->isa)->windows.pack(&c.shape, c.w, workspace->shared);
}

static void run(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace, bool relu) {
    const twi_pooled_call c = twi_pooled_call_of(call, &forward_roles);
    twi_lanes_for(site->isa)->windows.forward(&c.shape, c.x, workspace->shared, call->operand[FORWARD_BIAS].data,
                                              &c.pool, relu, c.y, workspace->scratch);
}
static void run_plain(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run(site, call, workspace, false);
}
static void run_relu(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run(site, call, workspace, true);
}

/* ---- gradient of the weights ---- */

static const char *refuse_weights(const twi_call *call, twi_isa isa) {
    return refuse(call, isa, &twi_unpooled_weights_roles, MOST_CHANNELS_OF_WEIGHTS);
}

static tw_status prepare_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return twi_unpooled_weights_prepare(site, main, &twi_lanes_for(site->isa)->windows.weights);
}
static void run_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_unpooled_weights_run(call, workspace, &twi_lanes_for(site->isa)->windows.weights);
}

/* ---- table ---- */

#define ROW .multiple = twi_lanes_multiple, .lanes = twi_lanes_wish, .describe = twi_conv_pool_describe, .turned = true
#define FORWARD .name = "pairs", .refuse = refuse_forward, .prepare = prepare_forward, .begin = begin_forward

const twi_cpu_impl twi_cpu_windows_impls[] = {
    {.kernel = "conv2d.forward_bias_max_pool", .run = run_plain, FORWARD, ROW},
    {.kernel = "conv2d.forward_bias_max_pool_relu", .run = run_relu, FORWARD, ROW},
    {.kernel = "conv2d.backward_weights_unpooled",
     .name = "chosen",
     .refuse = refuse_weights,
     .prepare = prepare_weights,
     .run = run_weights,
     ROW},
    {.kernel = NULL},
};

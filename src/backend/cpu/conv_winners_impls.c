/* Gradients of convolutions through the pooling behind them, of the elements that won: which calls are taken, and how
 * they reach conv_lanes.h. What is refused here goes by conv_lanes_impls.c. */
#include "conv_lanes.h"
#include "parts.h"

static const twi_pooled_roles data_roles = {3, 2, 0, 1};

/* ---- what is taken ---- */

/* Of scratch, where places of elements still fit an int32_t. */
enum { MOST_FLOATS = 4 << 20 };

/* No less than either kernel's scratch, in a form that cannot overflow. */
static double scratch_bound(const twi_conv_shape *s, const twi_lanes_pool *pool, int64_t width) {
    const double row = (double)s->kernel_w * (double)s->in_c + (double)width, kernel_h = (double)s->kernel_h;
    const double window_h = (double)pool->attrs->kernel_h, window_w = (double)pool->attrs->kernel_w;
    const double down = (double)s->out_h * (double)s->stride_h + window_h + kernel_h + (double)s->in_h + (double)s->top,
                 across = (double)s->out_w * (double)s->stride_w + window_w + (double)s->kernel_w + (double)s->in_w +
                          (double)s->left;
    const double winners = (double)pool->rows * (double)pool->columns * (double)s->out_c;
    return (down + window_h * (double)s->stride_h) * ((double)s->out_w + window_w) * row +
           (double)width * (down * across * (double)s->in_c + row) +
           (5 * (double)width + 4) * (winners + (double)width) + (double)pool->rows * (double)pool->columns * window_w +
           TWI_WINNERS_WINDOW * (double)s->out_c * (kernel_h + 2) * row;
}

/* Products of vectors that a winner takes, against those that a window takes in lanes of images. PLACE, found by trial,
 * is what finding and placing a winner takes, in such products. */
enum { PLACE = 14 };

static const char *refuse_short(const twi_conv_shape *s, const twi_lanes_pool *pool, int64_t width) {
    const int64_t row = s->kernel_w * s->in_c;
    const int64_t positions =
        twi_smaller(pool->attrs->stride_h, s->out_h) * twi_smaller(pool->attrs->stride_w, s->out_w);
    const int64_t products = s->kernel_h * twi_part_count(row, width) + PLACE;
    return positions * s->kernel_h * row < products * width ? "rows of the kernel are short for what a winner takes"
                                                            : NULL;
}

static const char *refuse(const twi_call *call, twi_isa isa, const twi_pooled_roles *r) {
    const char *layout = twi_conv_refuse_layout(call);
    if (layout) return layout;
    const int64_t width = twi_lanes_for(isa)->width;
    const char *turned = twi_lanes_refuse_width(call, width);
    if (turned) return turned;
    const twi_pooled_call c = twi_pooled_call_of(call, r);
    const twi_conv_shape s = c.shape;
    const twi_lanes_pool pool = c.pool;
    if (s.groups != 1) return "more than one group";
    if (s.dilation_h != 1 || s.dilation_w != 1) return "the kernel is dilated";
    if ((int64_t)pool.attrs->kernel_h * pool.attrs->kernel_w > TWI_WINNERS_WINDOW) return "windows too large";
    if (s.samples * 2 < width) return "images for less than half a vector";
    if (scratch_bound(&s, &pool, width) > MOST_FLOATS) return "images too large";
    return refuse_short(&s, &pool, width);
}

static const char *refuse_weights(const twi_call *call, twi_isa isa) {
    return refuse(call, isa, &twi_unpooled_weights_roles);
}

static const char *refuse_data(const twi_call *call, twi_isa isa) {
    const char *refusal = refuse(call, isa, &data_roles);
    if (refusal) return refusal;
    const twi_conv2d_pool_attrs *attrs = call->attrs;
    const twi_pool_attrs *pool = &attrs->pool;
    if (attrs->conv.stride_h != 1 || attrs->conv.stride_w != 1) return "the convolution is strided";
    if (pool->kernel_h != 2 || pool->stride_h != 2 || pool->stride_w != pool->kernel_w || pool->pad_top ||
        pool->pad_left)
        return "windows that are not two rows high, side by side";
    if (call->operand[data_roles.w].shape.dim[2] > TWI_WINNERS_KERNEL_ROWS) return "more rows of the kernel than fit";
    return NULL;
}

/* ---- gradient of the weights ---- */

static tw_status prepare_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return twi_unpooled_weights_prepare(site, main, &twi_lanes_for(site->isa)->winners.weights);
}
static void run_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_unpooled_weights_run(call, workspace, &twi_lanes_for(site->isa)->winners.weights);
}

/* ---- gradient of the input ---- */

static tw_status prepare_data(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const twi_winners *winners = &twi_lanes_for(site->isa)->winners;
    const twi_pooled_call c = twi_pooled_call_of(main, &data_roles);
    TWI_TRY(twi_mul_size(&site->shared_bytes, (size_t)winners->packed(&c.shape), sizeof(float), "convolution weights"));
    return twi_mul_size(&site->worker_bytes, (size_t)winners->data_scratch(&c.shape, &c.pool), sizeof(float),
                        "convolution scratch");
}

static void begin_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_pooled_call c = twi_pooled_call_of(call, &data_roles);
    twi_lanes_for(site->isa)->winners.pack(&c.shape, c.w, workspace->shared);
}

static void run_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_pooled_call c = twi_pooled_call_of(call, &data_roles);
    twi_lanes_for(site->isa)->winners.data(&c.shape, c.y, &c.pool, workspace->shared, c.x, workspace->scratch);
}

/* ---- table ---- */

#define ROW                                                                                                         \
    .name = "winners", .multiple = twi_lanes_multiple, .lanes = twi_lanes_wish, .describe = twi_conv_pool_describe, \
    .turned = true

const twi_cpu_impl twi_cpu_winners_impls[] = {
    {.kernel = "conv2d.backward_data_unpooled",
     .refuse = refuse_data,
     .prepare = prepare_data,
     .begin = begin_data,
     .run = run_data,
     ROW},
    {.kernel = "conv2d.backward_weights_unpooled",
     .refuse = refuse_weights,
     .prepare = prepare_weights,
     .run = run_weights,
     ROW},
    {.kernel = NULL},
};

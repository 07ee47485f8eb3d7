/* Convolutions of few channels, a vector of images at a time, and what stands between them: which calls are taken, and
 * how they reach conv_lanes.h. */
#include "conv_lanes.h"
#include "parts.h"
#include "base/memory.h"

/* ---- what a kernel's operands are ---- */

/* Places of operands; -1: there is none. */
typedef struct roles {
    int8_t x, w, y,
        index; /* of the convolution: its input, weights and result, or their gradients; the pooling's index */
    bool backward_data;
} roles;

static const roles forward_roles = {0, 1, 2, -1, false}, biased_roles = {0, 1, 3, -1, false},
                   pooled_roles = {0, 1, 3, 4, false}, weights_roles = {0, 2, 1, -1, false},
                   unpooled_weights_roles = {0, 3, 1, 2, false}, data_roles = {2, 1, 0, -1, true},
                   unpooled_data_roles = {3, 2, 0, 1, true};

/* The convolution that is done: of dy and turned weights, where the gradient of the input is asked for. */
static twi_conv_shape shape_of(const twi_call *call, const roles *r) {
    const twi_conv_shape s =
        r->index < 0 ? twi_conv_shape_of(call, r->x, r->w, r->y) : twi_conv_pooled_shape_of(call, r->x, r->w, r->y);
    return r->backward_data ? twi_conv_shape_backward(&s) : s;
}

/* NULL without a pooling. */
static const twi_lanes_pool *pool_of(const twi_call *call, const roles *r, twi_lanes_pool *pool) {
    if (r->index < 0) return NULL;
    *pool = twi_lanes_pool_of(call, r->y, r->index);
    return pool;
}

/* ---- what is taken ---- */

/* Limits found by trial on the machines of docs/performance.md: with more channels products of patches are faster, larger
 * images leave the caches. */
enum { MOST_CHANNELS = 64, MOST_CHANNELS_OF_WEIGHTS = 24, MOST_FLOATS = 4 << 20 };

/* Scratch at most, in a form that cannot overflow. */
static double scratch_bound(const twi_conv_shape *s, const twi_lanes_pool *pool, int64_t width) {
    double columns = (double)s->out_w * (double)s->stride_w + (double)s->kernel_w * (double)s->dilation_w;
    double weights = (double)s->out_c * (double)s->kernel_h * (double)s->kernel_w * (double)s->in_c;
    double rows = pool ? (double)pool->attrs->kernel_h : 1, channels = (double)twi_larger(s->in_c, s->out_c);
    double pooled = pool ? 2 * (double)pool->rows * (double)pool->columns * channels : 0;
    return ((double)s->in_h * columns * (double)s->in_c + rows * (double)s->out_w * (double)s->out_c + weights +
            pooled) *
           (double)width;
}

static const char *refuse(const twi_call *call, twi_isa isa, const roles *r, int64_t most_channels) {
    const char *layout = twi_conv_refuse_layout(call);
    if (layout) return layout;
    twi_lanes_pool pool;
    const int64_t width = twi_lanes_for(isa)->width;
    const twi_conv_shape s = shape_of(call, r);
    const char *turned = twi_lanes_refuse_width(call, width);
    if (turned) return turned;
    if (s.groups != 1) return "more than one group";
    if (s.samples * 2 < width) return "images for less than half a vector";
    if (s.in_c > most_channels) return "too many channels";
    if (scratch_bound(&s, pool_of(call, r, &pool), width) > MOST_FLOATS) return "images too large";
    return NULL;
}

/* Without vectors of 8 images, products of patches are as fast. */
static const char *refuse_narrow(twi_isa isa) {
    return isa == TWI_ISA_BASELINE ? "the instruction set has no vectors worth turning images for" : NULL;
}

/* ---- what is kept of a step ---- */

static tw_status keep_tiling(twi_cpu_site *site, twi_lanes_tiling tiling) {
    twi_lanes_tiling *kept;
    TWI_TRY(twi_get(site->memory, &kept, 1, sizeof *kept, "tiling of a convolution"));
    *kept = tiling;
    site->state[0] = kept;
    return TW_OK;
}
static tw_status scratch_bytes(twi_cpu_site *site, int64_t floats) {
    return twi_mul_size(&site->worker_bytes, (size_t)floats, sizeof(float), "convolution scratch");
}
static twi_lanes_tiling tiling_of(const twi_cpu_site *site) { return *(const twi_lanes_tiling *)site->state[0]; }
static void release(twi_cpu_site *site) { twi_put(site->memory, site->state[0]); }

/* ---- forward ---- */

static tw_status prepare_forward(twi_cpu_site *site, const twi_call *call, const roles *r) {
    twi_lanes_pool pool;
    const twi_conv_shape s = shape_of(call, r);
    TWI_TRY(scratch_bytes(site, twi_lanes_for(site->isa)->forward_scratch(&s, NULL, pool_of(call, r, &pool))));
    return keep_tiling(site, twi_lanes_for(site->isa)->forward_tiling(&s));
}

static void run_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                        const roles *r, const float *bias, bool relu) {
    twi_lanes_pool pool;
    const twi_conv_shape s = shape_of(call, r);
    twi_lanes_for(site->isa)->forward(&s, tiling_of(site), twi_lanes_tensor_of(call, r->x), NULL,
                                      call->operand[r->w].data, bias, pool_of(call, r, &pool), relu,
                                      twi_lanes_tensor_of(call, r->y), workspace->scratch);
}

/* ---- backward ---- */

static tw_status prepare_backward_data(twi_cpu_site *site, const twi_call *call, const roles *r) {
    twi_lanes_pool pool;
    const twi_conv_shape s = shape_of(call, r);
    TWI_TRY(scratch_bytes(site, twi_lanes_for(site->isa)->forward_scratch(&s, pool_of(call, r, &pool), NULL)));
    TWI_TRY(twi_mul_size(&site->shared_bytes, (size_t)twi_shape_count(&call->operand[r->w].shape), sizeof(float),
                         "convolution weights"));
    return keep_tiling(site, twi_lanes_for(site->isa)->forward_tiling(&s));
}

/* Turns the weights: turned[i][kernel_h-1-y][kernel_w-1-x][o] = w[o][y][x][i]. */
static void begin_backward_data(const twi_call *call, const twi_cpu_workspace *workspace, const roles *r) {
    const int64_t *w_dim = call->operand[r->w].shape.dim;
    const float *w = call->operand[r->w].data;
    float *turned = workspace->shared;
    int64_t outs = w_dim[0], ins = w_dim[1], taps = w_dim[2] * w_dim[3];
    for (int64_t o = 0; o < outs; o++) {
        for (int64_t t = 0; t < taps; t++) {
            for (int64_t i = 0; i < ins; i++)
                turned[(i * taps + taps - 1 - t) * outs + o] = w[(o * taps + t) * ins + i];
        }
    }
}

static void run_backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                              const roles *r) {
    twi_lanes_pool pool;
    const twi_conv_shape s = shape_of(call, r);
    twi_lanes_for(site->isa)->forward(&s, tiling_of(site), twi_lanes_tensor_of(call, r->y), pool_of(call, r, &pool),
                                      workspace->shared, NULL, NULL, false, twi_lanes_tensor_of(call, r->x),
                                      workspace->scratch);
}

static tw_status prepare_backward_weights(twi_cpu_site *site, const twi_call *call, const roles *r) {
    twi_lanes_pool pool;
    const twi_conv_shape s = shape_of(call, r);
    TWI_TRY(scratch_bytes(site, twi_lanes_for(site->isa)->backward_weights_scratch(&s, pool_of(call, r, &pool))));
    return keep_tiling(site, twi_lanes_for(site->isa)->weights_tiling(&s));
}

static void run_backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                                 const roles *r) {
    twi_lanes_pool pool;
    const twi_conv_shape s = shape_of(call, r);
    twi_lanes_for(site->isa)->backward_weights(&s, tiling_of(site), twi_lanes_tensor_of(call, r->x),
                                               twi_lanes_tensor_of(call, r->y), pool_of(call, r, &pool), !call->first,
                                               call->operand[r->w].data, workspace->scratch);
}

/* ---- between convolutions ---- */

static const char *refuse_turned(const twi_call *call, twi_isa isa, int from, int to) {
    for (int o = from; o < to; o++) {
        const twi_operand *operand = &call->operand[o];
        if (!twi_is_f32(operand)) return "an operand is not f32";
        if (operand->shape.rank != 4 || !twi_is_channels_last(operand))
            return "an operand is no image, channels innermost";
        if (operand->lanes != twi_lanes_for(isa)->width) return "samples do not lie side by side";
    }
    return NULL;
}
static const char *refuse_bias_relu(const twi_call *call, twi_isa isa) { return refuse_turned(call, isa, 0, 3); }
static const char *refuse_bias(const twi_call *call, twi_isa isa) { return refuse_turned(call, isa, 0, 1); }

static tw_status prepare_bias(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return scratch_bytes(site, twi_lanes_for(site->isa)->bias_relu_scratch(main->operand[0].shape.dim[1]));
}

static void run_bias_relu(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *dy = &call->operand[0];
    const int64_t *dim = dy->shape.dim;
    twi_lanes_for(site->isa)->bias_relu(dim[0], dim[2] * dim[3], dim[1], dy->data, call->operand[1].data,
                                        call->operand[2].data, !call->first, call->operand[3].data, workspace->scratch);
}
static void run_bias(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *dy = &call->operand[0];
    const int64_t *dim = dy->shape.dim;
    twi_lanes_for(site->isa)->bias_relu(dim[0], dim[2] * dim[3], dim[1], dy->data, NULL, NULL, !call->first,
                                        call->operand[1].data, workspace->scratch);
}

/* One operand an image in lanes, the other one row-major. */
static const char *refuse_copy(const twi_call *call, twi_isa isa) {
    int image = call->operand[0].lanes ? 0 : 1;
    const twi_operand *rows = &call->operand[1 - image];
    const char *refusal = refuse_turned(call, isa, image, image + 1);
    if (refusal) return refusal;
    return rows->lanes || !twi_is_f32(rows) || !twi_is_row_major(rows) ? "the other operand is not row-major f32"
                                                                       : NULL;
}
static void run_copy(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    const bool from_image = call->operand[0].lanes != 0;
    const int64_t *dim = call->operand[from_image ? 0 : 1].shape.dim;
    const twi_lanes *lanes = twi_lanes_for(site->isa);
    (from_image ? lanes->image_to_rows : lanes->rows_to_image)(dim[0], dim[2] * dim[3], dim[1], call->operand[0].data,
                                                               call->operand[1].data);
}

/* ---- table ---- */

#define TAKEN(name, roles, limit, narrow)                                 \
    static const char *refuse_##name(const twi_call *call, twi_isa isa) { \
        const char *refusal = narrow;                                     \
        return refusal ? refusal : refuse(call, isa, &roles, limit);      \
    }
#define PREPARED(name, roles, kind)                                                                   \
    static tw_status prepare_##name(twi_cpu_site *site, const twi_call *main, const twi_call *tail) { \
        (void)tail;                                                                                   \
        return prepare_##kind(site, main, &roles);                                                    \
    }
#define RUN(name) \
    static void run_##name(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace)

#define FORWARD(name, roles, limit, narrow, bias, relu) \
    TAKEN(name, roles, limit, narrow)                   \
    PREPARED(name, roles, forward)                      \
    RUN(name) { run_forward(site, call, workspace, &roles, (bias) ? call->operand[2].data : NULL, relu); }
#define BACKWARD_DATA(name, roles, narrow)                                                                         \
    TAKEN(name, roles, MOST_CHANNELS, narrow)                                                                      \
    PREPARED(name, roles, backward_data)                                                                           \
    static void begin_##name(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) { \
        (void)site;                                                                                                \
        begin_backward_data(call, workspace, &roles);                                                              \
    }                                                                                                              \
    RUN(name) { run_backward_data(site, call, workspace, &roles); }
#define BACKWARD_WEIGHTS(name, roles, narrow)            \
    TAKEN(name, roles, MOST_CHANNELS_OF_WEIGHTS, narrow) \
    PREPARED(name, roles, backward_weights)              \
    RUN(name) { run_backward_weights(site, call, workspace, &roles); }

FORWARD(plain, forward_roles, MOST_CHANNELS, refuse_narrow(isa), false, false)
FORWARD(biased, biased_roles, MOST_CHANNELS, refuse_narrow(isa), true, false)
FORWARD(biased_relu, biased_roles, MOST_CHANNELS, refuse_narrow(isa), true, true)
FORWARD(pooled, pooled_roles, MOST_CHANNELS_OF_WEIGHTS, NULL, true, false)
FORWARD(pooled_relu, pooled_roles, MOST_CHANNELS_OF_WEIGHTS, NULL, true, true)
BACKWARD_DATA(data, data_roles, refuse_narrow(isa))
BACKWARD_DATA(unpooled_data, unpooled_data_roles, NULL)
BACKWARD_WEIGHTS(weights, weights_roles, refuse_narrow(isa))
BACKWARD_WEIGHTS(unpooled_weights, unpooled_weights_roles, NULL)

#define ROW(kernel_name, fn)                                                                                 \
    .kernel = kernel_name, .name = "lanes", .refuse = refuse_##fn, .prepare = prepare_##fn, .run = run_##fn, \
    .release = release, .multiple = twi_lanes_multiple, .lanes = twi_lanes_wish, .turned = true

const twi_cpu_impl twi_cpu_lanes_impls[] = {
    {ROW("conv2d.forward", plain)},
    {ROW("conv2d.forward_bias", biased)},
    {ROW("conv2d.forward_bias_relu", biased_relu)},
    {ROW("conv2d.forward_bias_max_pool", pooled)},
    {ROW("conv2d.forward_bias_max_pool_relu", pooled_relu)},
    {ROW("conv2d.backward_data", data), .begin = begin_data},
    {ROW("conv2d.backward_data_unpooled", unpooled_data), .begin = begin_unpooled_data},
    {ROW("conv2d.backward_weights", weights)},
    {ROW("conv2d.backward_weights_unpooled", unpooled_weights)},
    {.kernel = "bias_relu.backward",
     .name = "lanes",
     .refuse = refuse_bias_relu,
     .prepare = prepare_bias,
     .run = run_bias_relu,
     .turned = true},
    {.kernel = "bias.backward",
     .name = "lanes",
     .refuse = refuse_bias,
     .prepare = prepare_bias,
     .run = run_bias,
     .turned = true},
    {.kernel = "reshape.copy", .name = "lanes", .refuse = refuse_copy, .run = run_copy, .turned = true},
    {.kernel = NULL},
};

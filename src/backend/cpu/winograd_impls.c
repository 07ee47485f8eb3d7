/* Convolutions of 3x3 by winograd.h: which calls are taken and in which tiles, and how they reach it. Weights are
 * transformed once a run; the gradient of weights is summed in transformed form and brought back at the end. */
#include "winograd.h"
#include "loops.h"
#include "base/memory.h"

/* Places of a kernel's operands; -1: there is none. */
typedef struct roles {
    int8_t x, w, y, bias;
    bool backward_data, relu;
} roles;

static const roles forward = {0, 1, 2, -1, false, false};
static const roles forward_bias = {0, 1, 3, 2, false, false};
static const roles forward_bias_relu = {0, 1, 3, 2, false, true};
static const roles backward_data = {2, 1, 0, -1, true, false};
static const roles backward_weights = {0, 2, 1, -1, false, false};

static const twi_winograd *loops_of(const twi_cpu_site *site) { return TWI_FOR_ISA_BF16(site->isa, winograd); }

static int64_t tiled(int64_t size, int tile) { return (size + tile - 1) / tile * tile; }

/* Tiles of 4 where halves hide their error, unless those that reach over the edge would spoil what they save. */
static int tile_of(const twi_conv_shape *s, tw_dtype dtype) {
    return dtype == TW_F32 || tiled(s->out_h, 4) * tiled(s->out_w, 4) > 2 * s->out_h * s->out_w ? 2 : 4;
}

/* How many tiles of a call are worth reading transformed weights for that the cache does not keep, up to a most:
 * beyond, memory sets the pace, and plain weights are smaller. */
enum { MOST_WEIGHTS = 8 << 20, WORTHWHILE_TILES = 48 };

static bool is_bound_by_weights(const twi_winograd_shape *shape) {
    const twi_conv_shape *s = &shape->conv;
    const double weights =
        (double)s->in_c * (double)s->out_c * (double)twi_winograd_points(shape->tile) * sizeof(float);
    const int64_t rows = tiled(s->out_h, shape->tile) / shape->tile,
                  columns = tiled(s->out_w, shape->tile) / shape->tile;
    return weights > MOST_WEIGHTS || (weights > TWI_CACHED_BYTES && s->samples * rows * columns < WORTHWHILE_TILES);
}

static twi_winograd_shape shape_of(const roles *r, const twi_call *call) {
    const twi_conv_shape s = twi_conv_shape_of(call, r->x, r->w, r->y);
    twi_winograd_shape shape = {.conv = r->backward_data ? twi_conv_shape_backward(&s) : s,
                                .dtype = (tw_dtype)call->operand[r->x].dtype};
    shape.tile = tile_of(&shape.conv, shape.dtype);
    return shape;
}

/* ---- which calls ---- */

/* One type all over, but for the gradient of weights, which can be f32 beside images of halves. */
static const char *refuse_operands(const roles *r, const twi_call *call) {
    const tw_dtype dtype = (tw_dtype)call->operand[r->x].dtype;
    if (dtype != TW_F32 && dtype != TW_BF16 && dtype != TW_F16) return "Winograd: images are not f32, bf16 or f16";
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand *operand = &call->operand[o];
        const bool wide = r == &backward_weights && o == r->w && operand->dtype == TW_F32;
        if (operand->store == TWI_REAL && operand->dtype != dtype && !wide)
            return "Winograd: operands of different types";
        if (!twi_is_channels_last(operand)) return "an operand is not dense with channels innermost";
    }
    return NULL;
}

static const char *refuse(const roles *r, const twi_call *call, twi_isa isa) {
    const twi_winograd_shape shape = shape_of(r, call);
    const twi_conv_shape *s = &shape.conv;
    const int64_t width = TWI_FOR_ISA(isa, winograd)->width;
    if (s->kernel_h != 3 || s->kernel_w != 3) return "Winograd: the kernel is not 3x3";
    if (s->stride_h != 1 || s->stride_w != 1 || s->spread_h != 1 || s->spread_w != 1)
        return "Winograd: the stride is not 1";
    if (s->dilation_h != 1 || s->dilation_w != 1) return "Winograd: the kernel is dilated";
    if (s->groups != 1) return "Winograd: the convolution is grouped";
    if (s->in_c % width || s->out_c % width) return "Winograd: channels do not fill vectors";
    if (is_bound_by_weights(&shape)) return "Winograd: too many weights for so few pixels";
    return refuse_operands(r, call);
}

/* ---- preparing and running ---- */

static tw_status prepare(const roles *r, twi_cpu_site *site, const twi_call *call, size_t *matrices) {
    const twi_winograd_shape shape = shape_of(r, call);
    TWI_TRY(loops_of(site)->scratch(&shape, &site->worker_bytes));
    TWI_TRY(twi_mul_size(matrices, (size_t)shape.conv.in_c, (size_t)shape.conv.out_c, "Winograd weights"));
    return twi_mul_size(matrices, *matrices, twi_winograd_points(shape.tile) * sizeof(float), "Winograd weights");
}

static void begin(const roles *r, const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_winograd_shape shape = shape_of(r, call);
    loops_of(site)->weights(&shape, call->operand[r->w].data, r->backward_data, workspace->shared);
}

static void run(const roles *r, const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_winograd_shape shape = shape_of(r, call);
    const int from = r->backward_data ? r->y : r->x, to = r->backward_data ? r->x : r->y;
    loops_of(site)->convolve(&shape, call->operand[from].data, workspace->shared,
                             r->bias < 0 ? NULL : call->operand[r->bias].data, r->relu, call->operand[to].data,
                             workspace->scratch);
}

/* A shorter last chunk never needs more. */
#define CONVOLUTION(which)                                                                                          \
    static const char *refuse_##which(const twi_call *call, twi_isa isa) { return refuse(&which, call, isa); }      \
    static tw_status prepare_##which(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {              \
        (void)tail;                                                                                                 \
        return prepare(&which, site, main, &site->shared_bytes);                                                    \
    }                                                                                                               \
    static void begin_##which(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) { \
        begin(&which, site, call, workspace);                                                                       \
    }                                                                                                               \
    static void run_##which(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {   \
        run(&which, site, call, workspace);                                                                         \
    }
CONVOLUTION(forward)
CONVOLUTION(forward_bias)
CONVOLUTION(forward_bias_relu)
CONVOLUTION(backward_data)

static const char *refuse_weights(const twi_call *call, twi_isa isa) { return refuse(&backward_weights, call, isa); }

static tw_status prepare_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return prepare(&backward_weights, site, main, &site->partial_bytes[backward_weights.w]);
}

static void run_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_winograd_shape shape = shape_of(&backward_weights, call);
    loops_of(site)->backward_weights(&shape, call->operand[backward_weights.x].data,
                                     call->operand[backward_weights.y].data, !call->first,
                                     call->operand[backward_weights.w].data, workspace->scratch);
}

static void finish_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                           void *const partial[TWI_MAX_OPERANDS]) {
    const twi_winograd_shape shape = shape_of(&backward_weights, call);
    const twi_operand *dw = &call->operand[backward_weights.w];
    (void)workspace;
    loops_of(site)->weights_gradient(&shape, partial[backward_weights.w], dw->data,
                                     dw->store == TWI_REAL ? (tw_dtype)dw->dtype : TW_F32);
}

/* ---- the family ---- */

#define ROW(which)                                                                                            \
    {                                                                                                         \
        .kernel = "conv2d." #which, .name = "winograd", .refuse = refuse_##which, .prepare = prepare_##which, \
        .begin = begin_##which, .run = run_##which, .describe = twi_conv_describe                             \
    }
const twi_cpu_impl twi_cpu_winograd_impls[] = {
    ROW(forward),
    ROW(forward_bias),
    ROW(forward_bias_relu),
    ROW(backward_data),
    {.kernel = "conv2d.backward_weights",
     .name = "winograd",
     .refuse = refuse_weights,
     .prepare = prepare_weights,
     .run = run_weights,
     .finish = finish_weights,
     .describe = twi_conv_describe},
    {.kernel = NULL},
};

/* Convolutions by fewer products (winograd.h): which calls are taken, the turned weights, which are made once a run, and the
 * scratch. Sums of transformed values carry the error of f32 several times over, 1e-6 or so of the result: nothing beside
 * what storing it in halves costs, so halves are what this family is for. */
#include "winograd.h"
#include "conv_shape.h"
#include "halves.h"
#include "parts.h"
#include "base/memory.h"

/* What the numbers of a block of tiles may take, and the turned weights: behind that, memory sets the pace. */
#define BLOCK_BYTES ((int64_t)384 << 10)
#define WEIGHT_BYTES ((int64_t)4 << 20)

/* Which operand of the kernel is what; -1: none. */
typedef struct roles {
    int8_t x, w, y, bias; /* x is convolved with w to y; of gradients of x, dy is */
    bool turned, gradient, relu;
} roles;

static const roles forward = {0, 1, 2, -1, false, false, false};
static const roles forward_bias = {0, 1, 3, 2, false, false, false};
static const roles forward_bias_relu = {0, 1, 3, 2, false, false, true};
static const roles backward_data = {0, 1, 2, -1, true, false, false};
static const roles backward_weights = {0, 2, 1, -1, false, true, false};

static twi_winograd_shape shape_of(const roles *r, const twi_call *call) {
    const twi_operand *x = &call->operand[r->x], *y = &call->operand[r->y];
    const twi_conv2d_attrs *attrs = call->attrs;
    const int64_t back = r->turned ? 2 : 0; /* what is not padded before comes before */
    return (twi_winograd_shape){.images = x->shape.dim[0],
                                .in = x->shape.dim[1],
                                .out = y->shape.dim[1],
                                .height = x->shape.dim[2],
                                .width = x->shape.dim[3],
                                .out_height = y->shape.dim[2],
                                .out_width = y->shape.dim[3],
                                .top = back ? back - attrs->pad_top : attrs->pad_top,
                                .left = back ? back - attrs->pad_left : attrs->pad_left,
                                .bf16 = x->dtype == TW_BF16};
}

static int64_t tile_bytes(const twi_winograd_shape *s) {
    return TWI_WINOGRAD_POINTS * (s->in + s->out) * (int64_t)sizeof(float);
}

int64_t twi_winograd_block_rows(const twi_winograd_shape *s) {
    const int64_t rows = s->images * twi_winograd_tile_rows(s);
    const int64_t fit = twi_larger(1, BLOCK_BYTES / (tile_bytes(s) * twi_winograd_tile_columns(s)));
    return twi_part_count(rows, twi_part_count(rows, fit)); /* as even as can be */
}

/* ---- which calls ---- */

/* Tiles that reach over the border compute what nobody wants: up to half of their results. */
static bool wastes(const twi_winograd_shape *s) {
    const int64_t tiles = twi_winograd_tile_rows(s) * twi_winograd_tile_columns(s);
    return tiles * TWI_WINOGRAD_OUT * TWI_WINOGRAD_OUT > 2 * s->out_height * s->out_width;
}

static const char *refuse(const roles *r, const twi_call *call) {
    const twi_conv2d_attrs *a = call->attrs;
    const int64_t *w = call->operand[r->w].shape.dim;
    for (int o = 0; o < call->operand_count; o++)
        if (!twi_is_channels_last(&call->operand[o])) return "an operand is not dense with channels innermost";
    if (!twi_cpu_is_half(call, r->x) || !twi_cpu_is_half(call, r->y)) return "images are no halves";
    if (!r->gradient && !twi_cpu_is_half(call, r->w)) return "weights are no halves";
    if (w[2] != 3 || w[3] != 3 || a->stride_h != 1 || a->stride_w != 1 || a->dilation_h != 1 || a->dilation_w != 1)
        return "only 3 x 3 without strides and dilation take fewer products";
    if (a->groups != 1) return "the convolution is grouped";
    if (w[0] % 16 || w[1] % 16) return "channels are no multiples of 16";
    if (a->pad_top > 2 || a->pad_left > 2) return "the padding is wider than the kernel";
    if (TWI_WINOGRAD_POINTS * w[0] * w[1] * (int64_t)sizeof(float) > WEIGHT_BYTES)
        return "turned weights would be too large for the cache";
    const twi_winograd_shape shape = shape_of(r, call);
    return wastes(&shape) ? "tiles of 4 x 4 would be half empty" : NULL;
}

/* ---- preparing ---- */

/* Floats, as the loops take them; every part in whole lines. */
static tw_status scratch_floats(size_t *out, const twi_winograd_shape *s, bool gradient) {
    enum { SLACK = 6 * 16 };
    const int64_t columns = twi_winograd_tile_columns(s);
    const int64_t tiles = twi_winograd_block_rows(s) * columns, across = columns * TWI_WINOGRAD_OUT + 2;
    int64_t count = s->out + SLACK + s->width * s->in + TWI_WINOGRAD_IN * across * s->in +
                    TWI_WINOGRAD_POINTS * (twi_winograd_plane(tiles, s->in) + twi_winograd_plane(tiles, s->out));
    if (gradient)
        count += s->out_width * s->out + TWI_WINOGRAD_IN * across * s->out +
                 TWI_WINOGRAD_POINTS * twi_winograd_plane(s->out, s->in);
    return twi_mul_size(out, (size_t)count, sizeof(float), "scratch of a convolution");
}

static tw_status prepare(twi_cpu_site *site, const roles *r, const twi_call *main, const twi_call *tail) {
    const twi_winograd_shape shape = shape_of(r, main);
    TWI_TRY(scratch_floats(&site->worker_bytes, &shape, r->gradient));
    if (tail) { /* whose blocks may be larger */
        const twi_winograd_shape rest = shape_of(r, tail);
        size_t bytes;
        TWI_TRY(scratch_floats(&bytes, &rest, r->gradient));
        if (site->worker_bytes < bytes) site->worker_bytes = bytes;
    }
    const size_t pairs = (size_t)(shape.in * shape.out);
    if (!r->gradient)
        site->shared_bytes = TWI_WINOGRAD_POINTS * pairs * sizeof(float);
    else if (twi_cpu_is_half(main, r->w))
        site->partial_bytes[r->w] = 9 * pairs * sizeof(float);
    return TW_OK;
}

/* ---- running ---- */

static const twi_winograd_loops *loops(const twi_cpu_site *site) { return TWI_FOR_ISA(site->isa, winograd); }

static void begin(const roles *r, const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *w = &call->operand[r->w];
    loops(site)->weights(workspace->shared, w->data, w->dtype == TW_BF16, w->shape.dim[0], w->shape.dim[1], r->turned);
}

static void run(const roles *r, const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_winograd_shape shape = shape_of(r, call);
    const uint16_t *x = call->operand[r->x].data;
    const uint16_t *bias = r->bias < 0 ? NULL : call->operand[r->bias].data;
    uint16_t *y = call->operand[r->y].data;
    if (r->gradient)
        loops(site)->gradient(&shape, x, y, !call->first, call->operand[r->w].data, workspace->scratch);
    else
        loops(site)->convolve(&shape, x, workspace->shared, bias, r->relu, y, workspace->scratch);
}

/* The groups' parts are f32. */
static void finish(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                   void *const partial[TWI_MAX_OPERANDS]) {
    const twi_operand *dw = &call->operand[backward_weights.w];
    (void)workspace;
    twi_halves_for(site->isa)->narrow(dw->data, partial[backward_weights.w], (tw_dtype)dw->dtype,
                                      twi_shape_count(&dw->shape));
}

/* ---- the family ---- */

#define FUNCTIONS(which)                                                                                          \
    static const char *refuse_##which(const twi_call *call, twi_isa isa) {                                        \
        (void)isa;                                                                                                \
        return refuse(&which, call);                                                                              \
    }                                                                                                             \
    static tw_status prepare_##which(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {            \
        return prepare(site, &which, main, tail);                                                                 \
    }                                                                                                             \
    static void run_##which(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) { \
        run(&which, site, call, workspace);                                                                       \
    }
#define FUNCTIONS_OF_WEIGHTS(which)                                                                                 \
    FUNCTIONS(which)                                                                                                \
    static void begin_##which(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) { \
        begin(&which, site, call, workspace);                                                                       \
    }
FUNCTIONS_OF_WEIGHTS(forward)
FUNCTIONS_OF_WEIGHTS(forward_bias)
FUNCTIONS_OF_WEIGHTS(forward_bias_relu)
FUNCTIONS_OF_WEIGHTS(backward_data)
FUNCTIONS(backward_weights)

#define IMPL(which, ...)                                                                                      \
    {                                                                                                         \
        .kernel = "conv2d." #which, .name = "winograd", .refuse = refuse_##which, .prepare = prepare_##which, \
        .run = run_##which, .describe = twi_conv_describe, __VA_ARGS__                                        \
    }
const twi_cpu_impl twi_cpu_winograd_impls[] = {
    IMPL(forward, .begin = begin_forward),
    IMPL(forward_bias, .begin = begin_forward_bias),
    IMPL(forward_bias_relu, .begin = begin_forward_bias_relu),
    IMPL(backward_data, .begin = begin_backward_data),
    IMPL(backward_weights, .finish = finish),
    {.kernel = NULL},
};

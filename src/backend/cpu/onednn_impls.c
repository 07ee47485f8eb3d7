/* Convolutions by oneDNN's primitives, one call a chunk. Weights are reordered to oneDNN's layout once a run, weight
 * gradients are summed in it and brought back at the end. How oneDNN is spoken to is in onednn.c. */
#include "conv_shape.h"
#include "cpu.h"
#include "halves.h"
#include "onednn.h"
#include "point.h"

#ifdef TWI_HAVE_ONEDNN

#include <string.h>

/* Which operand of the kernel has which role; -1: none. */
typedef struct conv_kind {
    twi_onednn_direction direction;
    int8_t operand[TWI_ONEDNN_ROLES];
    bool relu;
} conv_kind;

static const conv_kind forward = {TWI_ONEDNN_FORWARD, {0, 1, 2, -1}, false};
static const conv_kind forward_bias = {TWI_ONEDNN_FORWARD, {0, 1, 3, 2}, false};
static const conv_kind forward_bias_relu = {TWI_ONEDNN_FORWARD, {0, 1, 3, 2}, true};
static const conv_kind backward_data = {TWI_ONEDNN_BACKWARD_DATA, {2, 1, 0, -1}, false};
static const conv_kind backward_weights = {TWI_ONEDNN_BACKWARD_WEIGHTS, {0, 2, 1, -1}, false};

/* The state of a site. */
typedef struct conv_state {
    const conv_kind *kind;
    twi_onednn_op *conv[2]; /* for full chunks; for the shorter last one */
    twi_onednn_op *reorder; /* of the weights; of their gradient */
    size_t weight_count;    /* floats of w in oneDNN's layout */
    size_t spare_offset;    /* in a worker's scratch: room for a chunk's weight gradient */
} conv_state;

/* ---- which calls ---- */

/* Images say what a convolution is of; the gradient of weights may be in either type beside them. */
static bool is_bf16(const conv_kind *kind, const twi_call *call) {
    const twi_operand *x = &call->operand[kind->operand[TWI_ONEDNN_X]];
    return x->store == TWI_REAL && x->dtype == TW_BF16;
}

static const char *refuse_bf16(const twi_call *call, twi_isa isa) {
    if (isa < TWI_ISA_AVX512_BF16 || !twi_onednn_has_bf16()) return "oneDNN: the processor does not multiply bf16";
    if (!twi_cpu_gains_by_bf16()) return "oneDNN: the processor multiplies f32 faster than bf16";
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand *operand = &call->operand[o];
        if (operand->store == TWI_REAL && operand->dtype != TW_BF16) return "oneDNN: operands of different types";
        if (!twi_is_channels_last(operand)) return "an operand is not dense with channels innermost";
    }
    return NULL;
}

/* Weights of more than the second-level cache, read for fewer pixels than fill blocks of registers: putting them into
 * the layout of oneDNN costs more than it saves, but for the gradient of the input, which reads them across. */
enum { FEW_PIXELS = 128 };

static bool is_all_weights(const conv_kind *kind, const twi_call *call) {
    const int64_t *w = call->operand[kind->operand[TWI_ONEDNN_W]].shape.dim;
    const int64_t *y = call->operand[kind->operand[TWI_ONEDNN_Y]].shape.dim;
    const double bytes = (double)w[0] * (double)w[1] * (double)w[2] * (double)w[3] * sizeof(float);
    return kind->direction != TWI_ONEDNN_BACKWARD_DATA && bytes > TWI_CACHED_BYTES && y[0] * y[2] * y[3] < FEW_PIXELS;
}

/* oneDNN's vectors hold channels of what is written: with fewer, or a part of a vector left empty, others are
 * faster. */
static const char *refuse(const conv_kind *kind, const twi_call *call, twi_isa isa) {
    const twi_conv2d_attrs *attrs = call->attrs;
    int written = kind->direction == TWI_ONEDNN_BACKWARD_DATA ? TWI_ONEDNN_X : TWI_ONEDNN_Y;
    int64_t channels = call->operand[kind->operand[written]].shape.dim[1];
    if (isa < TWI_ISA_AVX2) return "oneDNN: needs AVX2";
    if (attrs->groups != 1) return "oneDNN: the convolution is grouped";
    if (channels < 16 || channels % 8) return "oneDNN: fewer than 16 channels, or no multiple of 8";
    if (is_all_weights(kind, call)) return "oneDNN: too many weights for so few pixels";
    return is_bf16(kind, call) ? refuse_bf16(call, isa) : twi_conv_refuse_layout(call);
}

static const char *refuse_forward(const twi_call *call, twi_isa isa) { return refuse(&forward, call, isa); }
static const char *refuse_forward_bias(const twi_call *call, twi_isa isa) { return refuse(&forward_bias, call, isa); }
static const char *refuse_backward_data(const twi_call *call, twi_isa isa) { return refuse(&backward_data, call, isa); }
static const char *refuse_backward_weights(const twi_call *call, twi_isa isa) {
    return refuse(&backward_weights, call, isa);
}

/* ---- preparing ---- */

static twi_onednn_conv conv_of(const conv_kind *kind, const twi_call *call) {
    const twi_conv2d_attrs *attrs = call->attrs;
    twi_onednn_conv conv = {
        .direction = kind->direction,
        .bias = kind->operand[TWI_ONEDNN_BIAS] >= 0,
        .bf16 = is_bf16(kind, call),
        .stride = {attrs->stride_h, attrs->stride_w},
        .dilation = {attrs->dilation_h, attrs->dilation_w},
        .padding = {attrs->pad_top, attrs->pad_left},
        .padding_end = {attrs->pad_bottom, attrs->pad_right},
    };
    int64_t *const dims[] = {conv.x, conv.w, conv.y};
    for (int role = TWI_ONEDNN_X; role <= TWI_ONEDNN_Y; role++)
        memcpy(dims[role], call->operand[kind->operand[role]].shape.dim, 4 * sizeof(int64_t));
    return conv;
}

static tw_status create_primitives(twi_cpu_site *site, conv_state *state, const twi_call *main, const twi_call *tail) {
    twi_onednn_conv conv = conv_of(state->kind, main);
    TWI_TRY(twi_onednn_conv_create(&state->conv[0], site->onednn, &conv, NULL));
    if (tail) {
        twi_onednn_conv last = conv_of(state->kind, tail);
        TWI_TRY(twi_onednn_conv_create(&state->conv[1], site->onednn, &last, state->conv[0]));
    }
    bool inward = state->kind->direction != TWI_ONEDNN_BACKWARD_WEIGHTS;
    const twi_operand *w = &main->operand[state->kind->operand[TWI_ONEDNN_W]];
    const bool bf16 = w->store == TWI_REAL && w->dtype == TW_BF16;
    return twi_onednn_reorder_create(&state->reorder, state->conv[0], &conv, inward, bf16);
}

static size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

static void state_wishes(twi_cpu_site *site, conv_state *state) {
    const twi_onednn_op *const ops[] = {state->conv[0], state->conv[1], state->reorder};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (ops[i] && state->spare_offset < lines(twi_onednn_scratch_bytes(ops[i])))
            state->spare_offset = lines(twi_onednn_scratch_bytes(ops[i]));
    size_t weight_bytes = twi_onednn_weight_bytes(state->conv[0]);
    state->weight_count = weight_bytes / sizeof(float);
    if (state->kind->direction == TWI_ONEDNN_BACKWARD_WEIGHTS) {
        site->worker_bytes = state->spare_offset + lines(weight_bytes);
        site->partial_bytes[state->kind->operand[TWI_ONEDNN_W]] = lines(weight_bytes);
    } else {
        site->worker_bytes = state->spare_offset;
        site->shared_bytes = lines(weight_bytes);
    }
}

static void release(twi_cpu_site *site) {
    conv_state *state = site->state[0];
    if (!state) return;
    twi_onednn_op_destroy(state->conv[0]);
    twi_onednn_op_destroy(state->conv[1]);
    twi_onednn_op_destroy(state->reorder);
    twi_put(site->memory, state);
    site->state[0] = NULL;
}

static tw_status prepare(twi_cpu_site *site, const conv_kind *kind, const twi_call *main, const twi_call *tail) {
    conv_state *state;
    TWI_TRY(twi_get(site->memory, &state, 1, sizeof *state, "oneDNN convolution"));
    site->state[0] = state;
    state->kind = kind;
    int before = twi_onednn_enter();
    tw_status status = create_primitives(site, state, main, tail);
    twi_onednn_leave(before);
    if (status)
        release(site);
    else
        state_wishes(site, state);
    return status;
}

static tw_status prepare_forward(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    return prepare(site, &forward, main, tail);
}
static tw_status prepare_forward_bias(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    return prepare(site, &forward_bias, main, tail);
}
static tw_status prepare_forward_bias_relu(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    return prepare(site, &forward_bias_relu, main, tail);
}
static tw_status prepare_backward_data(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    return prepare(site, &backward_data, main, tail);
}
static tw_status prepare_backward_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    return prepare(site, &backward_weights, main, tail);
}

/* ---- running ---- */

/* A primitive that fails after it was made has met the machine's limits; the run ends with that fault. */
static void execute(twi_onednn_op *op, const twi_call *call, int worker, void *const *data, void *scratch) {
    if (!twi_onednn_execute(op, worker, data, scratch))
        twi_fault_raise(call->control, TW_ERROR_DEVICE, call->node, twi_call_position(call, 0), 0);
}

/* Data by role; the weights' is left to the caller. */
static void roles_data(const conv_kind *kind, const twi_call *call, void *data[TWI_ONEDNN_ROLES]) {
    for (int role = 0; role < TWI_ONEDNN_ROLES; role++)
        data[role] = kind->operand[role] < 0 ? NULL : call->operand[kind->operand[role]].data;
}

static void begin(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const conv_state *state = site->state[0];
    void *data[] = {call->operand[state->kind->operand[TWI_ONEDNN_W]].data, workspace->shared};
    execute(state->reorder, call, workspace->worker, data, workspace->scratch);
}

/* Below 0 is what has the sign, but -0 and not-a-number. */
static void relu_bf16(const twi_operand *operand) {
    uint16_t *x = operand->data;
    for (int64_t i = 0, count = twi_shape_count(&operand->shape); i < count; i++)
        x[i] = x[i] > 0x8000u && x[i] <= 0xFF80u ? 0 : x[i];
}

/* x < 0 ? 0 : x keeps not-a-number, which the relu that oneDNN can do in the same go turns into 0. */
static void relu(const twi_cpu_site *site, const twi_call *call, int y, const twi_cpu_workspace *workspace) {
    if (call->operand[y].store == TWI_REAL && call->operand[y].dtype == TW_BF16) {
        relu_bf16(&call->operand[y]);
        return;
    }
    twi_call part = *call;
    part.operand_count = 2;
    part.operand[0] = part.operand[1] = call->operand[y];
    TWI_FOR_ISA(site->isa, point)->relu_forward(&part, workspace);
}

static void run(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const conv_state *state = site->state[0];
    void *data[TWI_ONEDNN_ROLES];
    roles_data(state->kind, call, data);
    data[TWI_ONEDNN_W] = workspace->shared;
    execute(state->conv[workspace->tail], call, workspace->worker, data, workspace->scratch);
    if (state->kind->relu) relu(site, call, state->kind->operand[TWI_ONEDNN_Y], workspace);
}

/* oneDNN replaces; later chunks of a group go through the worker's scratch. */
static void run_backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const conv_state *state = site->state[0];
    void *data[TWI_ONEDNN_ROLES];
    roles_data(state->kind, call, data);
    float *restrict sum = data[TWI_ONEDNN_W];
    float *restrict part = (float *)((unsigned char *)workspace->scratch + state->spare_offset);
    if (!call->first) data[TWI_ONEDNN_W] = part;
    execute(state->conv[workspace->tail], call, workspace->worker, data, workspace->scratch);
    if (!call->first)
        for (size_t i = 0; i < state->weight_count; i++) sum[i] += part[i];
}

static void finish(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                   void *const partial[TWI_MAX_OPERANDS]) {
    const conv_state *state = site->state[0];
    int w = state->kind->operand[TWI_ONEDNN_W];
    void *data[] = {partial[w], call->operand[w].data};
    execute(state->reorder, call, workspace->worker, data, workspace->scratch);
}

/* ---- the family ---- */

const twi_cpu_impl twi_cpu_onednn_impls[] = {
    {.kernel = "conv2d.forward",
     .name = "onednn",
     .refuse = refuse_forward,
     .prepare = prepare_forward,
     .release = release,
     .begin = begin,
     .run = run},
    {.kernel = "conv2d.forward_bias",
     .name = "onednn",
     .refuse = refuse_forward_bias,
     .prepare = prepare_forward_bias,
     .release = release,
     .begin = begin,
     .run = run},
    {.kernel = "conv2d.forward_bias_relu",
     .name = "onednn",
     .refuse = refuse_forward_bias,
     .prepare = prepare_forward_bias_relu,
     .release = release,
     .begin = begin,
     .run = run},
    {.kernel = "conv2d.backward_data",
     .name = "onednn",
     .refuse = refuse_backward_data,
     .prepare = prepare_backward_data,
     .release = release,
     .begin = begin,
     .run = run},
    {.kernel = "conv2d.backward_weights",
     .name = "onednn",
     .refuse = refuse_backward_weights,
     .prepare = prepare_backward_weights,
     .release = release,
     .run = run_backward_weights,
     .finish = finish},
    {0},
};

#else
const twi_cpu_impl twi_cpu_onednn_impls[] = {{0}};
#endif

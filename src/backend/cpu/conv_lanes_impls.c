/* Convolutions of few channels, a vector of images at a time: which calls are taken, and how they reach
 * conv_lanes.h. */
#include "conv_lanes.h"
#include "base/memory.h"

static const twi_lanes *lanes_for(twi_isa isa) {
#if defined(__x86_64__)
    if (isa != TWI_ISA_BASELINE) return isa == TWI_ISA_AVX512 ? &twi_lanes_avx512 : &twi_lanes_avx2;
#endif
    (void)isa;
    return NULL;
}

/* The convolution done: of dy and turned weights, where the gradient of the input is asked for. */
static twi_conv_shape forward_shape(const twi_call *call) {
    return twi_conv_shape_of(call, 0, 1, call->operand_count - 1);
}
static twi_conv_shape backward_data_shape(const twi_call *call) {
    twi_conv_shape forward = twi_conv_shape_of(call, 2, 1, 0);
    return twi_conv_shape_backward(&forward);
}
static twi_conv_shape backward_weights_shape(const twi_call *call) { return twi_conv_shape_of(call, 0, 2, 1); }

/* ---- what is taken ---- */

/* Measured limits: with more channels products of patches are faster, larger images leave the caches. */
enum { MOST_CHANNELS = 64, MOST_CHANNELS_OF_WEIGHTS = 24, MOST_FLOATS = 4 << 20 };

/* Scratch at most, in a form that cannot overflow. */
static double scratch_bound(const twi_conv_shape *s, int64_t width) {
    double columns = (double)s->out_w * (double)s->stride_w + (double)s->kernel_w * (double)s->dilation_w;
    double weights = (double)s->out_c * (double)s->kernel_h * (double)s->kernel_w * (double)s->in_c;
    return ((double)s->in_h * columns * (double)s->in_c + (double)s->out_w * (double)s->out_c + weights) *
           (double)width;
}

static const char *refuse(const twi_call *call, twi_isa isa, const twi_conv_shape *s, int64_t most_channels) {
    const twi_lanes *lanes = lanes_for(isa);
    const char *layout = twi_conv_refuse_layout(call);
    if (layout) return layout;
    if (!lanes) return "the instruction set has no vectors worth turning images for";
    if (s->groups != 1) return "more than one group";
    if (s->samples * 2 < lanes->width) return "images for less than half a vector";
    if (s->in_c > most_channels) return "too many channels";
    if (scratch_bound(s, lanes->width) > MOST_FLOATS) return "images too large";
    return NULL;
}
static const char *refuse_forward(const twi_call *call, twi_isa isa) {
    twi_conv_shape s = forward_shape(call);
    return refuse(call, isa, &s, MOST_CHANNELS);
}
static const char *refuse_backward_data(const twi_call *call, twi_isa isa) {
    twi_conv_shape s = backward_data_shape(call);
    return refuse(call, isa, &s, MOST_CHANNELS);
}
static const char *refuse_backward_weights(const twi_call *call, twi_isa isa) {
    twi_conv_shape s = backward_weights_shape(call);
    return refuse(call, isa, &s, MOST_CHANNELS_OF_WEIGHTS);
}

static int64_t multiple(const twi_call *call, twi_isa isa) {
    (void)call;
    return lanes_for(isa)->width;
}

/* ---- forward ---- */

static tw_status prepare_forward(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    twi_conv_shape s = forward_shape(main);
    site->worker_bytes = (size_t)lanes_for(site->isa)->forward_scratch(&s) * sizeof(float);
    return TW_OK;
}

static void run(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace, const float *bias,
                bool relu) {
    twi_conv_shape s = forward_shape(call);
    lanes_for(site->isa)->forward(&s, call->operand[0].data, call->operand[1].data, bias, relu,
                                  call->operand[call->operand_count - 1].data, workspace->scratch);
}
static void run_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run(site, call, workspace, NULL, false);
}
static void run_forward_bias(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run(site, call, workspace, call->operand[2].data, false);
}
static void run_forward_bias_relu(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run(site, call, workspace, call->operand[2].data, true);
}

/* ---- backward ---- */

static tw_status prepare_backward_data(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    twi_conv_shape s = backward_data_shape(main);
    site->worker_bytes = (size_t)lanes_for(site->isa)->forward_scratch(&s) * sizeof(float);
    site->shared_bytes = (size_t)twi_shape_count(&main->operand[1].shape) * sizeof(float);
    return TW_OK;
}

/* Turns the weights: turned[i][kernel_h-1-y][kernel_w-1-x][o] = w[o][y][x][i]. */
static void begin_backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site;
    const int64_t *w_dim = call->operand[1].shape.dim;
    const float *w = call->operand[1].data;
    float *turned = workspace->shared;
    int64_t outs = w_dim[0], ins = w_dim[1], taps = w_dim[2] * w_dim[3];
    for (int64_t o = 0; o < outs; o++) {
        for (int64_t t = 0; t < taps; t++) {
            for (int64_t i = 0; i < ins; i++)
                turned[(i * taps + taps - 1 - t) * outs + o] = w[(o * taps + t) * ins + i];
        }
    }
}

static void run_backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_conv_shape s = backward_data_shape(call);
    lanes_for(site->isa)->forward(&s, call->operand[0].data, workspace->shared, NULL, false, call->operand[2].data,
                                  workspace->scratch);
}

static tw_status prepare_backward_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    twi_conv_shape s = backward_weights_shape(main);
    site->worker_bytes = (size_t)lanes_for(site->isa)->backward_weights_scratch(&s) * sizeof(float);
    return TW_OK;
}

static void run_backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_conv_shape s = backward_weights_shape(call);
    lanes_for(site->isa)->backward_weights(&s, call->operand[0].data, call->operand[1].data, !call->first,
                                           call->operand[2].data, workspace->scratch);
}

/* ---- table ---- */

#define FORWARD(kernel_name, run_fn)                                                                            \
    {                                                                                                           \
        .kernel = "conv2d." kernel_name, .name = "lanes", .refuse = refuse_forward, .prepare = prepare_forward, \
        .run = run_fn, .multiple = multiple                                                                     \
    }

const twi_cpu_impl twi_cpu_lanes_impls[] = {
    FORWARD("forward", run_forward),
    FORWARD("forward_bias", run_forward_bias),
    FORWARD("forward_bias_relu", run_forward_bias_relu),
    {.kernel = "conv2d.backward_data",
     .name = "lanes",
     .refuse = refuse_backward_data,
     .prepare = prepare_backward_data,
     .begin = begin_backward_data,
     .run = run_backward_data,
     .multiple = multiple},
    {.kernel = "conv2d.backward_weights",
     .name = "lanes",
     .refuse = refuse_backward_weights,
     .prepare = prepare_backward_weights,
     .run = run_backward_weights,
     .multiple = multiple},
    {.kernel = NULL},
};

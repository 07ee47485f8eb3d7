/* See user_ops.h. */
#include "user_ops.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

int64_t user_ops_count(const tw_op_tensor *tensor) {
    int64_t count = 1;
    for (int axis = 0; axis < tensor->rank; axis++) count *= tensor->dims[axis];
    return count;
}

/* Elements of a sample. */
static int64_t width(const tw_op_tensor *tensor) { return user_ops_count(tensor) / tensor->dims[0]; }

/* ---- prelu ---- */

static int64_t channel(const tw_op_tensor *x, int64_t i) { return i / x->strides[1] % x->dims[1]; }

static void prelu_forward(const tw_op_call *call) {
    const float *x = call->inputs[0].data, *a = call->inputs[1].data;
    float *y = call->output->data;
    for (int64_t i = 0; i < user_ops_count(call->output); i++)
        y[i] = x[i] < 0 ? a[channel(call->output, i)] * x[i] : x[i];
}

static void prelu_backward(const tw_op_call *call) {
    const float *x = call->inputs[0].data, *a = call->inputs[1].data, *dy = call->output_gradient->data;
    float *dx = call->input_gradients[0].data, *da = call->input_gradients[1].data;
    prelu_seen *seen = call->user;
    if (seen) {
        seen->dx += dx != NULL;
        seen->da += da != NULL;
        seen->y += call->output->data != NULL;
    }
    for (int64_t i = 0; i < user_ops_count(&call->inputs[0]); i++) {
        int64_t c = channel(&call->inputs[0], i);
        if (dx) dx[i] = x[i] < 0 ? a[c] * dy[i] : dy[i];
        if (da && x[i] < 0) da[c] += x[i] * dy[i];
    }
}

tw_status user_ops_prelu(tw_context *context, tw_op_layout layout, prelu_seen *seen) {
    return tw_op_register(context, "prelu",
                          TW_OPTIONS(op, .formula = "y = x < 0 ? a[c] x : x", .parameters = 1, .layout = layout,
                                     .backward_ignores = TW_OP_OUTPUT, .user = seen, .forward_cpu = prelu_forward,
                                     .backward_cpu = prelu_backward));
}

tw_value *user_ops_apply_prelu(tw_model *model, tw_value *x, const char *slope) {
    int64_t channels = tw_value_get_dim(x, 1);
    tw_value *a = tw_weight(model, slope, 1, &channels, TW_OPTIONS(weight, .init = {TW_INIT_CONSTANT, 0.25f}));
    return tw_apply(model, "prelu", (tw_value *[]){x, a}, 2, NULL);
}

/* ---- running_tanh ---- */

static tw_status running_infer(const tw_op_call *call, tw_op_tensor *output) {
    const running_attrs *attrs = call->attrs;
    if (!(attrs->gain > 0))
        return tw_op_fail(TW_ERROR_ARGUMENT, "gain is %g, expected more than 0", (double)attrs->gain);
    output->dims[1] = width(&call->inputs[0]);
    output->rank = 2;
    return TW_OK;
}

/* Sums of one sample, one after the other: as many as are handed over. */
static size_t running_workspace(const tw_op_call *call) { return (size_t)width(&call->inputs[0]) * sizeof(float); }

static double running_flops(const tw_op_call *call) {
    return (call->backward ? 4.0 : 3.0) * (double)user_ops_count(&call->inputs[0]);
}

static void running_forward(const tw_op_call *call) {
    const running_attrs *attrs = call->attrs;
    const float *x = call->inputs[0].data;
    float *y = call->output->data, *sums = call->workspace;
    int64_t elements = width(&call->inputs[0]);
    for (int64_t n = 0; n < call->inputs[0].dims[0]; n++, x += elements, y += elements) {
        float sum = 0;
        for (int64_t k = 0; k < elements; k++) {
            int64_t i = attrs->reverse ? elements - 1 - k : k;
            sums[i] = sum += x[i];
        }
        for (int64_t i = 0; i < elements; i++) y[i] = tanhf(attrs->gain * sums[i]);
    }
}

static void running_backward(const tw_op_call *call) {
    const running_attrs *attrs = call->attrs;
    const float *y = call->output->data, *dy = call->output_gradient->data;
    float *dx = call->input_gradients[0].data;
    int64_t elements = width(call->output);
    for (int64_t n = 0; n < call->output->dims[0]; n++, y += elements, dy += elements, dx += elements) {
        float sum = 0;
        for (int64_t k = elements - 1; k >= 0; k--) {
            int64_t i = attrs->reverse ? elements - 1 - k : k;
            dx[i] = sum += attrs->gain * (1 - y[i] * y[i]) * dy[i];
        }
    }
}

tw_status user_ops_running_tanh(tw_context *context) {
    const tw_op_attr attrs[] = {{"gain", TW_OP_FLOAT, offsetof(running_attrs, gain), 0.5},
                                {"reverse", TW_OP_BOOL, offsetof(running_attrs, reverse), 0}};
    return tw_op_register(context, "running_tanh",
                          TW_OPTIONS(op, .attrs_size = sizeof(running_attrs), .attrs = attrs, .attr_count = 2,
                                     .backward_ignores = TW_OP_INPUT(0), .infer = running_infer,
                                     .workspace = running_workspace, .flops = running_flops,
                                     .forward_cpu = running_forward, .backward_cpu = running_backward));
}

/* ---- noise ---- */

static void noise(const tw_op_call *call, const float *from, float *to) {
    int64_t elements = width(&call->inputs[0]);
    for (int64_t n = 0; n < call->inputs[0].dims[0]; n++)
        for (int64_t i = 0; i < elements; i++) {
            uint32_t words[4];
            tw_op_draw(call, n, (uint32_t)i / 4, words);
            float u = call->training ? (float)(words[i % 4] >> 8) * 0x1p-24f : 0.5f;
            to[n * elements + i] = from[n * elements + i] * (0.5f + u);
        }
}

static void noise_forward(const tw_op_call *call) { noise(call, call->inputs[0].data, call->output->data); }
static void noise_backward(const tw_op_call *call) {
    noise(call, call->output_gradient->data, call->input_gradients[0].data);
}

tw_status user_ops_noise(tw_context *context) {
    return tw_op_register(context, "noise",
                          TW_OPTIONS(op, .forward_cpu = noise_forward, .backward_cpu = noise_backward));
}

/* ---- center ---- */

static void center(const tw_op_tensor *like, const float *from, float *to) {
    int64_t samples = like->dims[0], elements = width(like);
    for (int64_t i = 0; i < elements; i++) {
        float sum = 0;
        for (int64_t n = 0; n < samples; n++) sum += from[n * elements + i];
        for (int64_t n = 0; n < samples; n++) to[n * elements + i] = from[n * elements + i] - sum / (float)samples;
    }
}

static void center_forward(const tw_op_call *call) {
    const float *b = call->inputs[1].data;
    float *y = call->output->data;
    center(call->output, call->inputs[0].data, y);
    for (int64_t i = 0; i < user_ops_count(call->output); i++) y[i] += b[i % width(call->output)];
}

static void center_backward(const tw_op_call *call) {
    const float *dy = call->output_gradient->data;
    float *db = call->input_gradients[1].data;
    if (call->input_gradients[0].data) center(call->output_gradient, dy, call->input_gradients[0].data);
    for (int64_t i = 0; db && i < user_ops_count(call->output_gradient); i++)
        db[i % width(call->output_gradient)] += dy[i];
}

tw_status user_ops_center(tw_context *context) {
    return tw_op_register(context, "center",
                          TW_OPTIONS(op, .parameters = 1, .at_once = true, .forward_cpu = center_forward,
                                     .backward_ignores = TW_OP_INPUT(0) | TW_OP_INPUT(1) | TW_OP_OUTPUT,
                                     .backward_cpu = center_backward));
}

/* ---- positive ---- */

static void positive_forward(const tw_op_call *call) {
    const float *x = call->inputs[0].data;
    for (int64_t i = 0; i < user_ops_count(call->output); i++)
        if (x[i] < 0) tw_op_fault(call, i / width(call->output), (double)x[i]);
    memcpy(call->output->data, x, (size_t)user_ops_count(call->output) * sizeof *x);
}

static void positive_backward(const tw_op_call *call) {
    memcpy(call->input_gradients[0].data, call->output_gradient->data,
           (size_t)user_ops_count(call->output_gradient) * sizeof(float));
}

tw_status user_ops_positive(tw_context *context) {
    return tw_op_register(context, "positive",
                          TW_OPTIONS(op, .forward_cpu = positive_forward, .backward_cpu = positive_backward,
                                     .layout = TW_OP_ANY_LAYOUT, .backward_ignores = TW_OP_INPUT(0) | TW_OP_OUTPUT));
}

/* Weights and bias of a product that does batch norm by running statistics in the same go:
 *
 *   w'[o] = scale[o] * w[o]     b'[o] = scale[o] * b[o] + offset[o]
 *
 * scale = gamma / sqrt(var + epsilon) and offset = beta - mean * scale are rows of batch norm's coefficients; without a
 * bias b is 0. Reached by the folding pass alone, in programs without training (src/program/fold.c). */
#include "bias_relu.h"

enum { W, B, COEF, FOLDED_W, FOLDED_B };

/* ---- specification ---- */

static int64_t channels(const twi_call *call) { return call->operand[COEF].shape.dim[1]; }

static void run(const twi_call *call) {
    const twi_operand *w = &call->operand[W], *folded = &call->operand[FOLDED_W];
    const tw_real *from = w->data, *b = call->operand[B].data, *coef = call->operand[COEF].data;
    const tw_real *scale = coef + TWI_NORM_SCALE * channels(call), *offset = coef + TWI_NORM_OFFSET * channels(call);
    tw_real *to = folded->data, *folded_b = call->operand[FOLDED_B].data;
    const int64_t weights = twi_sample_count(w);
    for (int64_t o = call->begin; o < call->end; o++) {
        for (int64_t i = 0; i < weights; i++) to[twi_offset(folded, o, i)] = scale[o] * from[twi_offset(w, o, i)];
        folded_b[o] = (b ? scale[o] * b[o] : 0) + offset[o];
    }
}

/* ---- kernel ---- */

static const twi_kernel fold = {
    .name = "batch_norm.fold",
    .operand_count = 5,
    .operand = {{"w", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"b", TWI_READ, TWI_ACC, TWI_WHOLE, 0}, /* absent: there is none */
                {"coef", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"folded_w", TWI_WRITE, TWI_REAL, TWI_WHOLE, 0},
                {"folded_b", TWI_WRITE, TWI_REAL, TWI_WHOLE, 0}},
    .split = TWI_BY_RANGE,
    .range = channels,
    .run = run,
    .pure = true,
};

static const twi_kernel *const kernels[] = {&fold, NULL};

/* ---- cases ---- */

/* {N, C, H, W, filters, kernel, groups, what stands around: 1 a bias, + 2 a relu behind, + 4 a sum and a relu behind};
 * H 0: a dense layer */
enum { BATCH, CHANNELS, HEIGHT, WIDTH, FILTERS, KERNEL, GROUPS, REST };

static const twi_case cases[] = {
    {"convolution", {2, 3, 5, 4, 4, 3, 1, 0}},
    {"biased convolution", {2, 3, 5, 4, 4, 3, 1, 1}},
    {"convolution, relu", {1, 2, 4, 4, 3, 2, 1, 2}},
    {"groups", {2, 4, 5, 4, 6, 3, 2, 1}},
    {"dense", {3, 5, 0, 0, 4, 0, 0, 0}},
    {"biased dense, relu", {3, 5, 0, 0, 4, 0, 0, 3}},
    {"convolution, sum, relu", {2, 3, 5, 4, 3, 3, 1, 4}},
    {"large 1 image, 16 channels", {1, 16, 9, 7, 16, 3, 1, 2}},
    {"large 16 channels, sum, relu", {3, 16, 9, 7, 16, 3, 1, 5}},
    {"large 17 images, 3 channels", {17, 3, 9, 10, 16, 3, 1, 3}},
    {"large dense", {17, 65, 0, 0, 33, 0, 0, 1}},
    {NULL, {0}},
};

/* A window of odd size leaves the image as large as it is. */
static tw_value *product(twi_builder *builder, const int64_t *p, tw_value *x) {
    const twi_conv2d_attrs conv = {.stride_h = 1,
                                   .stride_w = 1,
                                   .dilation_h = 1,
                                   .dilation_w = 1,
                                   .pad_top = (int32_t)p[KERNEL] / 2,
                                   .pad_left = (int32_t)p[KERNEL] / 2,
                                   .pad_bottom = (int32_t)p[KERNEL] / 2,
                                   .pad_right = (int32_t)p[KERNEL] / 2,
                                   .groups = (int32_t)p[GROUPS]};
    if (!p[HEIGHT]) {
        tw_value *w = builder->parameter(builder, "w", 2, (int64_t[]){p[FILTERS], p[CHANNELS]});
        return builder->node(builder, "dense", "dense", 2, (tw_value *[]){x, w}, NULL);
    }
    tw_value *w =
        builder->parameter(builder, "w", 4, (int64_t[]){p[FILTERS], p[CHANNELS] / p[GROUPS], p[KERNEL], p[KERNEL]});
    return builder->node(builder, "conv2d", "conv", 2, (tw_value *[]){x, w}, &conv);
}

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    const twi_batch_norm_attrs norm = {.epsilon = 1e-5f, .momentum = 0.1f};
    const int64_t *p = c->p, *filters = &p[FILTERS], one = 1;
    tw_value *x = builder->input(builder, "x", p[HEIGHT] ? 4 : 2, p);
    tw_value *y = product(builder, p, x);
    if (p[REST] & 1) {
        tw_value *b = builder->parameter(builder, "b", 1, filters);
        y = builder->node(builder, "bias", "bias", 2, (tw_value *[]){y, b}, NULL);
    }
    tw_value *inputs[] = {y,
                          builder->parameter(builder, "gamma", 1, filters),
                          builder->parameter(builder, "beta", 1, filters),
                          builder->buffer(builder, "mean", 1, filters, 0.25),
                          builder->buffer(builder, "var", 1, filters, 1.5),
                          builder->buffer(builder, "batches", 1, &one, 0)};
    y = builder->node(builder, "batch_norm", "norm", 6, inputs, &norm);
    if (p[REST] & 4) y = builder->node(builder, "add", "add", 2, (tw_value *[]){y, x}, NULL);
    return p[REST] & 6 ? builder->node(builder, "relu", "relu", 1, &y, NULL) : y;
}

/* ---- record ---- */

const twi_op TWI_NAME(twi_op_batch_norm_fold) = {
    .name = "batch_norm_fold",
    .formula = "y = batch_norm(w x + b) = (scale w) x + (scale b + offset)",
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
    .fused = "batch_norm.fold",
    .untrained = true,
};

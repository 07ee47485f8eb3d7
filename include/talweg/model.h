/* Talweg: models. A model is a graph of ops over values, and the parameters it learns. Building one needs no device
 * memory.
 *
 * Values: functions that add to the graph return the new value, borrowed from the model, or NULL after a failure. The
 * first failure is remembered, later calls with a NULL value do nothing, and tw_model_build reports it with the layer's
 * name.
 * Images are N,C,H,W; the batch axis N is left open until a program is made. Automatic names count the calls in their
 * order: where one expression makes two layers, C does not say which comes first, so name them or use two
 * statements. */
#ifndef TALWEG_MODEL_H
#define TALWEG_MODEL_H

#include <talweg/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_model tw_model;
typedef struct tw_value tw_value;

/** An empty model. The caller owns *out. */
TW_API TW_WARN_UNUSED tw_status tw_model_create(tw_model **out, tw_context *context);
/** Frees a model, before its context; its programs, trainers and plans must be gone before. NULL is fine. */
TW_API void tw_model_destroy(tw_model *model);

typedef struct tw_model_options {
    size_t size;
    uint64_t seed; /**< governs the initial weights, and order, augmentation and dropout of trainers that set no
                        other */
} tw_model_options;
#define TW_MODEL_OPTIONS_INIT {sizeof(tw_model_options), 0}

/** Ends building: reports the first failure, checks every name, allocates the parameters and draws their initial
 *  values. output: what the model computes, e.g. logits [N, classes]. */
TW_API TW_WARN_UNUSED tw_status tw_model_build(tw_model *model, tw_value *output, const tw_model_options *options);

/** The value given to tw_model_build; NULL before. */
TW_API tw_value *tw_model_get_output(const tw_model *model);
/** The first value made by tw_input or tw_input_shaped; NULL if there is none. */
TW_API tw_value *tw_model_get_input(const tw_model *model);
/** The seed given to tw_model_build. */
TW_API uint64_t tw_model_get_seed(const tw_model *model);
/** The context the model was made from. */
TW_API tw_context *tw_model_get_context(const tw_model *model);
/** The value of that name, e.g. "conv1"; of an alias the parameter; NULL if there is none. */
TW_API tw_value *tw_model_find(const tw_model *model, const char *name);

/** A value's name. Borrowed. */
TW_API const char *tw_value_get_name(const tw_value *value);
/** Number of axes, the batch axis included. */
TW_API int tw_value_get_rank(const tw_value *value);
/** Size of an axis; 0 for the open batch axis and outside 0 .. rank-1. */
TW_API int64_t tw_value_get_dim(const tw_value *value, int axis);

/** Names made from now on begin with "name." until the matching tw_scope_end; scopes nest. */
TW_API void tw_scope_begin(tw_model *model, const char *name);
/** Ends the innermost scope. */
TW_API void tw_scope_end(tw_model *model);

/* ---- values that are fed ---- */

/** x[N, channels, height, width] */
TW_API tw_value *tw_input(tw_model *model, int64_t channels, int64_t height, int64_t width);
/** x[N, dims...] under a name of its own; rank counts the axes of one sample (0 .. TW_MAX_RANK-1). */
TW_API tw_value *tw_input_shaped(tw_model *model, const char *name, int rank, const int64_t *dims);
/** Class labels[N], whole numbers; fed from i32, i64 or u8. */
TW_API tw_value *tw_input_labels(tw_model *model, const char *name);

/* ---- initial values ---- */

typedef enum tw_init_kind {
    TW_INIT_DEFAULT = 0,         /**< weights: Kaiming uniform with a = sqrt(5), i.e. U(-1/sqrt(fan_in),
                                      1/sqrt(fan_in)); biases: the same bound (PyTorch's defaults) */
    TW_INIT_CONSTANT = 1,        /**< `value` */
    TW_INIT_KAIMING_UNIFORM = 2, /**< U(-b, b), b = sqrt(6 / fan_in) (He et al. 2015, ReLU gain) */
    TW_INIT_KAIMING_NORMAL = 3,  /**< N(0, sqrt(2 / fan_in)) */
    TW_INIT_XAVIER_UNIFORM = 4,  /**< U(-b, b), b = sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010) */
    TW_INIT_XAVIER_NORMAL = 5    /**< N(0, sqrt(2 / (fan_in + fan_out))) */
} tw_init_kind;

typedef struct tw_init {
    tw_init_kind kind;
    float value; /**< TW_INIT_CONSTANT */
} tw_init;

/* ---- layers: make parameters and append ops ---- */

typedef struct tw_conv2d_options {
    size_t size;
    const char *name;            /**< NULL: "conv1", "conv2", ... in its scope */
    int kernel_w;                /**< 0: as the kernel argument, which then is kernel height */
    int stride, stride_w;        /**< 0: 1; stride_w 0: as stride */
    int padding, padding_w;      /**< zeros on each side; padding_w 0: as padding (none: tell by no_padding_w) */
    bool no_padding_w;           /**< no padding left and right whatever `padding` says */
    int pad_bottom, pad_right;   /**< further zeros below and to the right: asymmetric padding */
    int dilation;                /**< 0: 1 */
    int groups;                  /**< 0: 1 */
    bool no_bias;
    tw_init weight_init, bias_init;
    const char *tied_to;         /**< an earlier layer, named with its scopes, whose weight (and bias, unless no_bias)
                                      is used; NULL: one's own */
} tw_conv2d_options;
#define TW_CONV2D_OPTIONS_INIT {sizeof(tw_conv2d_options), NULL, 0, 0, 0, 0, 0, false, 0, 0, 0, 0, false, {TW_INIT_DEFAULT, 0}, {TW_INIT_DEFAULT, 0}, NULL}

/** y[n,o,i,j] = b[o] + sum_{c,u,v} w[o,c,u,v] x[n,c,i*s+u*d-p,j*s+v*d-p]   x[N,C,H,W] -> y[N,out_channels,H',W'],
 *  H' = (H + pads - d(k-1) - 1)/s + 1.
 *  Parameters "name.weight" [out, C/groups, k, k], "name.bias" [out]. Errors: ARGUMENT, SHAPE naming the layer.
 *  Tied layers have one parameter: it gets the sum of their gradients, one update and one decay, and is counted and
 *  saved once. Its names under the other layers are aliases: functions that take a parameter's name take them too. */
TW_API tw_value *tw_conv2d(tw_model *model, tw_value *x, int64_t out_channels, int kernel, const tw_conv2d_options *options);

typedef struct tw_dense_options {
    size_t size;
    const char *name; /**< NULL: "fc1", "fc2", ... in its scope */
    bool no_bias;
    tw_init weight_init, bias_init;
    const char *tied_to; /**< an earlier layer, named with its scopes, whose weight (and bias, unless no_bias) is used;
                              NULL: one's own */
} tw_dense_options;
#define TW_DENSE_OPTIONS_INIT {sizeof(tw_dense_options), NULL, false, {TW_INIT_DEFAULT, 0}, {TW_INIT_DEFAULT, 0}, NULL}

/** y = x W^T + b   x[N, in] -> y[N, out]. A value with more axes is flattened first. Parameters "name.weight"
 *  [out, in], "name.bias" [out].
 *  Tied layers: as tw_conv2d. */
TW_API tw_value *tw_dense(tw_model *model, tw_value *x, int64_t out, const tw_dense_options *options);

typedef struct tw_batch_norm_options {
    size_t size;
    const char *name; /**< NULL: "bn1", "bn2", ... in its scope */
    float epsilon;    /**< 0: 1e-5 */
    float momentum;   /**< weight of the new statistics; 0: 0.1 */
    bool zero_scale;  /**< start with scale 0 (last norm of a residual branch) */
    bool frozen;      /**< training uses the running statistics too, and leaves them as they are; gamma and beta
                           learn */
} tw_batch_norm_options;
#define TW_BATCH_NORM_OPTIONS_INIT {sizeof(tw_batch_norm_options), NULL, 0, 0, false, false}

/** y = (x - mean) / sqrt(var + eps) * gamma + beta per channel (Ioffe & Szegedy 2015)   x[N,C] or x[N,C,H,W] -> y
 *  alike.
 *  Training uses the batch's mean and biased variance and updates running = (1-m) running + m batch, with the unbiased
 *  (n-1) variance; where a channel has one element only (n = 1), the biased variance 0 is used, so that a last batch of
 *  one is never fatal. Frozen norms take the running ones in training too: they are constants, nothing moves them, and
 *  a sample's result depends on no other sample.
 *  Parameters "name.weight" (gamma), "name.bias" (beta); buffers "name.running_mean", "name.running_var",
 *  "name.num_batches_tracked". */
TW_API tw_value *tw_batch_norm(tw_model *model, tw_value *x, const tw_batch_norm_options *options);

typedef struct tw_residual_options {
    size_t size;
    const char *name;      /**< scope of the block; NULL: "block1", ... */
    int stride;            /**< of the first 3x3 convolution and of the projection; 0: 1 */
    bool bottleneck;       /**< 1x1, 3x3, 1x1 with four times the channels out, stride in the 3x3 */
} tw_residual_options;
#define TW_RESIDUAL_OPTIONS_INIT {sizeof(tw_residual_options), NULL, 0, false}

/** y = relu(F(x) + S(x)), F = conv3x3-bn-relu-conv3x3-bn (He et al. 2016), S = identity, or conv1x1-bn where the shape
 *  changes. channels: of the 3x3 convolutions. Names as in PyTorch's ResNets: conv1, bn1, conv2, bn2 (, conv3, bn3),
 *  downsample.0, downsample.1. */
TW_API tw_value *tw_residual(tw_model *model, tw_value *x, int64_t channels, const tw_residual_options *options);

/* ---- ops without parameters ---- */

/** y = max(x, 0); not-a-number stays. */
TW_API tw_value *tw_relu(tw_model *model, tw_value *x);

typedef struct tw_gelu_options {
    size_t size;
    const char *name; /**< NULL: "gelu1", "gelu2", ... in its scope */
    bool tanh;        /**< Phi by tanh, within 0.0005 of the erf form; on a GPU it can be a part of the dense layer
                           before it */
} tw_gelu_options;
#define TW_GELU_OPTIONS_INIT {sizeof(tw_gelu_options), NULL, false}

/** y = x Phi(x), Phi(x) = (1 + erf(x / sqrt(2))) / 2; tanh: Phi(x) = (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
 *  Not-a-number stays. (Hendrycks & Gimpel 2016) */
TW_API tw_value *tw_gelu(tw_model *model, tw_value *x, const tw_gelu_options *options);
/** y = a + b, shapes equal. */
TW_API tw_value *tw_add(tw_model *model, tw_value *a, tw_value *b);
/** x[N, ...] -> y[N, product], logical N,C,H,W order. */
TW_API tw_value *tw_flatten(tw_model *model, tw_value *x);
/** x[N, ...] -> y[N, dims...]; rank counts the axes of one sample; one dim may be -1. */
TW_API tw_value *tw_reshape(tw_model *model, tw_value *x, int rank, const int64_t *dims);

typedef struct tw_pool_options {
    size_t size;
    const char *name;
    int kernel_w;          /**< 0: as the kernel argument */
    int stride, stride_w;  /**< 0: as the kernel */
    int padding;           /**< on each side, smaller than the kernel */
    bool ceil_mode;        /**< a last window that hangs over the edge counts, if it starts inside image or left
                                padding */
    bool exclude_padding;  /**< average pooling: divide by the elements inside the image only */
} tw_pool_options;
#define TW_POOL_OPTIONS_INIT {sizeof(tw_pool_options), NULL, 0, 0, 0, 0, false, false}

/** y = max over the window; padding never wins, the first of equals does, not-a-number wins. kernel area <= 255. */
TW_API tw_value *tw_max_pool(tw_model *model, tw_value *x, int kernel, const tw_pool_options *options);
/** y = mean over the window. */
TW_API tw_value *tw_avg_pool(tw_model *model, tw_value *x, int kernel, const tw_pool_options *options);
/** y[N,C,1,1] = mean over H and W. */
TW_API tw_value *tw_global_avg_pool(tw_model *model, tw_value *x);
/** y = x * keep / (1 - rate) in training, keep drawn anew for every element with probability 1 - rate; y = x otherwise.
 *  rate 0 .. 1. */
TW_API tw_value *tw_dropout(tw_model *model, tw_value *x, float rate);
/** y[n,i] = exp(x[n,i]) / sum_j exp(x[n,j])   x[N,C] */
TW_API tw_value *tw_softmax(tw_model *model, tw_value *x);

typedef struct tw_cross_entropy_options {
    size_t size;
    const char *name;
    float label_smoothing; /**< share of the target spread evenly over all classes; 0 .. 1 */
} tw_cross_entropy_options;
#define TW_CROSS_ENTROPY_OPTIONS_INIT {sizeof(tw_cross_entropy_options), NULL, 0}

/** loss = sum_n -log softmax(logits[n])[labels[n]], over the batch; programs report the mean and its gradients.
 *  logits[N,C], labels[N] in 0 .. C-1.
 *  A label outside makes the run fail with TW_ERROR_LABEL naming sample, value and classes; nothing is updated. */
TW_API tw_value *tw_cross_entropy(tw_model *model, tw_value *logits, tw_value *labels, const tw_cross_entropy_options *options);
/** y[n] = index of the largest x[n,:]; -1 where a row holds not-a-number. */
TW_API tw_value *tw_argmax(tw_model *model, tw_value *x);
/** y[n] = number of classes ahead of the labelled one (0: right, < 5: among the top five); C where a row holds
 *  not-a-number. */
TW_API tw_value *tw_class_rank(tw_model *model, tw_value *logits, tw_value *labels);

/* ---- parameters ---- */

/** Number of parameters and buffers, in the order they were made. */
TW_API int tw_model_count_parameters(const tw_model *model);
/** Number of learned scalars in all. */
TW_API int64_t tw_model_count_weights(const tw_model *model);

typedef struct tw_parameter {
    const char *name;
    int rank;
    int64_t dims[TW_MAX_RANK]; /**< logical: O,I,H,W; out,in */
    bool learned;              /**< false for buffers such as running statistics */
    bool trainable;            /**< false when frozen */
    bool decayed;              /**< weight decay applies by default: weights yes; biases, norm scales and buffers no */
} tw_parameter;

/** Describes parameter `index`. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_model_get_parameter(const tw_model *model, int index, tw_parameter *out);
/** Copies a parameter's values out, f32, row-major in logical order. count must fit. Errors: ARGUMENT (no such name;
 *  count), STATE before tw_model_build. */
TW_API TW_WARN_UNUSED tw_status tw_parameter_read(const tw_model *model, const char *name, float *values, int64_t count);
/** Copies values into a parameter, f32, row-major in logical order. Errors: as tw_parameter_read. */
TW_API TW_WARN_UNUSED tw_status tw_parameter_write(tw_model *model, const char *name, const float *values, int64_t count);
/** Freezes (false) or frees every parameter of which a name, alias or not, begins with `prefix`; programs made before
 *  keep what they had.
 *  Errors: ARGUMENT if none does. */
TW_API TW_WARN_UNUSED tw_status tw_model_set_trainable(tw_model *model, const char *prefix, bool trainable);
/** Sets `frozen` (tw_batch_norm_options) of every norm whose name begins with `prefix`, before or after the model is
 *  built: "" for all, as fine-tuning with small batches wants it. Their gamma and beta go on learning: see
 *  tw_model_set_trainable. Programs made before keep what they had; a trainer's fit takes it up. Errors: ARGUMENT if no
 *  norm has such a name. */
TW_API TW_WARN_UNUSED tw_status tw_model_set_statistics_frozen(tw_model *model, const char *prefix, bool frozen);

/* ---- training state ---- */

/** Number of updates committed, by whichever program. */
TW_API uint64_t tw_model_get_updates(const tw_model *model);
/** Number of training runs tried, a window of batches (tw_window_open) being one: advances even where a run failed and
 *  nothing was updated. */
TW_API uint64_t tw_model_get_attempts(const tw_model *model);
/** The learning rate of the last update. */
TW_API double tw_model_get_learning_rate(const tw_model *model);

/** The graph as text, a line a node: name, op, inputs, output shape, parameters. Borrowed until the next call; NULL
 *  after a failure. */
TW_API const char *tw_model_dump(tw_model *model);

#ifdef __cplusplus
}
#endif
#endif

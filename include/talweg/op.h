/* Talweg: ops of your own, defined outside the library. tw_op_register adds one to a context, tw_apply appends a node
 * of it to a model, tw_weight makes what it learns. From then on it is an op like the others: differentiated, planned,
 * cut into chunks, dumped.
 *
 * An op takes `inputs` values with a batch axis, then `parameters` without one, and makes one output. Its callbacks get
 * a tw_op_call and return nothing: they must not allocate, wait, or keep the call. On the CPU they are called by
 * several threads at once, each on samples of its own, so they change nothing but what the call lets them write. On
 * CUDA all pointers are of the device, and a callback only enqueues on call->stream, which may be recording: it neither
 * waits nor copies to the host. */
#ifndef TALWEG_OP_H
#define TALWEG_OP_H

#include <talweg/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most inputs of an op, parameters included. */
#define TW_OP_MAX_INPUTS 4

/** One operand of a call. Axis 0 of what has a batch axis counts the samples of this call only. */
typedef struct tw_op_tensor {
    void *data;                   /**< first element; NULL: not asked for, ignored, or only shapes are asked about */
    tw_dtype dtype;               /**< TW_F32 */
    int rank;                     /**< 0: in backward, an input that is ignored and whose gradient nobody wants */
    int64_t dims[TW_MAX_RANK];    /**< logical: N,C,H,W */
    int64_t strides[TW_MAX_RANK]; /**< in elements, an axis each; there is no gap between elements */
} tw_op_tensor;

/** What a callback is given. Made by the library, which may add fields at the end. */
typedef struct tw_op_call {
    void *user;                          /**< of tw_op_options */
    const void *attrs;                   /**< the node's copy of its attributes */
    bool training;                       /**< part of a training program (unset in infer) */
    bool backward;                       /**< tells what is asked about in workspace and flops */
    const tw_op_tensor *inputs;          /**< read only: values, then parameters */
    const tw_op_tensor *output;          /**< forward writes it; backward reads it */
    const tw_op_tensor *output_gradient; /**< backward only, read only */
    const tw_op_tensor *input_gradients; /**< backward only: those of values are written, those of parameters added to,
                                              since they are sums over samples; data NULL: nobody wants it */
    void *workspace;                     /**< as many bytes as the op's `workspace` said, aligned to 64 */
    void *stream;                        /**< CUDA: the cudaStream_t to enqueue on; NULL on the CPU */
    const void *library;                 /**< the library's own */
} tw_op_call;

typedef void (*tw_op_fn)(const tw_op_call *call);

/** How values with a batch axis lie in memory when a callback is called. */
typedef enum tw_op_layout {
    TW_OP_ROW_MAJOR = 0, /**< in logical order N,C,H,W; where they lie otherwise the library copies them before and
                              after */
    TW_OP_ANY_LAYOUT = 1 /**< as they are: the strides tell. Values of equal shape lie alike, so element by element is a
                              flat loop */
} tw_op_layout;

/** Type of an attribute's field. */
typedef enum tw_op_attr_type {
    TW_OP_INT = 0,   /**< int32_t */
    TW_OP_FLOAT = 1, /**< float */
    TW_OP_BOOL = 2,  /**< bool */
    TW_OP_INTS = 3   /**< int64_t[TW_MAX_RANK] */
} tw_op_attr_type;

/** One field of an op's attribute struct, for dumps and files: what no row describes is in neither. */
typedef struct tw_op_attr {
    const char *name;
    tw_op_attr_type type;
    size_t offset;
    double preset; /**< its value where tw_apply is given no attributes; TW_OP_INTS: zeros */
} tw_op_attr;

/** Bits of backward_ignores. */
#define TW_OP_INPUT(index) (1u << (index))
#define TW_OP_OUTPUT (1u << TW_OP_MAX_INPUTS)

typedef struct tw_op_options {
    size_t size;
    const char *formula;       /**< one line for people */
    int inputs;                /**< values with a batch axis, real numbers; 0: 1 */
    int parameters;            /**< values without one, after them */
    size_t attrs_size;         /**< bytes of the attribute struct, plain data without pointers; 0: there is none */
    const tw_op_attr *attrs;   /**< its fields, attr_count of them */
    int attr_count;
    tw_op_layout layout;
    bool at_once;              /**< a call gets the whole batch, on one thread; otherwise any run of samples: then
                                    samples must not depend on each other */
    bool nondeterministic;     /**< equal inputs may give other bits: programs with it have no plan hash */
    unsigned backward_ignores; /**< what backward does not read, so that it need not be kept: TW_OP_INPUT(i),
                                    TW_OP_OUTPUT */
    void *user;                /**< handed to every callback; borrowed until the context is gone */
    /** The shape rule: changes *output, which begins as the first input. Axis 0 stays; no data and no strides. Returns
     *  TW_OK or what tw_op_fail does. NULL: the output is like the first input. */
    tw_status (*infer)(const tw_op_call *call, tw_op_tensor *output);
    /** Bytes of workspace a call on such shapes wants. NULL: 0. */
    size_t (*workspace)(const tw_op_call *call);
    /** Operations of a call on such shapes, a multiply-add being 2. NULL: not counted. */
    double (*flops)(const tw_op_call *call);
    tw_op_fn forward_cpu;
    tw_op_fn backward_cpu;     /**< no backward on any device: no gradient flows through */
    tw_op_fn forward_cuda;     /**< on a GPU: enqueues on call->stream what computes it */
    tw_op_fn backward_cuda;
} tw_op_options;
#define TW_OP_OPTIONS_INIT {sizeof(tw_op_options), NULL, 0, 0, 0, NULL, 0, TW_OP_ROW_MAJOR, false, false, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/** Adds an op to the context, for all its models, made before or after. name: letters, digits and '_', a letter first,
 *  at most 40. All but `user` is copied. A program with an op that lacks a callback for its device is
 *  TW_ERROR_UNSUPPORTED. Errors: ARGUMENT naming the field, or for a name that is taken. */
TW_API TW_WARN_UNUSED tw_status tw_op_register(tw_context *context, const char *name, const tw_op_options *options);

/** For infer: records why the inputs do not do, with the op's and the node's name before it, and returns `status`. */
TW_API TW_WARN_UNUSED tw_status tw_op_fail(tw_status status, const char *format, ...) TW_PRINTF(2, 3);

/** For forward_cpu and backward_cpu: `value` in sample `sample` of this call will not do. The run ends as
 *  TW_ERROR_NUMERIC naming op, node, sample and value, and nothing that lasts is changed. Of several the first sample
 *  is told. */
TW_API void tw_op_fault(const tw_op_call *call, int64_t sample, double value);

/** For forward_cpu and backward_cpu: 128 random bits for place `index` of sample `sample` of this call. They depend on
 *  seed, node, run, the sample's position in the batch (or window of batches), and index alone: forward and backward
 *  draw the same, and threads and chunks do not matter. */
TW_API void tw_op_draw(const tw_op_call *call, int64_t sample, uint32_t index, uint32_t words[4]);

typedef struct tw_apply_options {
    size_t size;
    const char *name;  /**< NULL: the op's name and a number */
    const void *attrs; /**< attrs_size bytes, copied; NULL: the table's presets */
} tw_apply_options;
#define TW_APPLY_OPTIONS_INIT {sizeof(tw_apply_options), NULL, NULL}

/** y = op(inputs), by an op of tw_op_register: values first, then parameters. Errors: ARGUMENT, and those of the op's
 *  shape rule. */
TW_API tw_value *tw_apply(tw_model *model, const char *op, tw_value *const *inputs, int input_count, const tw_apply_options *options);

typedef struct tw_weight_options {
    size_t size;
    tw_init init; /**< fan_in is dims[1] * dims[2] * ..., fan_out dims[0] * dims[2] * ...; with one axis both are
                       dims[0] */
    bool decayed; /**< weight decay applies by default */
} tw_weight_options;
#define TW_WEIGHT_OPTIONS_INIT {sizeof(tw_weight_options), {TW_INIT_DEFAULT, 0}, false}

/** w[dims...], a learned parameter; rank 1 .. TW_MAX_RANK. name: as files call it, e.g. "prelu1.weight"; NULL:
 *  "weight1", ... */
TW_API tw_value *tw_weight(tw_model *model, const char *name, int rank, const int64_t *dims, const tw_weight_options *options);

#ifdef __cplusplus
}
#endif
#endif

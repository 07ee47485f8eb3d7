/* cuDNN's descriptors: what is made of them, from tensors to a plan, and running it. Which plan is made is decided in
 * cudnn_choice.c. */
#include "cudnn.h"

#ifdef TWI_HAVE_CUDNN

#include "cudnn_plan.h"

/* ---- one descriptor ---- */

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *value;
} attribute;

/* Rows of attribute tables: one value, or several. */
#define ONE(name, type, value) \
    { name, type, 1, &(value) }
#define MANY(name, type, count, values) \
    { name, type, count, values }
#define MAKE(set, out, kind, ...)                          \
    make(set, out, kind, (const attribute[]){__VA_ARGS__}, \
         (int)(sizeof((attribute[]){__VA_ARGS__}) / sizeof(attribute)))

static void cut(twi_dnn_set *set, int count) {
    while (set->count > count) (void)cudnnBackendDestroyDescriptor(set->made[--set->count]);
}

void twi_dnn_free(twi_dnn_set *set) { cut(set, 0); }

static tw_status create(twi_dnn_set *set, cudnnBackendDescriptor_t *out, cudnnBackendDescriptorType_t kind) {
    if (set->count == TWI_DNN_DESCRIPTORS)
        return TWI_FAIL(TW_ERROR_INTERNAL, "cuDNN: a graph of more than %d descriptors", TWI_DNN_DESCRIPTORS);
    TWI_CUDNN(set->dnn->device, cudnnBackendCreateDescriptor(kind, out));
    set->made[set->count++] = *out;
    return TW_OK;
}

/* Rows of no values are left out. */
static tw_status make(twi_dnn_set *set, cudnnBackendDescriptor_t *out, cudnnBackendDescriptorType_t kind,
                      const attribute *rows, int count) {
    TWI_TRY(create(set, out, kind));
    for (const attribute *a = rows; a < rows + count; a++)
        if (a->count) TWI_CUDNN(set->dnn->device, cudnnBackendSetAttribute(*out, a->name, a->type, a->count, a->value));
    TWI_CUDNN(set->dnn->device, cudnnBackendFinalize(*out));
    return TW_OK;
}

/* A descriptor learns of its device from one of these: the handle, or the description. */
static attribute handle_row(const twi_cuda_dnn *dnn, cudnnBackendAttributeName_t name) {
    return (attribute){name, CUDNN_TYPE_HANDLE, dnn->handle ? 1 : 0, &dnn->handle};
}
static attribute properties_row(const twi_cuda_dnn *dnn, cudnnBackendAttributeName_t name) {
    return (attribute){name, CUDNN_TYPE_BACKEND_DESCRIPTOR, dnn->properties ? 1 : 0, &dnn->properties};
}

/* ---- the operations ---- */

static tw_status make_tensor(twi_dnn_set *set, cudnnBackendDescriptor_t *out, const twi_dnn_tensor *t) {
    const int64_t alignment = 16; /* bytes; buffers lie on 64 */
    return MAKE(set, out, CUDNN_BACKEND_TENSOR_DESCRIPTOR, ONE(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, t->uid),
                ONE(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, t->type),
                MANY(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->dim),
                MANY(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->stride),
                ONE(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment),
                ONE(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, t->inner));
}

static const cudnnDataType_t compute = CUDNN_DATA_FLOAT;

static tw_status make_geometry(twi_dnn_set *set, cudnnBackendDescriptor_t *out, const twi_conv2d_attrs *a) {
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t axes = 2, before[] = {a->pad_top, a->pad_left}, after[] = {a->pad_bottom, a->pad_right},
                  stride[] = {a->stride_h, a->stride_w}, dilation[] = {a->dilation_h, a->dilation_w};
    return MAKE(set, out, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
                ONE(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, compute),
                ONE(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, mode),
                ONE(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, axes),
                MANY(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, before),
                MANY(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, after),
                MANY(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride),
                MANY(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation));
}

/* The three directions have descriptors and attributes of their own that mean the same. */
typedef struct direction {
    cudnnBackendDescriptorType_t kind;
    cudnnBackendAttributeName_t alpha, beta, geometry, x, w, y;
} direction;

static const direction directions[] = {
    [TWI_DNN_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    [TWI_DNN_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    [TWI_DNN_BACKWARD_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
};

/* What the operations of one graph hand from one to the next. */
typedef struct chain {
    cudnnBackendDescriptor_t y; /* what the last one wrote */
    cudnnBackendDescriptor_t operation[3];
    int count;
} chain;

static tw_status add_convolution(twi_dnn_set *set, chain *c, const twi_dnn_problem *p) {
    const direction *d = &directions[p->direction];
    const double alpha = 1, beta = 0;
    cudnnBackendDescriptor_t geometry, x, w;
    TWI_TRY(make_geometry(set, &geometry, &p->attrs));
    TWI_TRY(make_tensor(set, &x, &p->x));
    TWI_TRY(make_tensor(set, &w, &p->w));
    return MAKE(set, &c->operation[c->count++], d->kind, ONE(d->alpha, CUDNN_TYPE_DOUBLE, alpha),
                ONE(d->beta, CUDNN_TYPE_DOUBLE, beta), ONE(d->geometry, CUDNN_TYPE_BACKEND_DESCRIPTOR, geometry),
                ONE(d->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, x), ONE(d->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, w),
                ONE(d->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, c->y));
}

/* y = f(x) or f(x, b), element by element. */
static tw_status add_pointwise(twi_dnn_set *set, chain *c, cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x,
                               cudnnBackendDescriptor_t b) {
    const cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
    const bool relu = mode == CUDNN_POINTWISE_RELU_FWD;
    cudnnBackendDescriptor_t pointwise;
    TWI_TRY(MAKE(set, &pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                 ONE(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode),
                 ONE(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute),
                 MANY(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, relu ? 1 : 0, &nan)));
    return MAKE(set, &c->operation[c->count++], CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                ONE(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, pointwise),
                ONE(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, x),
                MANY(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, b ? 1 : 0, &b),
                ONE(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, c->y));
}

/* What the next operation writes: the problem's y after the last, else a tensor in f32 that never reaches memory. */
static tw_status next_output(twi_dnn_set *set, chain *c, const twi_dnn_problem *p, bool last) {
    twi_dnn_tensor y = p->y;
    if (!last) {
        y.type = compute;
        y.inner = true;
        y.uid = TWI_DNN_UID_Y + 1 + c->count;
    }
    return make_tensor(set, &c->y, &y);
}

static tw_status make_graph(twi_dnn_set *set, cudnnBackendDescriptor_t *out, const twi_dnn_problem *p) {
    chain c = {0};
    TWI_TRY(next_output(set, &c, p, !p->bias && !p->relu));
    TWI_TRY(add_convolution(set, &c, p));
    if (p->bias) {
        cudnnBackendDescriptor_t x = c.y, b;
        TWI_TRY(make_tensor(set, &b, &p->b));
        TWI_TRY(next_output(set, &c, p, !p->relu));
        TWI_TRY(add_pointwise(set, &c, CUDNN_POINTWISE_ADD, x, b));
    }
    if (p->relu) {
        cudnnBackendDescriptor_t x = c.y;
        TWI_TRY(next_output(set, &c, p, true));
        TWI_TRY(add_pointwise(set, &c, CUDNN_POINTWISE_RELU_FWD, x, NULL));
    }
    return MAKE(set, out, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                handle_row(set->dnn, CUDNN_ATTR_OPERATIONGRAPH_HANDLE),
                MANY(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, c.count, c.operation));
}

tw_status twi_dnn_make_graph(twi_dnn_plan *plan, const twi_cuda_dnn *dnn, const twi_dnn_problem *problem) {
    *plan = (twi_dnn_plan){.set.dnn = dnn};
    tw_status status = make_graph(&plan->set, &plan->graph, problem);
    if (status) twi_dnn_free(&plan->set);
    plan->graph_parts = plan->set.count;
    return status;
}

/* ---- candidates ---- */

static tw_status get(const twi_dnn_set *set, cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values) {
    TWI_CUDNN(set->dnn->device, cudnnBackendGetAttribute(from, name, type, room, count, values));
    return TW_OK;
}

/* Reads up to `most` descriptors of an attribute into new ones of the set. (Asked for their number alone, cuDNN says 0
 * of some attributes.) */
static tw_status get_descriptors(twi_dnn_set *set, cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name,
                                 cudnnBackendDescriptorType_t kind, int64_t most, int64_t *count,
                                 cudnnBackendDescriptor_t *out) {
    for (int64_t i = 0; i < most; i++) TWI_TRY(create(set, &out[i], kind));
    TWI_TRY(get(set, from, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, count, out));
    if (*count > most) *count = most;
    return TW_OK;
}

static tw_status read_choice(twi_dnn_set *set, cudnnBackendDescriptor_t config, twi_dnn_choice *choice) {
    cudnnBackendDescriptor_t engine, knob[TWI_DNN_KNOBS];
    int64_t count;
    TWI_TRY(
        get_descriptors(set, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1, &count, &engine));
    TWI_TRY(get(set, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &choice->engine));
    TWI_TRY(get_descriptors(set, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                            TWI_DNN_KNOBS, &count, knob));
    choice->knob_count = (int)count;
    for (int i = 0; i < choice->knob_count; i++) {
        cudnnBackendKnobType_t type;
        TWI_TRY(get(set, knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &count, &type));
        choice->knob[i].type = type;
        TWI_TRY(
            get(set, knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &count, &choice->knob[i].value));
    }
    return TW_OK;
}

static tw_status propose(twi_dnn_set *set, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                         twi_dnn_choice *choice, int *count) {
    cudnnBackendDescriptor_t heuristics, config[TWI_DNN_CANDIDATES];
    TWI_TRY(MAKE(set, &heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                 ONE(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph),
                 ONE(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode),
                 properties_row(set->dnn, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)));
    int64_t configs;
    TWI_TRY(get_descriptors(set, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                            TWI_DNN_CANDIDATES, &configs, config));
    for (int i = 0; i < configs; i++) {
        twi_dnn_set parts = {.dnn = set->dnn};
        tw_status status = read_choice(&parts, config[i], &choice[i]);
        twi_dnn_free(&parts);
        TWI_TRY(status);
    }
    *count = (int)configs;
    return TW_OK;
}

tw_status twi_dnn_propose(const twi_cuda_dnn *dnn, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                          twi_dnn_choice choice[TWI_DNN_CANDIDATES], int *count) {
    *count = 0;
    twi_dnn_set set = {.dnn = dnn};
    tw_status status = propose(&set, graph, mode, choice, count);
    twi_dnn_free(&set);
    return status;
}

/* ---- plans ---- */

static tw_status read_notes(twi_dnn_plan *plan, cudnnBackendDescriptor_t engine) {
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count;
    TWI_TRY(get(&plan->set, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, note));
    plan->notes = 0;
    for (int i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) plan->notes |= 1u << note[i];
    return TW_OK;
}

static tw_status add_plan(twi_dnn_plan *plan, const twi_dnn_choice *choice, uint32_t refused) {
    twi_dnn_set *set = &plan->set;
    cudnnBackendDescriptor_t engine, config, knob[TWI_DNN_KNOBS];
    TWI_TRY(MAKE(set, &engine, CUDNN_BACKEND_ENGINE_DESCRIPTOR,
                 ONE(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, plan->graph),
                 ONE(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, choice->engine),
                 properties_row(set->dnn, CUDNN_ATTR_ENGINE_DEVICEPROP)));
    TWI_TRY(read_notes(plan, engine));
    if (plan->notes & refused)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED,
                        "cuDNN: engine %lld rounds inputs or sums below f32, or changes from run to run (notes %#x)",
                        (long long)choice->engine, (unsigned)plan->notes);
    for (int i = 0; i < choice->knob_count; i++) {
        const cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)choice->knob[i].type;
        TWI_TRY(MAKE(set, &knob[i], CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                     ONE(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, type),
                     ONE(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, choice->knob[i].value)));
    }
    TWI_TRY(MAKE(set, &config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                 ONE(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, engine),
                 MANY(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, choice->knob_count, knob)));
    TWI_TRY(MAKE(set, &plan->plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                 handle_row(set->dnn, CUDNN_ATTR_EXECUTION_PLAN_HANDLE),
                 ONE(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, config),
                 properties_row(set->dnn, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)));
    int64_t count;
    plan->choice = *choice;
    return get(set, plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
               &plan->workspace_bytes);
}

void twi_dnn_drop_plan(twi_dnn_plan *plan) {
    cut(&plan->set, plan->graph_parts);
    plan->plan = NULL;
}

tw_status twi_dnn_make_plan(twi_dnn_plan *plan, const twi_dnn_choice *choice, uint32_t refused) {
    twi_dnn_drop_plan(plan);
    tw_status status = add_plan(plan, choice, refused);
    if (status) twi_dnn_drop_plan(plan);
    return status;
}

/* ---- running ---- */

static tw_status execute(twi_dnn_set *set, const twi_dnn_plan *plan, int count, const int64_t *uid, void *const *data,
                         void *workspace, cudaStream_t stream) {
    cudnnBackendDescriptor_t pack;
    TWI_TRY(MAKE(set, &pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                 MANY(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uid),
                 MANY(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data),
                 ONE(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)));
    TWI_CUDNN(set->dnn->device, cudnnSetStream(set->dnn->handle, stream));
    TWI_CUDNN(set->dnn->device, cudnnBackendExecute(set->dnn->handle, plan->plan, pack));
    return TW_OK;
}

tw_status twi_dnn_execute(const twi_dnn_plan *plan, int count, const int64_t *uid, void *const *data, void *workspace,
                          cudaStream_t stream) {
    twi_dnn_set set = {.dnn = plan->set.dnn};
    tw_status status = execute(&set, plan, count, uid, data, workspace, stream);
    twi_dnn_free(&set);
    return status;
}

#endif

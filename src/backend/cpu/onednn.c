/* oneDNN behind onednn.h: every call of its C interface, every difference between its versions, every failure as a
 * status. */
#include "onednn.h"

#ifdef TWI_HAVE_ONEDNN

#include <dnnl.h>
#include <string.h>

#define VERSION_TEXT_(major, minor, patch) "oneDNN " #major "." #minor "." #patch
#define VERSION_TEXT(major, minor, patch) VERSION_TEXT_(major, minor, patch)

const char *twi_onednn_version(void) {
    return VERSION_TEXT(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
}

/* ---- threads ---- */

/* Of the OpenMP library that oneDNN brought with it; NULL where it was built without. */
extern void omp_set_num_threads(int) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));

int twi_onednn_enter(void) {
    if (!omp_set_num_threads || !omp_get_max_threads) return 0;
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    return before;
}

void twi_onednn_leave(int before) {
    if (before) omp_set_num_threads(before);
}

bool twi_onednn_has_bf16(void) {
    const unsigned wanted = (unsigned)dnnl_cpu_isa_avx512_core_bf16;
    return ((unsigned)dnnl_get_effective_cpu_isa() & wanted) == wanted;
}

/* ---- failures ---- */

/* While things are created, a refusal of oneDNN only means that somebody else does the work; memory is another
 * matter. */
static tw_status checked(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return TW_OK;
    if (status == dnnl_out_of_memory)
        return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY, "oneDNN: the system refused memory for %s; free memory elsewhere",
                        what);
    return TWI_FAIL(TW_ERROR_UNSUPPORTED, "oneDNN: no %s (its status %d)", what, (int)status);
}

/* ---- memory descriptors: structs by value up to 2.x, handles from 3.0 on ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t layout;
typedef const_dnnl_memory_desc_t layout_view;
#define VIEW(l) (l)
static dnnl_status_t layout_create(layout *out, int rank, const twi_onednn_dims dims, bool bf16,
                                   dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(out, rank, dims, bf16 ? dnnl_bf16 : dnnl_f32, tag);
}
static void layout_destroy(layout *l) {
    if (*l) dnnl_memory_desc_destroy(*l);
}
#else
typedef dnnl_memory_desc_t layout;
typedef const dnnl_memory_desc_t *layout_view;
#define VIEW(l) (&(l))
static dnnl_status_t layout_create(layout *out, int rank, const twi_onednn_dims dims, bool bf16,
                                   dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(out, rank, dims, bf16 ? dnnl_bf16 : dnnl_f32, tag);
}
static void layout_destroy(layout *l) { (void)l; }
#endif

/* ---- the device ---- */

struct twi_onednn {
    twi_memory *memory;
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr; /* scratch comes from the caller */
    int workers;
    dnnl_stream_t stream[];
};

static tw_status open_engine(twi_onednn *onednn) {
    TWI_TRY(checked(dnnl_engine_create(&onednn->engine, dnnl_cpu, 0), "CPU engine"));
    for (int w = 0; w < onednn->workers; w++)
        TWI_TRY(checked(dnnl_stream_create(&onednn->stream[w], onednn->engine, dnnl_stream_default_flags), "stream"));
    TWI_TRY(checked(dnnl_primitive_attr_create(&onednn->attr), "attributes"));
    return checked(dnnl_primitive_attr_set_scratchpad_mode(onednn->attr, dnnl_scratchpad_mode_user),
                   "scratch of the caller's");
}

tw_status twi_onednn_open(twi_onednn **out, twi_memory *memory, int workers) {
    *out = NULL;
    twi_onednn *onednn;
    size_t bytes = sizeof *onednn + (size_t)workers * sizeof onednn->stream[0];
    TWI_TRY(twi_get(memory, &onednn, 1, bytes, "oneDNN streams"));
    onednn->memory = memory;
    onednn->workers = workers;
    tw_status status = open_engine(onednn);
    if (status) {
        twi_onednn_close(onednn);
        return status;
    }
    *out = onednn;
    return TW_OK;
}

void twi_onednn_close(twi_onednn *onednn) {
    if (!onednn) return;
    if (onednn->attr) dnnl_primitive_attr_destroy(onednn->attr);
    for (int w = 0; w < onednn->workers; w++)
        if (onednn->stream[w]) dnnl_stream_destroy(onednn->stream[w]);
    if (onednn->engine) dnnl_engine_destroy(onednn->engine);
    twi_put(onednn->memory, onednn);
}

/* ---- primitives ---- */

/* How a primitive's operand is handed over and asked about. */
typedef struct role {
    int argument;
    dnnl_query_t query;
} role;

enum { MAX_OPERANDS = TWI_ONEDNN_ROLES + 1 }; /* and the scratch */

/* One worker's memory objects of a primitive, and where they point. */
typedef struct handles {
    dnnl_memory_t memory[MAX_OPERANDS];
    void *data[MAX_OPERANDS];
} handles;

struct twi_onednn_op {
    twi_onednn *onednn;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    int operands; /* roles, then the scratch if there is any */
    int argument[MAX_OPERANDS];
    size_t scratch_bytes;
    handles worker[];
};

void twi_onednn_op_destroy(twi_onednn_op *op) {
    if (!op) return;
    for (int w = 0; w < op->onednn->workers; w++)
        for (int i = 0; i < MAX_OPERANDS; i++)
            if (op->worker[w].memory[i]) dnnl_memory_destroy(op->worker[w].memory[i]);
    if (op->primitive) dnnl_primitive_destroy(op->primitive);
    if (op->desc) dnnl_primitive_desc_destroy(op->desc);
    twi_put(op->onednn->memory, op);
}

static tw_status op_create(twi_onednn_op **out, twi_onednn *onednn) {
    size_t bytes = sizeof **out + (size_t)onednn->workers * sizeof(*out)->worker[0];
    TWI_TRY(twi_get(onednn->memory, out, 1, bytes, "oneDNN primitive"));
    (*out)->onednn = onednn;
    return TW_OK;
}

static tw_status add_operand(twi_onednn_op *op, const role *role) {
    layout_view view = dnnl_primitive_desc_query_md(op->desc, role->query, role->argument == DNNL_ARG_BIAS ? 1 : 0);
    int i = op->operands++;
    op->argument[i] = role->argument;
    for (int w = 0; w < op->onednn->workers; w++)
        TWI_TRY(checked(dnnl_memory_create(&op->worker[w].memory[i], view, op->onednn->engine, DNNL_MEMORY_NONE),
                        "memory object"));
    return TW_OK;
}

/* Compiles op->desc. */
static tw_status compile(twi_onednn_op *op, const role *roles, int count) {
    static const role scratch = {DNNL_ARG_SCRATCHPAD, dnnl_query_scratchpad_md};
    TWI_TRY(checked(dnnl_primitive_create(&op->primitive, op->desc), "primitive"));
    for (int i = 0; i < count; i++) TWI_TRY(add_operand(op, &roles[i]));
    op->scratch_bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(op->desc, scratch.query, 0));
    return op->scratch_bytes ? add_operand(op, &scratch) : TW_OK;
}

bool twi_onednn_execute(twi_onednn_op *op, int worker, void *const *data, void *scratch) {
    handles *h = &op->worker[worker];
    dnnl_exec_arg_t argument[MAX_OPERANDS];
    for (int i = 0; i < op->operands; i++) {
        void *address = op->argument[i] == DNNL_ARG_SCRATCHPAD ? scratch : data[i];
        /* Setting a handle also writes zeros into the padding of a blocked layout: only where it changes. */
        if (h->data[i] != address && dnnl_memory_set_data_handle(h->memory[i], address) != dnnl_success) return false;
        h->data[i] = address;
        argument[i] = (dnnl_exec_arg_t){.arg = op->argument[i], .memory = h->memory[i]};
    }
    return dnnl_primitive_execute(op->primitive, op->onednn->stream[worker], op->operands, argument) == dnnl_success;
}

size_t twi_onednn_scratch_bytes(const twi_onednn_op *op) { return op->scratch_bytes; }

/* ---- convolutions ---- */

static const role conv_roles[][TWI_ONEDNN_ROLES] = {
    [TWI_ONEDNN_FORWARD] = {{DNNL_ARG_SRC, dnnl_query_src_md},
                            {DNNL_ARG_WEIGHTS, dnnl_query_weights_md},
                            {DNNL_ARG_DST, dnnl_query_dst_md},
                            {DNNL_ARG_BIAS, dnnl_query_weights_md}},
    [TWI_ONEDNN_BACKWARD_DATA] = {{DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md},
                                  {DNNL_ARG_WEIGHTS, dnnl_query_weights_md},
                                  {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md}},
    [TWI_ONEDNN_BACKWARD_WEIGHTS] = {{DNNL_ARG_SRC, dnnl_query_src_md},
                                     {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md},
                                     {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md}},
};

static layout_view weight_layout(const twi_onednn_op *conv) {
    bool gradient = conv->argument[TWI_ONEDNN_W] == DNNL_ARG_DIFF_WEIGHTS;
    return dnnl_primitive_desc_query_md(conv->desc, gradient ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
}

size_t twi_onednn_weight_bytes(const twi_onednn_op *conv) { return dnnl_memory_desc_get_size(weight_layout(conv)); }

/* One direction of a convolution on given layouts; backward ones want the forward one as a hint. bias may be NULL. */
static dnnl_status_t describe(dnnl_primitive_desc_t *out, const twi_onednn *onednn, const twi_onednn_conv *conv,
                              twi_onednn_direction direction, layout_view x, layout_view w, layout_view y,
                              layout_view bias, dnnl_primitive_desc_t hint) {
    const twi_onednn_dims gaps = {conv->dilation[0] - 1, conv->dilation[1] - 1};
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
    if (direction == TWI_ONEDNN_FORWARD)
        return dnnl_convolution_forward_primitive_desc_create(out, onednn->engine, dnnl_forward_training, direct, x, w,
                                                              bias, y, conv->stride, gaps, conv->padding,
                                                              conv->padding_end, onednn->attr);
    if (direction == TWI_ONEDNN_BACKWARD_DATA)
        return dnnl_convolution_backward_data_primitive_desc_create(out, onednn->engine, direct, x, w, y, conv->stride,
                                                                    gaps, conv->padding, conv->padding_end, hint,
                                                                    onednn->attr);
    return dnnl_convolution_backward_weights_primitive_desc_create(out, onednn->engine, direct, x, w, NULL, y,
                                                                   conv->stride, gaps, conv->padding, conv->padding_end,
                                                                   hint, onednn->attr);
#else
    dnnl_convolution_desc_t desc;
    dnnl_status_t status;
    if (direction == TWI_ONEDNN_FORWARD)
        status = dnnl_dilated_convolution_forward_desc_init(&desc, dnnl_forward_training, direct, x, w, bias, y,
                                                            conv->stride, gaps, conv->padding, conv->padding_end);
    else if (direction == TWI_ONEDNN_BACKWARD_DATA)
        status = dnnl_dilated_convolution_backward_data_desc_init(&desc, direct, x, w, y, conv->stride, gaps,
                                                                  conv->padding, conv->padding_end);
    else
        status = dnnl_dilated_convolution_backward_weights_desc_init(&desc, direct, x, w, NULL, y, conv->stride, gaps,
                                                                     conv->padding, conv->padding_end);
    return status ? status : dnnl_primitive_desc_create(out, &desc, onednn->attr, onednn->engine, hint);
#endif
}

typedef struct conv_layouts {
    layout x, w, y, bias, dw;
} conv_layouts;

static tw_status describe_conv(twi_onednn_op *op, const twi_onednn_conv *conv, conv_layouts *l,
                               const twi_onednn_op *like) {
    const bool bf16 = conv->bf16;
    const twi_onednn_dims channels = {conv->y[1]};
    TWI_TRY(checked(layout_create(&l->x, 4, conv->x, bf16, dnnl_nhwc), "layout of images"));
    TWI_TRY(checked(layout_create(&l->w, 4, conv->w, bf16, dnnl_format_tag_any), "layout of weights"));
    TWI_TRY(checked(layout_create(&l->dw, 4, conv->w, false, dnnl_format_tag_any), "layout of a gradient"));
    TWI_TRY(checked(layout_create(&l->y, 4, conv->y, bf16, dnnl_nhwc), "layout of images"));
    TWI_TRY(checked(layout_create(&l->bias, 1, channels, bf16, dnnl_a), "layout of a bias"));
    layout_view own = conv->direction == TWI_ONEDNN_BACKWARD_WEIGHTS ? VIEW(l->dw) : VIEW(l->w);
    layout_view w = like ? weight_layout(like) : own, bias = conv->bias ? VIEW(l->bias) : NULL;
    if (conv->direction == TWI_ONEDNN_FORWARD)
        return checked(describe(&op->desc, op->onednn, conv, TWI_ONEDNN_FORWARD, VIEW(l->x), w, VIEW(l->y), bias, NULL),
                       "convolution of this kind");
    dnnl_primitive_desc_t hint;
    TWI_TRY(
        checked(describe(&hint, op->onednn, conv, TWI_ONEDNN_FORWARD, VIEW(l->x), VIEW(l->w), VIEW(l->y), NULL, NULL),
                "convolution of this kind"));
    dnnl_status_t status =
        describe(&op->desc, op->onednn, conv, conv->direction, VIEW(l->x), w, VIEW(l->y), NULL, hint);
    dnnl_primitive_desc_destroy(hint);
    return checked(status, "gradient of a convolution of this kind");
}

/* oneDNN falls back silently to loops that only define the result. */
static tw_status refuse_reference(const twi_onednn_op *op) {
    const char *name = "";
    TWI_TRY(
        checked(dnnl_primitive_desc_query(op->desc, dnnl_query_impl_info_str, 0, (void *)&name), "name of its code"));
    if (strncmp(name, "ref", 3) == 0)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "oneDNN: only its reference loops (%s) do this convolution", name);
    return TW_OK;
}

tw_status twi_onednn_conv_create(twi_onednn_op **out, twi_onednn *onednn, const twi_onednn_conv *conv,
                                 const twi_onednn_op *like) {
    *out = NULL;
    twi_onednn_op *op;
    TWI_TRY(op_create(&op, onednn));
    conv_layouts layouts;
    memset(&layouts, 0, sizeof layouts);
    tw_status status = describe_conv(op, conv, &layouts, like);
    if (!status) status = refuse_reference(op);
    if (!status) status = compile(op, conv_roles[conv->direction], conv->bias ? TWI_ONEDNN_ROLES : TWI_ONEDNN_BIAS);
    layout_destroy(&layouts.x);
    layout_destroy(&layouts.w);
    layout_destroy(&layouts.y);
    layout_destroy(&layouts.bias);
    layout_destroy(&layouts.dw);
    if (status)
        twi_onednn_op_destroy(op);
    else
        *out = op;
    return status;
}

static tw_status compile_reorder(twi_onednn_op *op, layout_view from, layout_view to) {
    static const role roles[] = {{DNNL_ARG_FROM, dnnl_query_src_md}, {DNNL_ARG_TO, dnnl_query_dst_md}};
    dnnl_engine_t engine = op->onednn->engine;
    TWI_TRY(checked(dnnl_reorder_primitive_desc_create(&op->desc, from, engine, to, engine, op->onednn->attr),
                    "change of the weights' layout"));
    return compile(op, roles, 2);
}

tw_status twi_onednn_reorder_create(twi_onednn_op **out, const twi_onednn_op *op, const twi_onednn_conv *conv,
                                    bool inward, bool bf16) {
    *out = NULL;
    twi_onednn_op *reorder;
    TWI_TRY(op_create(&reorder, op->onednn));
    layout plain;
    tw_status status = checked(layout_create(&plain, 4, conv->w, bf16, dnnl_ohwi), "layout of weights");
    if (!status) {
        layout_view theirs = weight_layout(op);
        status = compile_reorder(reorder, inward ? VIEW(plain) : theirs, inward ? theirs : VIEW(plain));
        layout_destroy(&plain);
    }
    if (status)
        twi_onednn_op_destroy(reorder);
    else
        *out = reorder;
    return status;
}

#else

const char *twi_onednn_version(void) { return "no oneDNN"; }

bool twi_onednn_has_bf16(void) { return false; }

int twi_onednn_enter(void) { return 0; }
void twi_onednn_leave(int before) { (void)before; }

tw_status twi_onednn_open(twi_onednn **out, twi_memory *memory, int workers) {
    (void)memory;
    (void)workers;
    *out = NULL;
    return TW_OK;
}
void twi_onednn_close(twi_onednn *onednn) { (void)onednn; }

#endif

/* The family of convolutions that cuDNN runs: kernel records and operands become problems, problems become plans.
 *
 * cuDNN has no precompiled code for weight gradients in f32 of images in half precision. So they are summed in f32,
 * written in the images' type to the workspace, and widened from there: rounded once. A gradient beyond the range of
 * f16 becomes infinite, which the check of gradients before the commit finds. */
#include "cudnn.h"

#ifdef TWI_HAVE_CUDNN

#include "cudnn_plan.h"
#include "kernel_table.h"

#include <stdio.h>
#include <string.h>

/* ---- kernel records ---- */

typedef struct served {
    const char *kernel;
    uint8_t direction;
    int8_t x, w, b, y; /* operands; b -1: no bias */
    bool relu;
} served;

static const served table[] = {
    {"conv2d.forward", TWI_DNN_FORWARD, 0, 1, -1, 2, false},
    {"conv2d.forward_bias", TWI_DNN_FORWARD, 0, 1, 2, 3, false},
    {"conv2d.forward_bias_relu", TWI_DNN_FORWARD, 0, 1, 2, 3, true},
    {"conv2d.backward_data", TWI_DNN_BACKWARD_DATA, 2, 1, -1, 0, false},
    {"conv2d.backward_weights", TWI_DNN_BACKWARD_WEIGHTS, 0, 2, -1, 1, false},
};

static const served *find_served(const char *kernel) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].kernel, kernel) == 0) return &table[i];
    return NULL;
}

/* ---- operands ---- */

static bool type_of(cudnnDataType_t *out, const twi_operand *operand) {
    static const cudnnDataType_t types[] = {
        [TW_F32] = CUDNN_DATA_FLOAT, [TW_F16] = CUDNN_DATA_HALF, [TW_BF16] = CUDNN_DATA_BFLOAT16};
    const bool real = operand->store == TWI_REAL;
    if (!real && operand->store != TWI_ACC) return false;
    if (real && operand->dtype >= sizeof types / sizeof *types) return false;
    *out = real ? types[operand->dtype] : CUDNN_DATA_FLOAT;
    return true;
}

static bool image_of(twi_dnn_tensor *out, int64_t uid, const twi_operand *operand) {
    *out = (twi_dnn_tensor){.uid = uid};
    if (operand->shape.rank != 4 || !type_of(&out->type, operand)) return false;
    for (int axis = 0; axis < 4; axis++) {
        out->dim[axis] = operand->shape.dim[axis];
        out->stride[axis] = operand->stride[axis];
        if (out->dim[axis] < 1 || out->stride[axis] < 1) return false;
    }
    return true;
}

/* A vector over the channels. */
static bool bias_of(twi_dnn_tensor *out, const twi_operand *operand) {
    *out = (twi_dnn_tensor){.uid = TWI_DNN_UID_B};
    if (operand->shape.rank != 1 || operand->shape.dim[0] < 1 || operand->stride[0] != 1) return false;
    const int64_t channels = operand->shape.dim[0];
    const int64_t dim[4] = {1, channels, 1, 1}, stride[4] = {channels, 1, channels, channels};
    memcpy(out->dim, dim, sizeof dim);
    memcpy(out->stride, stride, sizeof stride);
    return type_of(&out->type, operand);
}

/* Gradients of weights may be f32 beside images in half precision. */
static bool are_alike(const twi_dnn_problem *p) {
    const cudnnDataType_t type = p->x.type;
    const bool gradient = p->direction == TWI_DNN_BACKWARD_WEIGHTS && p->w.type == CUDNN_DATA_FLOAT;
    return p->y.type == type && (p->w.type == type || gradient) && (!p->bias || p->b.type == type);
}

static tw_status describe(twi_dnn_problem *p, const served *s, const twi_call *call) {
    *p = (twi_dnn_problem){.direction = (twi_dnn_direction)s->direction,
                           .attrs = *(const twi_conv2d_attrs *)call->attrs,
                           .bias = s->b >= 0,
                           .relu = s->relu,
                           .tf32 = call->tf32};
    if (image_of(&p->x, TWI_DNN_UID_X, &call->operand[s->x]) && image_of(&p->w, TWI_DNN_UID_W, &call->operand[s->w]) &&
        image_of(&p->y, TWI_DNN_UID_Y, &call->operand[s->y]) && (!p->bias || bias_of(&p->b, &call->operand[s->b])) &&
        are_alike(p))
        return TW_OK;
    return TWI_FAIL(TW_ERROR_UNSUPPORTED,
                    "cuDNN: %s: wants images of one element or more an axis, all in f32, all in f16 or all in bf16",
                    s->kernel);
}

/* ---- gradients in between ---- */

enum { ALIGNMENT = 256 };

/* Makes the weights' gradient one in half precision; false if it is not one dense block. */
static bool narrow(twi_dnn_problem *p) {
    int64_t count = 1, last = 0;
    for (int axis = 0; axis < 4; axis++) {
        count *= p->w.dim[axis];
        last += (p->w.dim[axis] - 1) * p->w.stride[axis];
    }
    p->w.type = p->x.type;
    return last + 1 == count;
}

/* ---- the family ---- */

typedef struct state {
    const served *served;
    twi_dnn_plan plan;
    size_t narrow_bytes; /* at the workspace's beginning: the gradient in half precision; 0: it is written at once */
    int64_t narrow_count;
    bool bf16;
    char name[32];
} state;

static tw_status plan_narrow(state *s, twi_dnn_problem *p) {
    if (p->w.type == p->x.type) return TW_OK;
    if (!narrow(p))
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "cuDNN: %s: the gradient is not one dense block", s->served->kernel);
    s->narrow_count = p->w.dim[0] * p->w.dim[1] * p->w.dim[2] * p->w.dim[3];
    s->narrow_bytes = (size_t)(2 * s->narrow_count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    s->bf16 = p->x.type == CUDNN_DATA_BFLOAT16;
    return TW_OK;
}

/* The engine and a fingerprint of its settings: they are part of what a run's bits depend on. */
static void name_state(state *s) {
    const twi_dnn_choice *choice = &s->plan.choice;
    unsigned settings = 0;
    for (int i = 0; i < choice->knob_count; i++)
        settings = (settings * 31 + (unsigned)choice->knob[i].type) * 31 + (unsigned)choice->knob[i].value;
    snprintf(s->name, sizeof s->name, "cudnn:%lld.%04x", (long long)choice->engine, settings & 0xffff);
}

static void release(twi_cuda_site *site) {
    state *s = site->state;
    if (!s) return;
    twi_dnn_free(&s->plan.set);
    twi_put(site->device->context->memory, s);
    site->state = NULL;
}

static tw_status prepare(twi_cuda_site *site, const twi_call *call) {
    twi_cuda_dnn *dnn = site->device->dnn;
    const served *served = find_served(site->kernel->name);
    if (!dnn) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "cuDNN: not opened on this device");
    if (!served) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "cuDNN: not used for %s", site->kernel->name);
    twi_dnn_problem problem;
    TWI_TRY(describe(&problem, served, call));
    problem.workspace_limit = site->workspace_limit;
    state *s;
    TWI_TRY(twi_get(dnn->memory, &s, 1, sizeof *s, "cuDNN plan"));
    s->served = served;
    site->state = s;
    tw_status status = plan_narrow(s, &problem);
    if (!status) status = twi_dnn_choose(dnn, &s->plan, &problem);
    if (status) {
        release(site);
        return status;
    }
    name_state(s);
    site->name = s->name;
    site->workspace_bytes = s->narrow_bytes + (size_t)s->plan.workspace_bytes;
    return TW_OK;
}

static tw_status launch(const twi_cuda_site *site, const twi_call *call, void *workspace, cudaStream_t stream) {
    const state *s = site->state;
    const int8_t operand[] = {s->served->x, s->served->w, s->served->y, s->served->b};
    static const int64_t uid[] = {TWI_DNN_UID_X, TWI_DNN_UID_W, TWI_DNN_UID_Y, TWI_DNN_UID_B};
    void *data[4] = {NULL};
    const int count = s->served->b < 0 ? 3 : 4;
    for (int i = 0; i < count; i++) data[i] = call->operand[operand[i]].data;
    void *rest = workspace, *wide = data[1];
    if (s->narrow_bytes) {
        data[1] = workspace;
        rest = (char *)workspace + s->narrow_bytes;
    }
    TWI_TRY(twi_dnn_execute(&s->plan, count, uid, data, s->plan.workspace_bytes ? rest : NULL, stream));
    if (!s->narrow_bytes) return TW_OK;
    return twi_cuda_check(site->device, twk_widen(wide, data[1], s->bf16, s->narrow_count, stream), s->served->kernel);
}

#else

static tw_status prepare(twi_cuda_site *site, const twi_call *call) {
    (void)site, (void)call;
    return TWI_FAIL(TW_ERROR_UNSUPPORTED, "cuDNN: built without cuDNN");
}
static void release(twi_cuda_site *site) { (void)site; }
static tw_status launch(const twi_cuda_site *site, const twi_call *call, void *workspace, cudaStream_t stream) {
    (void)workspace, (void)stream;
    return prepare((twi_cuda_site *)site, call);
}

#endif

const twi_cuda_family twi_cuda_cudnn = {.name = "cudnn", .prepare = prepare, .release = release, .launch = launch};

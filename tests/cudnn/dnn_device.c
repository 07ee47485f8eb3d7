/* See dnn_device.h. */
#include "dnn_device.h"

#include "base/half.h"
#include "check.h"
#include "cudnn_stand_in.h"
#include "emu.h"
#include "ops/op.h"

#include <math.h>
#include <stdio.h>

/* ---- the device ---- */

tw_status dnn_device_open(dnn_device *d, const tw_context_options *context_options,
                          const twi_cuda_dnn_options *options) {
    static const twi_cuda_dnn_options nowhere = {.cache_folder = ""};
    *d = (dnn_device){.backend = {.get = twi_cuda_get, .put = twi_cuda_put}};
    static const tw_context_options alone = {sizeof alone, .threads = 1};
    TWI_TRY(twi_context_open(&d->context, context_options ? context_options : &alone));
    d->own_blocks = twi_memory_get_stats(d->context->memory).blocks;
    d->context->backend = &d->backend;
    d->context->device = &d->device;
    d->device = (twi_cuda_device){.context = d->context,
                                  .capability = 90,
                                  .processors = 132,
                                  .total_bytes = (size_t)32 << 30,
                                  .name = "emulated"};
    TWI_CUDA(&d->device, cudaStreamCreateWithFlags(&d->device.stream, cudaStreamNonBlocking));
    TWI_CUDA(&d->device, cudaStreamCreateWithFlags(&d->launches, cudaStreamNonBlocking));
    return twi_cuda_dnn_open(&d->device.dnn, &d->device, options ? options : &nowhere);
}

void dnn_device_close(dnn_device *d) {
    twi_cuda_dnn_close(d->device.dnn);
    if (d->device.stream) (void)cudaStreamDestroy(d->device.stream);
    if (d->launches) (void)cudaStreamDestroy(d->launches);
    (void)cudaGetLastError();
    assert_int_equal(cudnn_stand_in_count_live(), 0);
    assert_int_equal(emu_count_live(), 0);
    if (!d->context) return;
    twi_put(d->context->memory, d->device.block);
    assert_int_equal(twi_memory_get_stats(d->context->memory).blocks, d->own_blocks);
    twi_context_close(d->context);
}

/* ---- operands ---- */

enum { OPERANDS = 4 };

typedef struct operands {
    int64_t count[OPERANDS];
    float *host[OPERANDS]; /* as the specification gets them; rounded to the type */
    void *device[OPERANDS];
    void *workspace;
} operands;

static bool has_bias(const char *kernel) { return strstr(kernel, "bias") != NULL; }
static size_t type_bytes(tw_dtype type) { return type == TW_F32 ? 4 : 2; }
static tw_dtype type_of(const dnn_run *run, const twi_operand *o) { return o->store == TWI_ACC ? TW_F32 : run->dtype; }

void dnn_call(twi_call *call, const dnn_run *run) {
    static float anything;
    conv_check_call(call, run->c, run->kernel, NULL, NULL, has_bias(run->kernel) ? &anything : NULL, NULL);
    for (twi_operand *operand = call->operand; operand < call->operand + TWI_MAX_OPERANDS; operand++) {
        operand->data = NULL;
        if (operand->store == TWI_REAL) operand->dtype = (uint8_t)run->dtype;
        if (run->rows) twi_shape_row_major(&operand->shape, operand->stride);
    }
}

static float next_number(void) {
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static void fill(operands *all, const twi_call *call, const dnn_run *run) {
    for (int o = 0; o < call->operand_count; o++) {
        all->count[o] = twi_shape_count(&call->operand[o].shape);
        all->host[o] = calloc((size_t)all->count[o], sizeof(float));
        assert_non_null(all->host[o]);
        if (o == call->operand_count - 1) continue; /* the output */
        void *rounded = calloc((size_t)all->count[o], sizeof(float));
        for (int64_t i = 0; i < all->count[o]; i++) all->host[o][i] = next_number();
        if (run->with_nan && o == 0) all->host[0][0] = NAN;
        twi_convert(rounded, run->dtype, all->host[o], TW_F32, all->count[o]);
        twi_convert(all->host[o], TW_F32, rounded, run->dtype, all->count[o]);
        free(rounded);
    }
}

static void free_host(operands *all) {
    for (int o = 0; o < OPERANDS; o++) free(all->host[o]);
}

/* Device copies; the output is left at not-a-number. */
static tw_status upload(dnn_device *d, operands *all, const twi_call *call, const dnn_run *run) {
    for (int o = 0; o < call->operand_count; o++) {
        const tw_dtype type = type_of(run, &call->operand[o]);
        const size_t bytes = (size_t)all->count[o] * type_bytes(type);
        TWI_TRY(twi_cuda_get(d->context, &all->device[o], bytes, "operand"));
        TWI_CUDA(&d->device, cudaMemsetAsync(all->device[o], 0xff, bytes, d->device.stream));
        if (o == call->operand_count - 1) continue;
        void *typed = malloc(bytes);
        twi_convert(typed, type, all->host[o], TW_F32, all->count[o]);
        cudaError_t error = cudaMemcpyAsync(all->device[o], typed, bytes, cudaMemcpyHostToDevice, d->device.stream);
        if (!error) error = cudaStreamSynchronize(d->device.stream);
        free(typed);
        TWI_CUDA(&d->device, error);
    }
    return TW_OK;
}

/* ---- running ---- */

/* What is left in the output by work that escaped the capture is overwritten before the graph runs. */
static tw_status launch_captured(dnn_device *d, const twi_cuda_site *site, const twi_call *call, void *workspace,
                                 size_t output_bytes) {
    cudaStream_t stream = d->launches;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    TWI_CUDA(&d->device, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    tw_status status = site->family->launch(site, call, workspace, stream);
    tw_status ended = twi_cuda_check(&d->device, cudaStreamEndCapture(stream, &graph), "capture");
    if (!status) status = ended;
    TWI_CUDA(&d->device, cudaMemset(call->operand[call->operand_count - 1].data, 0xff, output_bytes));
    if (!status) status = twi_cuda_check(&d->device, cudaGraphInstantiate(&ready, graph, 0), "instantiate");
    for (int i = 0; i < 2 && !status; i++)
        status = twi_cuda_check(&d->device, cudaGraphLaunch(ready, stream), "launch");
    (void)cudaStreamSynchronize(stream);
    if (ready) (void)cudaGraphExecDestroy(ready);
    if (graph) (void)cudaGraphDestroy(graph);
    return status;
}

static tw_status launch(dnn_device *d, const twi_cuda_site *site, twi_call *call, operands *all, const dnn_run *run) {
    TWI_TRY(upload(d, all, call, run));
    if (site->workspace_bytes) TWI_TRY(twi_cuda_get(d->context, &all->workspace, site->workspace_bytes, "workspace"));
    TWI_CUDA(&d->device, cudaStreamSynchronize(d->device.stream)); /* new memory is cleared there */
    for (int o = 0; o < call->operand_count; o++) call->operand[o].data = all->device[o];
    if (run->fail) emu_fail_call(run->fail, NULL);
    if (run->broken) emu_break_device(cudaErrorIllegalAddress);
    const int output = call->operand_count - 1;
    const size_t output_bytes = (size_t)all->count[output] * type_bytes(type_of(run, &call->operand[output]));
    if (run->captured) return launch_captured(d, site, call, all->workspace, output_bytes);
    TWI_TRY(site->family->launch(site, call, all->workspace, d->launches));
    TWI_CUDA(&d->device, cudaStreamSynchronize(d->launches));
    return TW_OK;
}

static tw_status download(dnn_device *d, const operands *all, int output, tw_dtype type, float *out) {
    const size_t bytes = (size_t)all->count[output] * type_bytes(type);
    void *typed = malloc(bytes);
    cudaError_t error = cudaMemcpyAsync(typed, all->device[output], bytes, cudaMemcpyDeviceToHost, d->device.stream);
    if (!error) error = cudaStreamSynchronize(d->device.stream);
    if (!error) twi_convert(out, TW_F32, typed, type, all->count[output]);
    free(typed);
    TWI_CUDA(&d->device, error);
    return TW_OK;
}

/* ---- comparing ---- */

static void specify(const operands *all, const twi_call *call, const dnn_run *run) {
    const twi_kernel *kernel = twi_registry_find_kernel(&twi_registry_builtin, run->kernel);
    assert_non_null(kernel);
    twi_call host = *call;
    for (int o = 0; o < host.operand_count; o++) {
        host.operand[o].data = all->host[o];
        host.operand[o].dtype = TW_F32;
    }
    kernel->run(&host);
}

/* Of products of numbers below 1: a rounding a term, and one to the stored type. Weight gradients of halves are rounded
 * to halves on their way, whatever they are stored in. */
static void compare(const operands *all, const twi_call *call, const dnn_run *run, const float *found) {
    static const double roundings[] = {[TW_F32] = 0x1p-23, [TW_F16] = 0x1p-11, [TW_BF16] = 0x1p-8};
    const int output = call->operand_count - 1;
    const conv_check_case *c = run->c;
    const twi_shape *dy = &call->operand[strstr(run->kernel, "weights") ? 1 : 0].shape;
    const double terms = strstr(run->kernel, "weights") ? (double)(dy->dim[0] * dy->dim[2] * dy->dim[3])
                                                        : (double)(c->kernel_h * c->kernel_w * (c->c + c->o));
    for (int64_t i = 0; i < all->count[output]; i++) {
        const float want = all->host[output][i];
        const double allowed = terms * 0x1p-22 + fabs((double)want) * roundings[run->dtype];
        if (isnan(want) ? isnan(found[i]) : fabs((double)found[i] - (double)want) <= allowed) continue;
        fail_msg("%s by %s: element %lld is %.9g, expected %.9g", run->kernel, run->plan, (long long)i, found[i], want);
    }
}

static tw_status run_prepared(dnn_device *d, const twi_cuda_site *site, twi_call *call, dnn_run *run) {
    const int output = call->operand_count - 1;
    operands all = {0};
    fill(&all, call, run);
    specify(&all, call, run);
    float *found = calloc((size_t)all.count[output], sizeof *found);
    tw_status status = launch(d, site, call, &all, run);
    if (!status) status = download(d, &all, output, type_of(run, &call->operand[output]), found);
    if (!status) compare(&all, call, run, found);
    (void)cudaDeviceSynchronize();
    for (int o = 0; o < OPERANDS; o++) twi_cuda_put(d->context, all.device[o]);
    twi_cuda_put(d->context, all.workspace);
    free(found);
    free_host(&all);
    return status;
}

static tw_status prepare_and(dnn_device *d, dnn_run *run,
                             tw_status (*then)(dnn_device *, const twi_cuda_site *, twi_call *, dnn_run *)) {
    twi_call call;
    dnn_call(&call, run);
    const twi_kernel kernel = {.name = run->kernel};
    twi_cuda_site site = {.family = &twi_cuda_cudnn, .kernel = &kernel, .device = &d->device};
    TWI_TRY(twi_cuda_cudnn.prepare(&site, &call));
    snprintf(run->plan, sizeof run->plan, "%s", site.name);
    run->workspace_bytes = site.workspace_bytes;
    tw_status status = then ? then(d, &site, &call, run) : TW_OK;
    twi_cuda_cudnn.release(&site);
    return status;
}

tw_status dnn_prepare(dnn_device *d, dnn_run *run) { return prepare_and(d, run, NULL); }
tw_status dnn_run_and_compare(dnn_device *d, dnn_run *run) { return prepare_and(d, run, run_prepared); }

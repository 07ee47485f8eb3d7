/* How long a plan takes on the device, on memory borrowed for the purpose. */
#include "cudnn.h"

#ifdef TWI_HAVE_CUDNN

#include "backend/backend.h"
#include "cudnn_plan.h"

enum { TENSORS = 4, BLOCKS = TENSORS + 1, RUNS = 3 };

typedef struct bench {
    const twi_dnn_plan *plan;
    twi_cuda_device *device;
    cudaEvent_t begin, end;
    void *block[BLOCKS]; /* the tensors, then the workspace */
    int64_t uid[TENSORS];
    int tensors;
} bench;

static size_t bytes_of(const twi_dnn_tensor *t) {
    int64_t last = 0;
    for (int axis = 0; axis < 4; axis++) last += (t->dim[axis] - 1) * t->stride[axis];
    return (size_t)(last + 1) * (t->type == CUDNN_DATA_FLOAT ? 4 : 2);
}

static tw_status borrow(bench *b, int block, size_t bytes) {
    tw_context *context = b->device->context;
    return context->backend->get(context, &b->block[block], bytes, "trial of convolutions");
}

static tw_status set_up(bench *b, const twi_dnn_problem *p) {
    const twi_dnn_tensor *tensor[TENSORS] = {&p->x, &p->w, &p->y, &p->b};
    b->tensors = p->bias ? TENSORS : TENSORS - 1;
    for (int i = 0; i < b->tensors; i++) {
        b->uid[i] = tensor[i]->uid;
        TWI_TRY(borrow(b, i, bytes_of(tensor[i])));
    }
    if (b->plan->workspace_bytes) TWI_TRY(borrow(b, TENSORS, (size_t)b->plan->workspace_bytes));
    TWI_CUDA(b->device, cudaEventCreate(&b->begin));
    TWI_CUDA(b->device, cudaEventCreate(&b->end));
    return TW_OK;
}

static tw_status run(const bench *b) {
    return twi_dnn_execute(b->plan, b->tensors, b->uid, b->block, b->block[TENSORS], b->device->stream);
}

/* The first run, which loads code, is not counted. */
static tw_status measure(const bench *b, double *seconds) {
    float milliseconds;
    TWI_TRY(run(b));
    TWI_CUDA(b->device, cudaEventRecord(b->begin, b->device->stream));
    for (int i = 0; i < RUNS; i++) TWI_TRY(run(b));
    TWI_CUDA(b->device, cudaEventRecord(b->end, b->device->stream));
    TWI_CUDA(b->device, cudaEventSynchronize(b->end));
    TWI_CUDA(b->device, cudaEventElapsedTime(&milliseconds, b->begin, b->end));
    *seconds = milliseconds / 1e3 / RUNS;
    return TW_OK;
}

tw_status twi_dnn_time(const twi_dnn_plan *plan, const twi_dnn_problem *problem, double *seconds) {
    bench b = {.plan = plan, .device = plan->set.dnn->device};
    tw_context *context = b.device->context;
    tw_status status = set_up(&b, problem);
    if (!status) status = measure(&b, seconds);
    if (status) (void)cudaStreamSynchronize(b.device->stream); /* runs may be under way */
    if (b.begin) (void)cudaEventDestroy(b.begin);
    if (b.end) (void)cudaEventDestroy(b.end);
    for (int i = 0; i < BLOCKS; i++) context->backend->put(context, b.block[i]);
    return status;
}

#endif

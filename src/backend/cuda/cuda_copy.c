/* Copies in stream order. What comes in is first copied to pinned memory, so that its owner has it back at once and the
 * device fetches it when its turn comes: slots of two sizes, since the few numbers of a run must not wait for the data of
 * the last. Reusing a slot waits for its last copy. */
#include "cuda_copy.h"
#include "cuda_memory.h"

#include <string.h>

/* Two large slots, so that one is filled while the other is read; as many small ones as runs can be in flight, and more. */
enum { LARGE = 0, SMALL = 1, KINDS = 2, SLOTS_MAX = 16, MARKS = TWI_IN_FLIGHT_MAX + 1 };

static const struct {
    size_t bytes;
    int slots;
} kinds[KINDS] = {{(size_t)4 << 20, 2}, {(size_t)4 << 10, SLOTS_MAX}};

typedef struct slot {
    unsigned char *host;
    cudaEvent_t copied;
    bool used;
} slot;

struct twi_cuda_copies {
    slot slot[KINDS][SLOTS_MAX];
    int next[KINDS];
    cudaEvent_t mark[MARKS];
};

static tw_status open_all(twi_cuda_device *device, twi_cuda_copies *copies) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < kinds[kind].slots; i++) {
            slot *s = &copies->slot[kind][i];
            void *host;
            TWI_TRY(twi_cuda_get_host(device->context, &host, kinds[kind].bytes, "pinned memory"));
            s->host = host;
            TWI_CUDA(device, cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming));
        }
    for (int i = 0; i < MARKS; i++)
        TWI_CUDA(device, cudaEventCreateWithFlags(&copies->mark[i], cudaEventDisableTiming));
    return TW_OK;
}

tw_status twi_cuda_copies_open(twi_cuda_device *device) {
    TWI_TRY(twi_get(device->context->memory, &device->copies, 1, sizeof *device->copies, "copies"));
    return open_all(device, device->copies);
}

void twi_cuda_copies_close(twi_cuda_device *device) {
    twi_cuda_copies *copies = device->copies;
    if (!copies) return;
    if (device->stream) (void)cudaStreamSynchronize(device->stream); /* a copy may still read a slot */
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < kinds[kind].slots; i++) {
            slot *s = &copies->slot[kind][i];
            if (s->copied) (void)cudaEventDestroy(s->copied);
            twi_cuda_put_host(device->context, s->host);
        }
    for (int i = 0; i < MARKS; i++)
        if (copies->mark[i]) (void)cudaEventDestroy(copies->mark[i]);
    (void)cudaGetLastError();
    twi_put(device->context->memory, copies);
    device->copies = NULL;
}

static tw_status copy_piece(twi_cuda_device *device, void *to, const void *host, size_t bytes) {
    twi_cuda_copies *copies = device->copies;
    const int kind = bytes <= kinds[SMALL].bytes ? SMALL : LARGE;
    slot *s = &copies->slot[kind][copies->next[kind]];
    copies->next[kind] = (copies->next[kind] + 1) % kinds[kind].slots;
    if (s->used) TWI_CUDA(device, cudaEventSynchronize(s->copied));
    memcpy(s->host, host, bytes);
    TWI_CUDA(device, cudaMemcpyAsync(to, s->host, bytes, cudaMemcpyHostToDevice, device->stream));
    TWI_CUDA(device, cudaEventRecord(s->copied, device->stream));
    s->used = true;
    return TW_OK;
}

tw_status twi_cuda_copy_in(tw_context *context, void *to, const void *host, size_t bytes) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    for (size_t done = 0, piece; done < bytes; done += piece) {
        piece = bytes - done < kinds[LARGE].bytes ? bytes - done : kinds[LARGE].bytes;
        TWI_TRY(copy_piece(device, (char *)to + done, (const char *)host + done, piece));
    }
    return TW_OK;
}

tw_status twi_cuda_copy_out(tw_context *context, void *host, const void *from, size_t bytes) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    if (!bytes) return TW_OK;
    TWI_CUDA(device, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, device->stream));
    TWI_CUDA(device, cudaStreamSynchronize(device->stream));
    return TW_OK;
}

tw_status twi_cuda_get_host(tw_context *context, void **out, size_t bytes, const char *what) {
    twi_cuda_device *device = twi_cuda_of(context);
    *out = NULL;
    TWI_TRY(twi_cuda_enter(device));
    cudaError_t error = cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocDefault);
    if (error) *out = NULL;
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY,
                        "%s: the system refused %zu bytes of pinned memory; free memory elsewhere", what, bytes);
    }
    return twi_cuda_check(device, error, "cudaHostAlloc");
}

void twi_cuda_put_host(tw_context *context, void *memory) {
    (void)context;
    if (!memory) return;
    (void)cudaFreeHost(memory);
    (void)cudaGetLastError();
}

tw_status twi_cuda_fetch(tw_context *context, void *host, const void *from, size_t bytes) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    TWI_CUDA(device, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, device->stream));
    return TW_OK;
}

tw_status twi_cuda_mark(tw_context *context, int mark) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    TWI_CUDA(device, cudaEventRecord(device->copies->mark[mark], device->stream));
    return TW_OK;
}

tw_status twi_cuda_wait(tw_context *context, int mark) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    TWI_CUDA(device, cudaEventSynchronize(device->copies->mark[mark]));
    return TW_OK;
}

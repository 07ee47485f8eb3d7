/* Copies in stream order, and those of streamed inputs beside the runs, on a stream of their own. What comes in is
 * first copied to pinned memory, so that its owner has it back at once and the device fetches it when its turn comes:
 * places of two sizes, since the few numbers of a run must not wait for the data of the last. Reusing a place waits for
 * its last copy. */
#include "cuda_copy.h"
#include "cuda_memory.h"

#include <string.h>

/* Two large places, so that one is filled while the other is read; as many small ones as runs can be in flight, and
 * more. */
enum { LARGE = 0, SMALL = 1, KINDS = 2, PLACES_MAX = 16, SLOTS = 2, MARKS = TWI_IN_FLIGHT_MAX + 1 };

static const struct {
    size_t bytes;
    int places;
} kinds[KINDS] = {{(size_t)4 << 20, 2}, {(size_t)4 << 10, PLACES_MAX}};

typedef struct place {
    unsigned char *host;
    cudaEvent_t copied;
    bool used;
} place;

struct twi_cuda_copies {
    place place[KINDS][PLACES_MAX];
    int next[KINDS];
    cudaStream_t beside;      /* where slots are filled */
    cudaEvent_t filled;       /* behind the last copy there */
    cudaEvent_t taken[SLOTS]; /* behind the last run that took a slot of that number */
    bool waiting[SLOTS];      /* filled since the last run */
    cudaEvent_t mark[MARKS];
};

static tw_status make_event(twi_cuda_device *device, cudaEvent_t *event) {
    TWI_CUDA(device, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    return TW_OK;
}

static tw_status open_all(twi_cuda_device *device, twi_cuda_copies *copies) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < kinds[kind].places; i++) {
            place *p = &copies->place[kind][i];
            void *host;
            TWI_TRY(twi_cuda_get_host(device->context, &host, kinds[kind].bytes, "pinned memory"));
            p->host = host;
            TWI_TRY(make_event(device, &p->copied));
        }
    for (int i = 0; i < MARKS; i++) TWI_TRY(make_event(device, &copies->mark[i]));
    for (int i = 0; i < SLOTS; i++) TWI_TRY(make_event(device, &copies->taken[i]));
    TWI_TRY(make_event(device, &copies->filled));
    TWI_CUDA(device, cudaStreamCreateWithFlags(&copies->beside, cudaStreamNonBlocking));
    return TW_OK;
}

tw_status twi_cuda_copies_open(twi_cuda_device *device) {
    TWI_TRY(twi_get(device->context->memory, &device->copies, 1, sizeof *device->copies, "copies"));
    return open_all(device, device->copies);
}

static void destroy_event(cudaEvent_t event) {
    if (event) (void)cudaEventDestroy(event);
}

void twi_cuda_copies_close(twi_cuda_device *device) {
    twi_cuda_copies *copies = device->copies;
    if (!copies) return;
    /* A copy may still read a place. */
    if (device->stream) (void)cudaStreamSynchronize(device->stream);
    if (copies->beside) {
        (void)cudaStreamSynchronize(copies->beside);
        (void)cudaStreamDestroy(copies->beside);
    }
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < kinds[kind].places; i++) {
            destroy_event(copies->place[kind][i].copied);
            twi_cuda_put_host(device->context, copies->place[kind][i].host);
        }
    for (int i = 0; i < MARKS; i++) destroy_event(copies->mark[i]);
    for (int i = 0; i < SLOTS; i++) destroy_event(copies->taken[i]);
    destroy_event(copies->filled);
    (void)cudaGetLastError();
    twi_put(device->context->memory, copies);
    device->copies = NULL;
}

static tw_status copy_piece(twi_cuda_device *device, cudaStream_t stream, void *to, const void *host, size_t bytes) {
    twi_cuda_copies *copies = device->copies;
    const int kind = bytes <= kinds[SMALL].bytes ? SMALL : LARGE;
    place *p = &copies->place[kind][copies->next[kind]];
    copies->next[kind] = (copies->next[kind] + 1) % kinds[kind].places;
    if (p->used) TWI_CUDA(device, cudaEventSynchronize(p->copied));
    memcpy(p->host, host, bytes);
    TWI_CUDA(device, cudaMemcpyAsync(to, p->host, bytes, cudaMemcpyHostToDevice, stream));
    TWI_CUDA(device, cudaEventRecord(p->copied, stream));
    p->used = true;
    return TW_OK;
}

static tw_status copy_pieces(twi_cuda_device *device, cudaStream_t stream, void *to, const void *host, size_t bytes) {
    for (size_t done = 0, piece; done < bytes; done += piece) {
        piece = bytes - done < kinds[LARGE].bytes ? bytes - done : kinds[LARGE].bytes;
        TWI_TRY(copy_piece(device, stream, (char *)to + done, (const char *)host + done, piece));
    }
    return TW_OK;
}

tw_status twi_cuda_copy_in(tw_context *context, void *to, const void *host, size_t bytes) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    return copy_pieces(device, device->stream, to, host, bytes);
}

/* ---- slots ---- */

tw_status twi_cuda_stream_in(tw_context *context, void *to, int slot, const void *host, size_t bytes) {
    twi_cuda_device *device = twi_cuda_of(context);
    twi_cuda_copies *copies = device->copies;
    TWI_TRY(twi_cuda_enter(device));
    for (int i = 0; i < SLOTS && device->catch_up; i++)
        TWI_CUDA(device, cudaEventRecord(copies->taken[i], device->stream));
    device->catch_up = false;
    TWI_CUDA(device, cudaStreamWaitEvent(copies->beside, copies->taken[slot], 0));
    TWI_TRY(copy_pieces(device, copies->beside, to, host, bytes));
    TWI_CUDA(device, cudaEventRecord(copies->filled, copies->beside));
    copies->waiting[slot] = true;
    return TW_OK;
}

tw_status twi_cuda_slots_begin(twi_cuda_device *device) {
    const twi_cuda_copies *copies = device->copies;
    if (copies->waiting[0] || copies->waiting[1])
        TWI_CUDA(device, cudaStreamWaitEvent(device->stream, copies->filled, 0));
    return TW_OK;
}

static tw_status note_taken(twi_cuda_device *device) {
    twi_cuda_copies *copies = device->copies;
    for (int i = 0; i < SLOTS; i++) {
        if (copies->waiting[i]) TWI_CUDA(device, cudaEventRecord(copies->taken[i], device->stream));
        copies->waiting[i] = false;
    }
    return TW_OK;
}

/* The run is under way, and a failure here is none of its own: what fills a slot next waits for more than it must. */
tw_status twi_cuda_slots_end(twi_cuda_device *device) {
    if (note_taken(device) == TW_OK) return TW_OK;
    TWI_TRY(twi_cuda_usable(device));
    device->catch_up = true;
    twi_log_line(&device->context->log, TW_LOG_WARNING, "cuda: a slot is filled later than it could be, since %s",
                 tw_last_error());
    return TW_OK;
}

/* ---- out, and marks ---- */

tw_status twi_cuda_copy(tw_context *context, void *to, const void *from, size_t bytes) {
    twi_cuda_device *device = twi_cuda_of(context);
    TWI_TRY(twi_cuda_enter(device));
    if (bytes) TWI_CUDA(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device->stream));
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

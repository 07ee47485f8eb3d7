/* The table of functions a device implements. Everything above it is the same for all devices. */
#ifndef TWI_BACKEND_BACKEND_H
#define TWI_BACKEND_BACKEND_H

#include "base/context.h"
#include "step.h"
#include <talweg/device.h>
#include <talweg/precision.h>

/* Most runs that any back end lets be in flight. */
enum { TWI_IN_FLIGHT_MAX = 4 };

typedef struct twi_backend {
    const char *name; /* "cpu" */
    bool host_memory; /* device memory is the host's own: it may be written and read in place, and host arrays may be
                         borrowed */
    int in_flight;    /* runs that may be queued before the oldest is waited for; 1: they are over when run returns */
    bool times_steps; /* fills plan->times */
    bool chunked;     /* runs segments chunk by chunk on workers; otherwise such steps are segments of their own */

    /* Device of a context. close(NULL) is fine. */
    tw_status (*open)(tw_context *context, void **out);
    void (*close)(tw_context *context, void *device);
    /* Fills what differs from device to device; out is zeroed, back end and ordinal are set. */
    tw_status (*describe)(const tw_context *context, tw_device_info *out);

    /* Measures what it can do at most with 1 .. workers threads; out->threads is set. NULL: it does not. */
    tw_status (*measure)(tw_context *context, int threads, tw_ceilings *out);
    /* Does the device compute in it, rather than by way of something else? For BF16, F16 and TF32. */
    bool (*computes_in)(const tw_context *context, tw_precision precision);

    /* How many workers want scratch of their own. */
    int (*workers)(const tw_context *context);

    /* Device memory, zeroed and aligned to 256 bytes at least; `what` is kept. put(NULL) is fine. */
    tw_status (*get)(tw_context *context, void **out, size_t bytes, const char *what);
    void (*put)(tw_context *context, void *memory);
    /* What get holds; NULL: it is part of the context's own memory. */
    tw_memory_stats (*get_memory)(const tw_context *context);
    /* Host to device: what is run later sees it, and the host's memory may be reused when it returns. */
    tw_status (*copy_in)(tw_context *context, void *device, const void *host, size_t bytes);
    /* Copies of what is fed that it would like, one a worker, in whose cache it then is. NULL: one will do. */
    int (*copies)(const tw_context *context);
    /* As copy_in, to so many, the first at `device`, the others `stride` apart. The first may be where the data is. */
    tw_status (*copy_in_each)(tw_context *context, void *device, size_t stride, const void *host, size_t bytes);
    /* Host to device beside the runs: the slot (0 or 1) of a streamed input, at `device`, for the next run. On the
     * device the copy waits until the last run that took this slot is over, and the next run for the copy; the host
     * waits at most for room to keep the data in. Its memory may be reused when it returns. NULL: no run is under way
     * when the host is. */
    tw_status (*stream_in)(tw_context *context, void *device, int slot, const void *host, size_t bytes);
    /* Within device memory, in the order of the runs. */
    tw_status (*copy)(tw_context *context, void *to, const void *from, size_t bytes);
    /* out[i] = in[i], rounded to f16 or bf16, in device memory: behind what was run so far, before what is run
     * later. */
    tw_status (*narrow)(tw_context *context, void *out, tw_dtype to, const float *in, int64_t count);
    /* Device to host, behind all that was run so far; done when it returns. */
    tw_status (*copy_out)(tw_context *context, void *host, const void *device, size_t bytes);

    /* Host memory that fetch may write to. put_host(NULL) is fine. */
    tw_status (*get_host)(tw_context *context, void **out, size_t bytes, const char *what);
    void (*put_host)(tw_context *context, void *memory);
    /* Device to such memory, behind what was run so far; done when a mark made later is waited for. */
    tw_status (*fetch)(tw_context *context, void *host, const void *device, size_t bytes);
    /* Makes mark 0 .. TWI_IN_FLIGHT_MAX - 1 stand behind all that was asked for so far; waits for one. */
    tw_status (*mark)(tw_context *context, int mark);
    tw_status (*wait)(tw_context *context, int mark);

    /* Picks an implementation of a step for chunks of `main` samples and, if not NULL, one shorter chunk `tail`. The
     * calls hold shapes, no data. Where it can pick, it picks one whose workspace is at most workspace_limit (SIZE_MAX:
     * its own measure of what is worth it). Fills *out; TW_ERROR_UNSUPPORTED naming op and back end if there is
     * none. */
    tw_status (*choose)(tw_context *context, const twi_kernel *kernel, const twi_call *main, const twi_call *tail, size_t workspace_limit,
                        twi_choice *out);
    void (*release)(tw_context *context, twi_choice *choice);
    /* Has the back end more for such a call, whose operands hold shapes, than the specification? NULL: fusions that are
     * made only where that is so are not made, and operands keep their samples one after the other. */
    bool (*takes)(tw_context *context, const twi_kernel *kernel, const twi_call *call);
    /* How many samples of an operand its implementation would like to find side by side (twi_operand.lanes); 0: it does
     * not care. */
    int (*lanes)(tw_context *context, const twi_kernel *kernel, const twi_call *call, int operand);
    /* Of a chunked back end: preferred multiple of samples a chunk for a kernel on such shapes (1: any). */
    int64_t (*chunk_multiple)(tw_context *context, const twi_kernel *kernel, const twi_call *call);

    /* Binds a plan to memory: only binds, creates and captures. arena and scratch (worker_bytes per worker) are device
     * memory. */
    tw_status (*prepare)(tw_context *context, void **out, const twi_plan *plan, twi_control *control, void *arena, void *scratch);
    void (*discard)(tw_context *context, void *prepared);
    /* Runs to come read a lendable buffer of the plan, and its views, at `host`, all workers the same; NULL: in the arena
     * again, where it is as it was left. What is at `host` is aligned as in the arena, but nothing need be behind it.
     * Cheap beside a step. NULL: the device cannot read there, what is fed is copied. */
    void (*lend)(tw_context *context, void *prepared, int buffer, const void *host);
    /* Runs segments first .. first+count-1. Allocates nothing, fails only for the device's own reasons; faults are in
     * control. */
    tw_status (*run)(tw_context *context, void *prepared, int first_segment, int segment_count);
} twi_backend;

extern const twi_backend twi_backend_cpu;

#endif

/* What goes between the host and the device: data in through pinned memory without waiting for the runs under way, in
 * their order or beside them, results out behind them, and marks to wait for. Functions of the back end's table. */
#ifndef TWI_CUDA_COPY_H
#define TWI_CUDA_COPY_H

#include "cuda.h"

tw_status twi_cuda_copies_open(twi_cuda_device *device);
void twi_cuda_copies_close(twi_cuda_device *device);

tw_status twi_cuda_copy_in(tw_context *context, void *to, const void *host, size_t bytes);
tw_status twi_cuda_stream_in(tw_context *context, void *to, int slot, const void *host, size_t bytes);
tw_status twi_cuda_copy(tw_context *context, void *to, const void *from, size_t bytes);
tw_status twi_cuda_copy_out(tw_context *context, void *host, const void *from, size_t bytes);
tw_status twi_cuda_get_host(tw_context *context, void **out, size_t bytes, const char *what);
void twi_cuda_put_host(tw_context *context, void *memory);
tw_status twi_cuda_fetch(tw_context *context, void *host, const void *from, size_t bytes);
tw_status twi_cuda_mark(tw_context *context, int mark);
tw_status twi_cuda_wait(tw_context *context, int mark);

/* What a run owes to the slots of streamed inputs: its first step waits for those filled since the run before (begin),
 * and it is the one that takes them (end). */
tw_status twi_cuda_slots_begin(twi_cuda_device *device);
tw_status twi_cuda_slots_end(twi_cuda_device *device);

#endif

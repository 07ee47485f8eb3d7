/* Device memory of a context: every block is known by use and size, so that a cap holds, statistics are exact, and
 * running out says what holds how much. */
#ifndef TWI_CUDA_MEMORY_H
#define TWI_CUDA_MEMORY_H

#include "cuda.h"

/* Takes room for the list of blocks, so that later growth is of one block. */
tw_status twi_cuda_memory_open(twi_cuda_device *device);
tw_status twi_cuda_get(tw_context *context, void **out, size_t bytes, const char *what);
void twi_cuda_put(tw_context *context, void *memory);
tw_memory_stats twi_cuda_get_memory(const tw_context *context);

/* Out of memory in any of the vendor's words: what is held, by use, and what the device has left. bytes 0: not
 * known. */
tw_status twi_cuda_out_of_memory(twi_cuda_device *device, size_t bytes, const char *what);
/* Is so little left on the device that a library's failure, whatever it calls it, is taken for want of memory? */
bool twi_cuda_is_full(void);

#endif

/* A plan bound to device memory: calls with addresses, and the graphs captured from them. */
#ifndef TWI_CUDA_PROGRAM_H
#define TWI_CUDA_PROGRAM_H

#include "cuda.h"

tw_status twi_cuda_prepare(tw_context *context, void **out, const twi_plan *plan, twi_control *control, void *arena,
                           void *scratch);
void twi_cuda_discard(tw_context *context, void *prepared);
tw_status twi_cuda_run(tw_context *context, void *prepared, int first_segment, int segment_count);

#endif

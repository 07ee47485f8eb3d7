/* The choice of implementations, and for how many workers: functions of the back ends' tables, of devices that are here
 * and that are described. */
#ifndef TWI_CUDA_CHOOSE_H
#define TWI_CUDA_CHOOSE_H

#include "cuda.h"

tw_status twi_cuda_choose(tw_context *context, const twi_kernel *kernel, const twi_call *main, const twi_call *tail,
                          size_t workspace_limit, twi_choice *out);
void twi_cuda_release(tw_context *context, twi_choice *choice);
int twi_cuda_workers(const tw_context *context);

#endif

/* All loops of point.h, from a file a topic; point_<isa>.c compiles them as POINT_LOOPS. */
#include "copy_kernel.h"
#include "dropout_kernel.h"
#include "elementwise_kernel.h"
#include "features_kernel.h"
#include "gather_kernel.h"
#include "gelu_kernel.h"
#include "guard_kernel.h"
#include "loss_kernel.h"
#include "point.h"
#include "pool_kernel.h"
#include "update_kernel.h"

#define POINT_LOOP(name, kernel, refuse, prepare) .name = name,
const twi_point_loops POINT_LOOPS = {TWI_POINT_KERNELS(POINT_LOOP).guard_sum = guard_sum, .guard_block = guard_block,
                                     .sum_parts = sum_parts,
                                     .relu_backward_rows = relu_backward_rows};

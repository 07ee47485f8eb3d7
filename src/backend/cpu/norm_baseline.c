/* The sweeps of norm_kernel.h for any processor. */
#define NORM_LOOPS twi_norm_baseline
#include "norm_kernel.h"

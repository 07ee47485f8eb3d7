/* The sweeps of norm_kernel.h for AVX2. */
#define NORM_LOOPS twi_norm_avx2
#include "norm_kernel.h"

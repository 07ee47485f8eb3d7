/* The sweeps of norm_kernel.h for AVX-512. */
#define NORM_LOOPS twi_norm_avx512
#include "norm_kernel.h"

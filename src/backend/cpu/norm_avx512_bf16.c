/* The sweeps of norm_kernel.h for AVX-512 with AVX512_BF16. */
#define NORM_LOOPS twi_norm_avx512_bf16
#include "norm_kernel.h"

/* The loops of point_kernel.h for AVX-512 with AVX512_BF16. */
#define POINT_LOOPS twi_point_avx512_bf16
#include "point_kernel.h"

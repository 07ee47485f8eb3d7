/* The loops of ceiling_kernel.h for AVX-512. */
#define CEILING_LOOPS twi_ceiling_avx512
#include "ceiling_kernel.h"

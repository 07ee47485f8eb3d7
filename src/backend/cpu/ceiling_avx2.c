/* The loops of ceiling_kernel.h for AVX2. */
#define CEILING_LOOPS twi_ceiling_avx2
#include "ceiling_kernel.h"

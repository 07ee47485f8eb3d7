/* The loops of winograd_kernel.h for AVX2. */
#define WINOGRAD_LOOPS twi_winograd_avx2
#include "winograd_kernel.h"

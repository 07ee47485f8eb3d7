/* The convolutions of winograd_kernel.h for AVX2. */
#define WINOGRAD_RECORD twi_winograd_avx2
#include "winograd_kernel.h"

/* The convolutions of winograd_kernel.h for AVX-512. */
#define WINOGRAD_RECORD twi_winograd_avx512
#include "winograd_kernel.h"

/* The convolutions of conv_lanes_kernel.h for AVX-512. */
#define LANES_RECORD twi_lanes_avx512
#include "conv_lanes_kernel.h"

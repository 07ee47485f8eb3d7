/* The convolutions of conv_lanes_kernel.h for AVX2. */
#define LANES_RECORD twi_lanes_avx2
#include "conv_lanes_kernel.h"

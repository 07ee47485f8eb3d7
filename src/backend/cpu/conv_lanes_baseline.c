/* The convolutions of conv_lanes_kernel.h for any processor. */
#define LANES_RECORD twi_lanes_baseline
#include "conv_lanes_kernel.h"

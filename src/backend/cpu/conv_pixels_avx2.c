/* conv_pixels.h for avx2. */
#define PIXELS_RECORD twi_pixels_avx2
#include "conv_pixels_kernel.h"

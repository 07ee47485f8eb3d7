/* conv_pixels.h for avx512. */
#define PIXELS_RECORD twi_pixels_avx512
#include "conv_pixels_kernel.h"

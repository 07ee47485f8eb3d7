/* conv_pixels.h for baseline. */
#define PIXELS_RECORD twi_pixels_baseline
#include "conv_pixels_kernel.h"

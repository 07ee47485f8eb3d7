/* The loops of point_kernel.h for AVX2. */
#define POINT_LOOPS twi_point_avx2
#include "point_kernel.h"

/* The loops of point_kernel.h for AVX-512. */
#define POINT_LOOPS twi_point_avx512
#include "point_kernel.h"

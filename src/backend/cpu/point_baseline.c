/* The loops of point_kernel.h for any processor. */
#define POINT_LOOPS twi_point_baseline
#include "point_kernel.h"

/* The loops of ceiling_kernel.h for any processor. */
#define CEILING_LOOPS twi_ceiling_baseline
#include "ceiling_kernel.h"

/* The loops of winograd_kernel.h for what every processor has. */
#define WINOGRAD_LOOPS twi_winograd_baseline
#include "winograd_kernel.h"

/* The convolutions of winograd_kernel.h for any processor. */
#define WINOGRAD_RECORD twi_winograd_baseline
#include "winograd_kernel.h"

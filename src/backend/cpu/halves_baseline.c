/* The loops of halves.h for baseline. */
#define HALVES_LOOPS twi_halves_baseline
#include "halves_kernel.h"

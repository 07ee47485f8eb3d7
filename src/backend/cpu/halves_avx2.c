/* The loops of halves.h for avx2. */
#define HALVES_LOOPS twi_halves_avx2
#include "halves_kernel.h"

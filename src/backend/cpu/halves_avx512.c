/* The loops of halves.h for avx512. */
#define HALVES_LOOPS twi_halves_avx512
#include "halves_kernel.h"

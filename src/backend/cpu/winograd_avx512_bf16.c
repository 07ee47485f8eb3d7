/* The convolutions of winograd_kernel.h for AVX-512 with AVX512_BF16. */
#define WINOGRAD_RECORD twi_winograd_avx512_bf16
#include "winograd_kernel.h"

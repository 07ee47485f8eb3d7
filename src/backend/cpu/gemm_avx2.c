/* The products of gemm_kernel.h for AVX2. */
#define GEMM_RECORD twi_gemm_avx2
#define GEMM_ISA "avx2"
#include "gemm_kernel.h"

/* The products of gemm_kernel.h for AVX-512. */
#define GEMM_RECORD twi_gemm_avx512
#define GEMM_ISA "avx512"
#include "gemm_kernel.h"

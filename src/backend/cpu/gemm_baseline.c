/* The products of gemm_kernel.h for any processor. */
#define GEMM_RECORD twi_gemm_baseline
#define GEMM_ISA "baseline"
#include "gemm_kernel.h"

/* Loops compiled once per instruction set, and how an implementation gets at the right ones. A family of kernels is one
 * list of (name, ...) rows, from which the struct of its loops, their table per instruction set and the implementations
 * are made: norm.h, point.h. */
#ifndef TWI_CPU_LOOPS_H
#define TWI_CPU_LOOPS_H

#include "cpu.h"

/* One chunk or range of a kernel: twi_cpu_impl.run for a fixed instruction set. */
typedef void twi_cpu_loop(const twi_call *call, const twi_cpu_workspace *workspace);

#if defined(__x86_64__)
#define TWI_FOR_ISA(isa, family)                      \
    ((isa) >= TWI_ISA_AVX512 ? &twi_##family##_avx512 \
     : (isa) >= TWI_ISA_AVX2 ? &twi_##family##_avx2   \
                             : &twi_##family##_baseline)
/* The same of a family that is compiled for AVX512_BF16, too, which rounds to bf16. */
#define TWI_FOR_ISA_BF16(isa, family) \
    ((isa) >= TWI_ISA_AVX512_BF16 ? &twi_##family##_avx512_bf16 : TWI_FOR_ISA(isa, family))
#else
#define TWI_FOR_ISA(isa, family) ((void)(isa), &twi_##family##_baseline)
#define TWI_FOR_ISA_BF16(isa, family) TWI_FOR_ISA(isa, family)
#endif

#endif

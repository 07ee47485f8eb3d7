/* Which instruction set this processor and its system offer. What is done with it is left to the implementations. */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

static const char *const isa_name[] = {"specification", "baseline", "avx2", "avx512"}; /* from TWI_ISA_NONE on */

static twi_isa processor_isa(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return TWI_ISA_BASELINE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        return TWI_ISA_AVX512;
    return TWI_ISA_AVX2;
#else
    return TWI_ISA_BASELINE;
#endif
}

twi_isa twi_cpu_isa(void) {
    twi_isa isa = processor_isa();
    const char *wish = getenv("TALWEG_CPU");
    for (int lower = TWI_ISA_NONE; wish && lower < (int)isa; lower++)
        if (strcmp(wish, isa_name[lower - TWI_ISA_NONE]) == 0) return (twi_isa)lower;
    return isa;
}

const char *twi_cpu_isa_name(twi_isa isa) { return isa_name[isa - TWI_ISA_NONE]; }

/* Which instruction set this processor and its system offer. What is done with it is left to the implementations. */
#include "cpu.h"
#include "halves.h"

#include <stdlib.h>
#include <string.h>

static const char *const isa_name[] = {"specification", "baseline", "avx2", "avx512",
                                       "avx512_bf16"}; /* from TWI_ISA_NONE on */

#if defined(__x86_64__)
#include <cpuid.h>

enum { F16C = 1 << 29, AVX512_BF16 = 1 << 5, AMX_BF16 = 1 << 22, INTEL = 0x756E6547 /* "Genu" */ };

/* Every processor with AVX2 has it; asked all the same, since f16 is converted with it there. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & F16C);
}

static bool has_amx(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16);
}

static bool has_avx512_bf16(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX512_BF16);
}

/* Intel's vdpbf16ps on vectors of 512 bits makes half the products a second of multiply-adds of f32, though each of its
 * own holds two: docs/tuning.md, of family 6, model 207. */
bool twi_cpu_gains_by_bf16(void) {
    unsigned a, b, c, d;
    return has_amx() || (has_avx512_bf16() && __get_cpuid(0, &a, &b, &c, &d) && b != INTEL);
}
#else
bool twi_cpu_gains_by_bf16(void) { return false; }
#endif

static twi_isa processor_isa(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return TWI_ISA_BASELINE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        return has_avx512_bf16() ? TWI_ISA_AVX512_BF16 : TWI_ISA_AVX512;
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

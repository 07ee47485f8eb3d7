/* Steps in half precision on the CPU. A step without code of its own for halves is run by the implementation that its
 * f32 twin has: what it reads is widened to scratch, what it writes is rounded once. So sums are f32, and f16 and bf16
 * are stored as such wherever a buffer lies. */
#ifndef TWI_CPU_HALVES_H
#define TWI_CPU_HALVES_H

#include "cpu.h"
#include "loops.h"

/* Arrays of halves, compiled per instruction set: halves_kernel.h. */
typedef struct twi_halves_loops {
    void (*widen)(float *out, const uint16_t *in, tw_dtype half, int64_t count);
    void (*narrow)(uint16_t *out, const float *in, tw_dtype half, int64_t count);
    /* And returns the sum of the squares, in f32, of what they have become. */
    float (*narrow_squares)(uint16_t *out, const float *in, tw_dtype half, int64_t count);
} twi_halves_loops;

extern const twi_halves_loops twi_halves_baseline, twi_halves_avx2, twi_halves_avx512;

static inline const twi_halves_loops *twi_halves_for(twi_isa isa) { return TWI_FOR_ISA(isa, halves); }

/* Is the operand one that the implementation of an f32 step could not read or write? */
bool twi_cpu_is_half(const twi_call *call, int operand);
bool twi_cpu_has_halves(const twi_call *call);
/* The call as its f32 twin: shapes and types; data are left. */
twi_call twi_cpu_widened_call(const twi_call *call);
/* Makes of a site for the f32 twin, prepared, one for the call itself; the site takes the other one over. */
tw_status twi_cpu_widen(twi_cpu_site *site, const twi_cpu_site *f32, const twi_call *main);
/* Does this processor multiply bf16 faster than f32? */
bool twi_cpu_gains_by_bf16(void);

#endif

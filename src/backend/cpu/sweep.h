/* Sweeps: loops over whole activations in memory order, in which the channel of an element is its position modulo the
 * number of channels. What a sweep does to the elements is in norm_kernel.h and elementwise_kernel.h; sweep_kernel.h
 * walks; here is what it walks over, and how per-channel numbers reach it.
 *
 * So that a vector never crosses from one channel's numbers to another's, whatever C is, per-channel rows are spread
 * over a period: the least multiple of C that blocks of 16 floats fill. Sums are kept per position of the period too,
 * and folded to channels at the end.
 *
 * The elements are f32, f16 or bf16, all of one type; halves are widened as they are read and rounded as they are
 * written. Per-channel numbers and sums are f32. */
#ifndef TWI_CPU_SWEEP_H
#define TWI_CPU_SWEEP_H

#include "cpu.h"

enum { TWI_SWEEP_BLOCK = 16, TWI_SWEEP_COEFFICIENTS = 3, TWI_SWEEP_SUMS = 2 };

typedef struct twi_sweep {
    /* The elements: `runs` runs of `run` elements each, one after the other; the bits of a run start on a byte. */
    int64_t runs, run;
    tw_dtype dtype;
    const void
        *in[3]; /* in[0] is filled up with coef[0], if there is one, and the others with zeros, to a full block */
    void *out;
    const uint8_t *bits_in;
    uint8_t *bits_out;
    /* Per-channel numbers, `period` of each. */
    int64_t channels, period;
    const float *coef[TWI_SWEEP_COEFFICIENTS];
    float *sum[TWI_SWEEP_SUMS];
    float *scratch; /* what twi_sweep_prepare asks for */
} twi_sweep;

/* NULL if all batched operands of the call are dense with channels innermost, and of one type, else the reason. */
const char *twi_sweep_refuse(const twi_call *call, twi_isa isa);
/* The same where channels do not matter: all may also be row-major. */
const char *twi_sweep_refuse_flat(const twi_call *call, twi_isa isa);
/* twi_cpu_impl.prepare of every sweep with per-channel numbers: asks for scratch. */
tw_status twi_sweep_prepare(twi_cpu_site *site, const twi_call *main, const twi_call *tail);

/* A sweep over the elements of operand 0, which has the shape of all the others; bits: it has a bit mask. */
twi_sweep twi_sweep_over(const twi_call *call, bool bits, const twi_cpu_workspace *workspace);
/* Makes coef[k] of a row of C numbers. */
void twi_sweep_spread(twi_sweep *sweep, int k, const float *row);
/* The same of an operand, which may be halves. */
void twi_sweep_spread_operand(twi_sweep *sweep, int k, const twi_operand *row);
/* Makes room for sum[0 .. count-1], zero. */
void twi_sweep_begin_sums(twi_sweep *sweep, int count);
/* row[c] becomes (first) or grows by the sum of channel c. */
void twi_sweep_fold(const twi_sweep *sweep, int k, float *row, bool first);

#endif

/* The walk of sweep.h, compiled for the vector width of the including file: straight through memory, which is faster
 * than any order that would save loads of per-channel numbers, since those stay in the first-level cache. */
#ifndef TWI_CPU_SWEEP_KERNEL_H
#define TWI_CPU_SWEEP_KERNEL_H

#include "sweep.h"
#include "vec_test.h"

/* Does the vector of elements at position i of the run, whose place in the period is c. */
typedef void sweep_step(const twi_sweep *sweep, int64_t i, int64_t c);

VEC_INLINE void sweep_add(float *sum, vec v) { vec_store(sum, vec_load(sum) + v); }

VEC_INLINE void sweep_block(const twi_sweep *sweep, sweep_step *step, int64_t i, int64_t c) {
    for (int64_t p = 0; p < TWI_SWEEP_BLOCK; p += VEC_WIDTH) step(sweep, i + p, c + p);
}

/* The last `count` < 16 elements of a run: in a block of their own, filled up. */
VEC_INLINE void sweep_rest(const twi_sweep *sweep, sweep_step *step, int64_t i, int64_t c, int64_t count) {
    float in[3][TWI_SWEEP_BLOCK] = {{0}}, out[TWI_SWEEP_BLOCK];
    uint8_t bits_in[2] = {0}, bits_out[2] = {0};
    size_t bytes = (size_t)count * sizeof(float), bit_bytes = (size_t)twi_bits_bytes(count);
    twi_sweep rest = *sweep;
    if (sweep->coef[0]) memcpy(in[0], sweep->coef[0] + c, sizeof in[0]);
    for (int k = 0; k < 3; k++) {
        if (sweep->in[k]) memcpy(in[k], sweep->in[k] + i, bytes);
        rest.in[k] = in[k];
    }
    if (sweep->bits_in) memcpy(bits_in, sweep->bits_in + i / 8, bit_bytes);
    rest.bits_in = bits_in;
    rest.bits_out = bits_out;
    rest.out = out;
    sweep_block(&rest, step, 0, c);
    if (sweep->out) memcpy(sweep->out + i, out, bytes);
    if (sweep->bits_out) {
        bits_out[count / 8] = (uint8_t)(bits_out[count / 8] & ((1u << count % 8) - 1));
        memcpy(sweep->bits_out + i / 8, bits_out, bit_bytes);
    }
}

VEC_INLINE void sweep_run(const twi_sweep *sweep, sweep_step *step) {
    const int64_t period = sweep->period, run = sweep->run;
    twi_sweep s = *sweep;
    for (int64_t n = 0; n < sweep->runs; n++) {
        int64_t i = 0, c = 0;
        for (; i + period <= run; i += period) {
            for (c = 0; c < period; c += TWI_SWEEP_BLOCK) sweep_block(&s, step, i + c, c);
        }
        for (c = 0; i + TWI_SWEEP_BLOCK <= run; i += TWI_SWEEP_BLOCK, c += TWI_SWEEP_BLOCK) sweep_block(&s, step, i, c);
        if (i < run) sweep_rest(&s, step, i, c, run - i);
        for (int k = 0; k < 3; k++) {
            if (s.in[k]) s.in[k] += run;
        }
        if (s.out) s.out += run;
        if (s.bits_in) s.bits_in += twi_bits_bytes(run);
        if (s.bits_out) s.bits_out += twi_bits_bytes(run);
    }
}

#endif

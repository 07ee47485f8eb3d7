/* The walk of sweep.h, compiled for the vector width of the including file: straight through memory. Where the
 * channels repeat every few vectors, their numbers and sums stay in registers all the way; otherwise they come from
 * the first-level cache with every vector, which is faster than any other order of the elements. */
#ifndef TWI_CPU_SWEEP_KERNEL_H
#define TWI_CPU_SWEEP_KERNEL_H

#include "sweep.h"
#include "vec_half.h"
#include "vec_test.h"

/* The numbers and sums of one vector's channels. */
typedef struct sweep_numbers {
    vec coef[TWI_SWEEP_COEFFICIENTS], sum[TWI_SWEEP_SUMS];
} sweep_numbers;

/* Elements i to i + VEC_WIDTH - 1. */
VEC_INLINE vec sweep_get(const twi_sweep *sweep, int k, int64_t i) {
    if (sweep->dtype == TW_F32) return vec_load((const float *)sweep->in[k] + i);
    return vec_from_half((const uint16_t *)sweep->in[k] + i, sweep->dtype == TW_BF16);
}
VEC_INLINE void sweep_put(const twi_sweep *sweep, int64_t i, vec v) {
    if (sweep->dtype == TW_F32)
        vec_store((float *)sweep->out + i, v);
    else
        vec_to_half((uint16_t *)sweep->out + i, v, sweep->dtype == TW_BF16);
}

/* Does the vector of elements at position i of the run. */
typedef void sweep_step(const twi_sweep *sweep, int64_t i, sweep_numbers *of);

/* How many per-channel numbers and sums a step uses. A constant where it is passed, so that no more are loaded. */
typedef struct sweep_rows {
    int coefs, sums;
} sweep_rows;

/* Vectors whose channels' numbers are held in registers: three each at most, since a step that sums has one
 * coefficient. */
enum { SWEEP_HELD = 4, SWEEP_HELD_FLOATS = SWEEP_HELD * VEC_WIDTH };

VEC_INLINE void sweep_load(sweep_numbers *numbers, const twi_sweep *sweep, sweep_rows rows, int64_t c) {
    for (int k = 0; k < rows.coefs; k++) numbers->coef[k] = vec_load(sweep->coef[k] + c);
    for (int k = 0; k < rows.sums; k++) numbers->sum[k] = vec_load(sweep->sum[k] + c);
}
VEC_INLINE void sweep_store(const sweep_numbers *numbers, const twi_sweep *sweep, sweep_rows rows, int64_t c) {
    for (int k = 0; k < rows.sums; k++) vec_store(sweep->sum[k] + c, numbers->sum[k]);
}

VEC_INLINE void sweep_block(const twi_sweep *sweep, sweep_step *step, sweep_rows rows, int64_t i, int64_t c) {
    for (int64_t p = 0; p < TWI_SWEEP_BLOCK; p += VEC_WIDTH) {
        sweep_numbers numbers;
        sweep_load(&numbers, sweep, rows, c + p);
        step(sweep, i + p, &numbers);
        sweep_store(&numbers, sweep, rows, c + p);
    }
}

/* Bytes that memory is asked for ahead of a sweep: whole activations come from far away, and processors do not look
 * beyond the page they read. What it brought is in docs/tuning.md; 512 and 2048 did as well there. */
enum { SWEEP_AHEAD = 1024 };

VEC_INLINE void sweep_ahead(const twi_sweep *sweep, int64_t i) {
    const int64_t size = sweep->dtype == TW_F32 ? 4 : 2;
    for (int64_t line = 0; line < SWEEP_HELD_FLOATS * size; line += 64) {
        const int64_t at = i * size + line + SWEEP_AHEAD;
        __builtin_prefetch((const char *)sweep->in[0] + at);
        if (sweep->in[1]) __builtin_prefetch((const char *)sweep->in[1] + at);
        if (sweep->out) __builtin_prefetch((char *)sweep->out + at);
    }
}

/* The elements of the run up to `end`, a multiple of SWEEP_HELD_FLOATS. */
VEC_INLINE void sweep_held(const twi_sweep *sweep, sweep_step *step, sweep_rows rows, int64_t end) {
    sweep_numbers held[SWEEP_HELD];
    VEC_UNROLL
    for (int v = 0; v < SWEEP_HELD; v++) sweep_load(&held[v], sweep, rows, v * VEC_WIDTH);
    for (int64_t i = 0; i < end; i += SWEEP_HELD_FLOATS) {
        sweep_ahead(sweep, i);
        VEC_UNROLL
        for (int v = 0; v < SWEEP_HELD; v++) step(sweep, i + v * VEC_WIDTH, &held[v]);
    }
    VEC_UNROLL
    for (int v = 0; v < SWEEP_HELD; v++) sweep_store(&held[v], sweep, rows, v * VEC_WIDTH);
}

/* One element at a time. */
VEC_INLINE float sweep_get_one(const twi_sweep *sweep, int k, int64_t i) {
    if (sweep->dtype == TW_F32) return ((const float *)sweep->in[k])[i];
    return twi_half_to_f32(sweep->dtype, ((const uint16_t *)sweep->in[k])[i]);
}
VEC_INLINE void sweep_put_one(const twi_sweep *sweep, int64_t i, float v) {
    if (sweep->dtype == TW_F32)
        ((float *)sweep->out)[i] = v;
    else
        ((uint16_t *)sweep->out)[i] = twi_half_from_f32(sweep->dtype, v);
}

/* The last `count` < 16 elements of a run: in a block of their own, of f32, filled up. */
VEC_INLINE void sweep_rest(const twi_sweep *sweep, sweep_step *step, sweep_rows rows, int64_t i, int64_t c,
                           int64_t count) {
    float in[3][TWI_SWEEP_BLOCK] = {{0}}, out[TWI_SWEEP_BLOCK] = {0};
    uint8_t bits_in[2] = {0}, bits_out[2] = {0};
    size_t bit_bytes = (size_t)twi_bits_bytes(count);
    twi_sweep rest = *sweep;
    if (sweep->coef[0]) memcpy(in[0], sweep->coef[0] + c, sizeof in[0]);
    for (int k = 0; k < 3; k++) {
        for (int64_t p = 0; sweep->in[k] && p < count; p++) in[k][p] = sweep_get_one(sweep, k, i + p);
        rest.in[k] = in[k];
    }
    if (sweep->bits_in) memcpy(bits_in, sweep->bits_in + i / 8, bit_bytes);
    rest.bits_in = bits_in;
    rest.bits_out = bits_out;
    rest.out = out;
    rest.dtype = TW_F32;
    sweep_block(&rest, step, rows, 0, c);
    for (int64_t p = 0; sweep->out && p < count; p++) sweep_put_one(sweep, i + p, out[p]);
    if (sweep->bits_out) {
        bits_out[count / 8] = (uint8_t)(bits_out[count / 8] & ((1u << count % 8) - 1));
        memcpy(sweep->bits_out + i / 8, bits_out, bit_bytes);
    }
}

VEC_INLINE void sweep_run_as(const twi_sweep *sweep, sweep_step *step, sweep_rows rows, tw_dtype dtype) {
    const int64_t period = sweep->period, run = sweep->run, bytes = run * (dtype == TW_F32 ? 4 : 2);
    bool holds = rows.coefs + rows.sums == 0 || SWEEP_HELD_FLOATS % sweep->channels == 0;
    const int64_t held = holds ? run / SWEEP_HELD_FLOATS * SWEEP_HELD_FLOATS : 0;
    twi_sweep s = *sweep;
    s.dtype = dtype; /* a constant: loads and stores ask for it */
    for (int64_t n = 0; n < sweep->runs; n++) {
        int64_t i = held, c = 0;
        if (held > 0) sweep_held(&s, step, rows, held);
        for (; i + period <= run; i += period) {
            for (c = 0; c < period; c += TWI_SWEEP_BLOCK) sweep_block(&s, step, rows, i + c, c);
        }
        for (c = 0; i + TWI_SWEEP_BLOCK <= run; i += TWI_SWEEP_BLOCK, c += TWI_SWEEP_BLOCK)
            sweep_block(&s, step, rows, i, c);
        if (i < run) sweep_rest(&s, step, rows, i, c, run - i);
        for (int k = 0; k < 3; k++) {
            if (s.in[k]) s.in[k] = (const unsigned char *)s.in[k] + bytes;
        }
        if (s.out) s.out = (unsigned char *)s.out + bytes;
        if (s.bits_in) s.bits_in += twi_bits_bytes(run);
        if (s.bits_out) s.bits_out += twi_bits_bytes(run);
    }
}

VEC_INLINE void sweep_run(const twi_sweep *sweep, sweep_step *step, sweep_rows rows) {
    if (sweep->dtype == TW_BF16)
        sweep_run_as(sweep, step, rows, TW_BF16);
    else if (sweep->dtype == TW_F16)
        sweep_run_as(sweep, step, rows, TW_F16);
    else
        sweep_run_as(sweep, step, rows, TW_F32);
}

#endif

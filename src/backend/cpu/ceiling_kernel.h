/* The loops of ceiling.h, once for each instruction set: the including file names the record, CEILING_LOOPS. */
#include "ceiling.h"
#include "vec.h"

/* Chains of multiply-adds that do not wait for each other: as many as hide their latency and still fit the
 * registers. */
enum { CHAINS = 12 };

static double multiply(int64_t rounds, float by, float *out) {
    enum { DEPTH = 16 };
    const vec factor = vec_splat(by), term = vec_splat(1 - by); /* every chain tends to 1 */
    vec chain[CHAINS];
    VEC_UNROLL
    for (int c = 0; c < CHAINS; c++) chain[c] = vec_splat((float)c);
    for (int64_t r = 0; r < rounds; r++)
        for (int d = 0; d < DEPTH; d++) {
            VEC_UNROLL
            for (int c = 0; c < CHAINS; c++) chain[c] = vec_fma(chain[c], factor, term);
        }
    vec sum = chain[0];
    VEC_UNROLL
    for (int c = 1; c < CHAINS; c++) sum += chain[c];
    *out = sum[0];
    return 2.0 * VEC_WIDTH * CHAINS * DEPTH * (double)rounds;
}

static void sweep(float *values, int64_t count, float by) {
    const vec factor = vec_splat(by);
    enum { AT_ONCE = 4 * VEC_WIDTH };
    int64_t i = 0;
    for (; i + AT_ONCE <= count; i += AT_ONCE) {
        VEC_UNROLL
        for (int v = 0; v < 4; v++)
            vec_store(values + i + v * VEC_WIDTH, vec_load(values + i + v * VEC_WIDTH) * factor);
    }
    for (; i < count; i++) values[i] *= by;
}

const twi_ceiling_loops CEILING_LOOPS = {.multiply = multiply, .sweep = sweep};

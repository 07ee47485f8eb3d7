/* What a processor can do at most, measured: the loops, per instruction set. The measuring is in ceiling.c. */
#ifndef TWI_CPU_CEILING_H
#define TWI_CPU_CEILING_H

#include "loops.h"

typedef struct twi_ceiling_loops {
    /* Multiply-adds in registers alone. Returns how many FLOPs that were; *out keeps them from being left out. */
    double (*multiply)(int64_t rounds, float by, float *out);
    /* Reads and writes every value once. */
    void (*sweep)(float *values, int64_t count, float by);
} twi_ceiling_loops;

extern const twi_ceiling_loops twi_ceiling_baseline, twi_ceiling_avx2, twi_ceiling_avx512;

/* Entry of the back end's table. */
tw_status twi_cpu_measure(tw_context *context, int threads, tw_ceilings *out);

#endif

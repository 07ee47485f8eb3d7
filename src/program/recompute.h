/* What the planning of recomputation shares: blocks.c looks at a program's forward, recompute_choose.c decides what of
 * it is dropped and done again, recompute.c changes the program, budget.c keeps a limit with it. */
#ifndef TWI_PROGRAM_RECOMPUTE_H
#define TWI_PROGRAM_RECOMPUTE_H

#include "program.h"

/* What steps cost, in FLOPs. A byte moved takes about as long as 10 of them, on processors and GPUs in f32; and every
 * step costs something however small it is: a launch, a barrier. */
static inline double twi_cost_of(double flops, double bytes, int64_t steps) {
    return flops + 10 * bytes + 1e5 * (double)steps;
}

/* A stretch of the forward. All that later steps see of it, and of what came before, is one buffer at most, its border:
 * a residual block is one, however many branches it has. */
typedef struct twi_block {
    int first, end; /* forward steps */
    int border;     /* the buffer; -1: none */
} twi_block;

/* A buffer that a forward step writes. */
typedef struct twi_kept {
    int writer;        /* the step; -1: none that could be done again */
    int last_forward;  /* the last forward step that reads it; -1: none does */
    bool read_later;   /* by the backward */
} twi_kept;

/* A program before anything in it is recomputed: with implementations, and planned once. */
typedef struct twi_outline {
    tw_program *program;
    twi_memory *memory;
    twi_step *step; /* copies of the program's own */
    int step_count;
    twi_buffer *buffer;
    int buffer_count;
    int forward_count; /* the first so many steps are the forward */
    twi_kept *kept;    /* per buffer that owns its memory */
    twi_block *block;
    int block_count;
    struct twi_price *price; /* recompute_choose.c: of groups of blocks */
    double work;             /* of all steps */
} twi_outline;

/* blocks.c. Of a program that the passes up to memory_plan have seen. close: of a zeroed outline, too. */
tw_status twi_outline_open(twi_outline *outline, tw_program *program);
void twi_outline_close(twi_outline *outline);
/* What a step costs. */
double twi_outline_cost(const twi_outline *outline, int step);

/* recompute_choose.c: which forward steps' results are dropped, so that the estimated peak keeps `limit`, for the least
 * work. dropped: per forward step. False: no choice keeps it. */
tw_status twi_recompute_price(twi_outline *outline);
tw_status twi_recompute_choose(const twi_outline *outline, size_t limit, bool *dropped, bool *found);
/* The estimates between which limits make a difference: of the plan that drops nothing, and of the smallest. */
tw_status twi_recompute_bounds(const twi_outline *outline, size_t *least, size_t *most);

/* recompute.c: the program becomes the outline's, with the dropped steps done again before the backward that reads
 * their results; scheduled and planned. NULL: nothing is dropped. */
tw_status twi_recompute_apply(const twi_outline *outline, const bool *dropped);
/* Implementations for the steps that are done again: those of their originals, made once more. */
tw_status twi_recompute_finish(const twi_outline *outline);

#endif

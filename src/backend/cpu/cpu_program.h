/* A plan bound to memory: made by cpu_prepare.c, run by cpu_run.c.
 *
 * A run is a list of phases. A phase is a number of parts, fixed by the plan: the groups of a segment, the pieces of a
 * range, the pieces of a sum. Every worker has a share of them and helps others with theirs. A barrier stands
 * before a phase that conflicts with those since the last barrier (cpu_conflicts.c); the others follow without one.
 * What one worker does alone is done by the last to come to the barrier, before it lets the others go: so that costs no
 * barrier of its own. Who does what never shows in the results: groups add in order, and their sums are combined in
 * index order. */
#ifndef TWI_CPU_PROGRAM_H
#define TWI_CPU_PROGRAM_H

#include "cpu.h"
#include "base/context.h"

typedef struct twi_cpu_program twi_cpu_program;
typedef struct twi_cpu_phase twi_cpu_phase;

/* A batched operand in memory of all workers: moves on with the chunks. */
typedef struct twi_cpu_slice {
    int operand;
    unsigned char *base;
    size_t sample_bytes;
    size_t copy_stride; /* of the worker's own copies; 0: there is one */
} twi_cpu_slice;

/* A summed operand. Group g sums in part + g * stride; directly in the output where the stride is 0. */
typedef struct twi_cpu_sum {
    int operand;
    unsigned char *part;
    size_t stride;
    size_t bytes;
    unsigned char
        *total; /* where the groups' sums are combined: the output, or the first part of a layout of its own */
} twi_cpu_sum;

typedef struct twi_cpu_step {
    const twi_kernel *kernel;
    const twi_cpu_site *site; /* its impl is NULL for the specification */
    unsigned char *shared;
    bool wide; /* sums are of double */
    int slice_count, sum_count;
    twi_cpu_slice slice[TWI_MAX_OPERANDS];
    twi_cpu_sum sum[TWI_MAX_OPERANDS];
    int call;       /* index of its call for full chunks or ranges among a worker's; that for the last chunk follows */
    twi_call whole; /* on whole operands: to begin, to finish, to do at once */
} twi_cpu_step;

typedef struct twi_cpu_segment {
    int first_step, step_count;
    int64_t samples, chunk, chunks;
    int groups;
    int64_t range; /* of ranged steps */
    int first_phase, phase_count;
    double nanoseconds; /* guessed, of one worker */
} twi_cpu_segment;

/* Where the address of a lendable buffer stands: in a call's operand or in a slice. */
typedef struct twi_cpu_lent {
    int buffer; /* of the plan */
    twi_operand *operand;
    twi_cpu_slice *slice;
    unsigned char *own; /* the address in the arena, of this worker's copy */
    size_t copy_stride; /* of the slice there */
} twi_cpu_lent;

/* A piece of the sum of a step's output over groups. */
typedef struct twi_cpu_piece {
    const twi_cpu_step *step;
    const twi_cpu_sum *sum;
    size_t begin, end; /* bytes */
} twi_cpu_piece;

/* Does a part of a phase. */
typedef void twi_cpu_part(const twi_cpu_program *program, const twi_cpu_phase *phase, int part, int worker);

/* A worker's share of a phase's parts: it takes them first, and then what others have not come to. So parts that lie
 * at the same place of different phases tend to meet the same worker, and what they work on its cache. */
typedef struct twi_cpu_share {
    _Alignas(64) atomic_int next; /* the part to be taken next */
} twi_cpu_share;

struct twi_cpu_phase {
    twi_cpu_share *share; /* of every worker */
    twi_cpu_part *part;
    int parts;
    bool each;    /* every worker does it all, for its own copy of what is made */
    bool alone;   /* one worker does it all: the last to come to the barrier before, or else worker 0 */
    bool barrier; /* it begins when all that was before is done */
    const twi_cpu_segment *segment;
    int first; /* of the pieces, or of the lists of steps, that its parts are; of a range, its first step */
    int steps;     /* of a range: so many, one after the other, for every part */
    int64_t grain; /* what a part of it is a multiple of */
};

typedef struct twi_cpu_worker {
    twi_call *call;
    unsigned char *scratch; /* local buffers */
} twi_cpu_worker;

struct twi_cpu_program {
    twi_memory *memory;
    twi_pool *pool;
    int workers;
    size_t scratch_offset; /* of the implementations' scratch in a worker's */
    twi_cpu_step *step;
    twi_cpu_segment *segment;
    int segment_count;
    twi_cpu_phase *phase;
    int phase_count;
    twi_cpu_share *share; /* of all phases */
    twi_cpu_piece *piece;
    twi_cpu_lent *lent;
    int lent_count;
    int *begin;  /* steps that begin, in order */
    int *finish; /* steps that finish, in order */
    twi_cpu_worker *worker;
    twi_cpu_phase begin_phase; /* all steps that begin; no parts in a run whose constants are as before */
    int begin_count;           /* 0: each segment has a phase of its own for them */
    uint64_t constants;        /* for which they began */
    int constant_segments;
    const twi_control *control;
    twi_step_time *times; /* as in the plan; NULL: not timed */
    size_t times_row;
};

/* The kinds of phases, by their parts. */
twi_cpu_part twi_cpu_run_begin;  /* one step's begin */
twi_cpu_part twi_cpu_run_group;  /* all steps of a segment on a group of chunks */
twi_cpu_part twi_cpu_run_range;  /* part of a range */
twi_cpu_part twi_cpu_run_once;   /* all steps of a segment */
twi_cpu_part twi_cpu_run_piece;  /* a piece of a sum */
twi_cpu_part twi_cpu_run_finish; /* one step's finish */

/* Marks the phases that have a barrier before them. */
tw_status twi_cpu_place_barriers(twi_cpu_program *program, const twi_plan *plan, const void *arena);

/* Entries of the back end's table. */
tw_status twi_cpu_prepare(tw_context *context, void **out, const twi_plan *plan, twi_control *control, void *arena,
                          void *scratch);
void twi_cpu_discard(tw_context *context, void *prepared);
void twi_cpu_lend(tw_context *context, void *prepared, int buffer, const void *host);
tw_status twi_cpu_run(tw_context *context, void *prepared, int first_segment, int segment_count);

#endif

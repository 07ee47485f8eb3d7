/* Plans made by hand, for tests of the CPU back end: buffers, segments and steps one by one, every buffer with memory
 * of its own. Every call asserts success but those that return a status. */
#ifndef HAND_PLAN_H
#define HAND_PLAN_H

#include "backend/cpu/cpu.h"

enum { HAND_MOST = 32 };

typedef struct hand {
    tw_context *context;
    twi_plan plan;
    twi_buffer_plan buffer[HAND_MOST];
    twi_step_plan step[HAND_MOST];
    twi_segment segment[HAND_MOST];
    twi_cpu_site site[HAND_MOST]; /* of the steps the back end has not chosen for */
    twi_control control;
    unsigned char *arena, *scratch;
    void *prepared;
} hand;

void hand_open(hand *h, int threads);
/* Asserts that nothing is left. */
void hand_close(hand *h);

/* Returns the buffer's index. Dims end with -1; 4-D ones are stored channels last. */
int hand_buffer(hand *h, twi_place place, bool batched, const int64_t *dims);
#define DIMS(...) ((const int64_t[]){__VA_ARGS__, -1})
void hand_segment(hand *h, twi_split split, int64_t samples, int64_t chunk, int groups);
/* Appends a step to the last segment and returns its index; impl NULL: the specification. */
int hand_step(hand *h, const twi_kernel *kernel, const twi_cpu_impl *impl, const void *attrs, const int *operands);
#define OPERANDS(...) ((const int[]){__VA_ARGS__})
/* Lets the back end choose for the last step. */
tw_status hand_choose(hand *h);
/* Gives everything its memory and prepares. */
tw_status hand_bind(hand *h);
/* Runs all segments. */
void hand_run(hand *h);

/* A buffer of the arena: its memory, its number of elements; filled with numbers of its own in [-1, 1). */
float *hand_data(const hand *h, int buffer);
int64_t hand_count(const hand *h, int buffer);
void hand_fill(hand *h, int buffer);

#endif

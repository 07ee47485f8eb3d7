/* Runs a program step by step on memory of the test's own: the specification on the host, the CUDA kernel on the emulated
 * device, on the same inputs; and compares all that a step changes. Which programs, and in what memory, is up to the test. */
#ifndef EMU_KERNEL_CHECK_H
#define EMU_KERNEL_CHECK_H

#include "op_check/case_run.h"

/* How the values of a program lie in memory. */
typedef enum kernel_layout {
    KERNEL_PLANNED, /* as the layout pass has them: images N,H,W,C */
    KERNEL_ROWS,    /* all row-major */
    KERNEL_MIXED    /* neighbouring buffers differ: planned, row-major, N,W,H,C with gaps */
} kernel_layout;

typedef struct kernel_setting {
    const char *name;
    tw_dtype real; /* storage of TWI_REAL */
    kernel_layout layout;
    bool unaligned; /* every buffer begins an element late */
    bool faults;    /* some labels, gradients and losses are wrong */
    uint64_t micro; /* which batch of its window the run is */
    uint64_t slot;  /* that streamed inputs are taken from */
} kernel_setting;

/* Kernel records that ran, over all programs. */
typedef struct kernel_seen {
    const char *name[256];
    int count;
} kernel_seen;

/* Runs the program once, checking every step; adds to `failures` and tells of them. graph and data: what the program is of
 * and is given; NULL where it gathers what it needs. */
void kernel_check(const case_graph *graph, const tw_program *program, const case_data *data,
                  const kernel_setting *setting, kernel_seen *seen, int *failures);

#endif

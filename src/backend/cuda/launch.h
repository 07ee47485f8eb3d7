/* What a kernel's host side is given and gives back. A .cu file holds the device code of one kind of step, forward and
 * backward side by side, and for each kernel record it serves one row of a table: how to run a call of it on a stream.
 * A launcher only enqueues: it allocates nothing, waits for nothing, and its results depend on the call alone. */
#ifndef TWK_LAUNCH_H
#define TWK_LAUNCH_H

#include "backend/attrs.h"
#include "backend/step.h"
#include <cuda_runtime_api.h>

typedef struct twk_launch {
    cudaStream_t stream;
    void *workspace; /* as many bytes as the row's workspace function asked for, 256-aligned, uninitialised */
    int processors;  /* multiprocessors of the device: may size grids, must not change results */
} twk_launch;

/* A call is the whole batch, or the whole range, at once (begin and end say nothing more), its pointers in device
 * memory, its attrs and shapes on the host. Operands have any strides (fast paths are taken where they fit); absent
 * ones have data NULL. TWI_REAL operands are f32, f16 or bf16, all of one call alike; TWI_ACC are float. Sums are in
 * float. Outputs that sum over chunks are written, not added to: call->first is true. `control` lies in device memory
 * and is read, and where the record says so changed, by kernels. */
typedef struct twk_entry {
    const char *kernel;                                                 /* name of the kernel record: "relu.forward" */
    const char *(*refuse)(const twi_call *call);                        /* NULL: takes any call; else NULL or why not */
    size_t (*workspace)(const twi_call *call);                          /* bytes; NULL: none. From shapes alone */
    cudaError_t (*run)(const twi_call *call, const twk_launch *launch); /* cudaGetLastError() of its launches */
} twk_entry;

#endif

/* The CUDA back end's inside: a device, and families of implementations asked in order.
 *
 * Everything here is built into libtalweg-cuda, which the library opens at run time (src/backend/cuda_plugin.c). A step
 * is run on the whole batch at once, by one launch or a few on the device's stream; a program is captured as a graph
 * and launched. */
#ifndef TWI_CUDA_CUDA_H
#define TWI_CUDA_CUDA_H

#include "backend/backend.h"
#include <cuda_runtime_api.h>

typedef struct twi_cuda_dnn twi_cuda_dnn;   /* cudnn.c: a handle, or the description of a device that is not here */
typedef struct twi_cuda_blas twi_cuda_blas; /* cublaslt.c */

typedef struct twi_cuda_copies twi_cuda_copies;

typedef struct twi_cuda_block {
    void *memory;
    size_t bytes;
    const char *what;
} twi_cuda_block;

typedef struct twi_cuda_device {
    tw_context *context;
    int ordinal;          /* -1: described, not here: plans only */
    char name[128];
    int capability;       /* 90 for compute capability 9.0 */
    int processors;       /* multiprocessors */
    size_t total_bytes;
    cudaStream_t stream;  /* steps; non-blocking */
    twi_cuda_copies *copies; /* cuda_copy.c */
    bool catch_up;        /* what is copied beside the stream next waits for all that is on it */
    twi_cuda_dnn *dnn;    /* NULL: built without cuDNN */
    twi_cuda_blas *blas;  /* NULL where described: its heuristics need a device */
    bool each_step;       /* TALWEG_SYNC=1: no graphs; waits for every step, and names the one that fails */
    twi_cuda_block *block; /* device memory held */
    int block_count, block_capacity;
    tw_memory_stats memory;
    bool lost;            /* a sticky error: every later call answers so */
    char loss[256];       /* what it was */
} twi_cuda_device;

extern const twi_backend twi_backend_cuda, twi_backend_cuda_described;

static inline twi_cuda_device *twi_cuda_of(const tw_context *context) { return context->device; }

/* One step's implementation, prepared. */
typedef struct twi_cuda_family twi_cuda_family;
typedef struct twi_cuda_site {
    const twi_cuda_family *family;
    const twi_kernel *kernel;
    twi_cuda_device *device;
    void *state;            /* the family's own, made by prepare from the context's memory */
    const char *name;       /* for dumps: "cudnn", "cublaslt"; borrowed from the family or its state */
    size_t workspace_limit; /* what it may want, at most; a family's own measure may be less */
    size_t workspace_bytes; /* filled by prepare */
} twi_cuda_site;

struct twi_cuda_family {
    const char *name;
    /* Shapes only. TW_ERROR_UNSUPPORTED with a text: not for this family, the next one is asked. */
    tw_status (*prepare)(twi_cuda_site *site, const twi_call *call);
    void (*release)(twi_cuda_site *site);
    /* Enqueues on the stream, which may be capturing; neither allocates nor waits. */
    tw_status (*launch)(const twi_cuda_site *site, const twi_call *call, void *workspace, cudaStream_t stream);
};

/* In order of preference. */
extern const twi_cuda_family twi_cuda_user;     /* a user's ops: user_family.c */
extern const twi_cuda_family twi_cuda_cudnn;    /* convolutions, through cuDNN's graph interface */
extern const twi_cuda_family twi_cuda_cublaslt; /* matrix products */
extern const twi_cuda_family twi_cuda_kernels;  /* kernels/: everything */

/* backend->computes_in: cuda_describe.c. */
bool twi_cuda_computes_in(const tw_context *context, tw_precision precision);
/* backend->describe: cuda_describe.c. */
tw_status twi_cuda_describe(const tw_context *context, tw_device_info *out);
/* The same of a card that is only described. */
tw_status twi_cuda_describe_planned(const tw_context *context, tw_device_info *out);

/* Notes in the context what the same plan may compute other bits on. cuda_describe.c */
void twi_cuda_name_machine(const twi_cuda_device *device);

/* ---- failures: cuda_error.c. Each status is checked; the text names the call, the vendor's own word for it and a
 * remedy ---- */

/* Notes a failure after which the device is of no use, and answers with it. */
tw_status twi_cuda_lost(twi_cuda_device *device, const char *cause);
/* TW_OK, or the failure that a lost device answers every call with. */
tw_status twi_cuda_usable(const twi_cuda_device *device);
/* What every call on the device begins with: makes it the calling thread's, which may have another's. */
tw_status twi_cuda_enter(twi_cuda_device *device);

/* TW_OK, or the status that fits: out of memory with what is held, a lost device (sticky) from then on in every
 * call. */
tw_status twi_cuda_check(twi_cuda_device *device, cudaError_t error, const char *call);
#define TWI_CUDA(device, call) TWI_TRY(twi_cuda_check(device, (call), #call))

#endif

/* The CPU back end's inside: implementations of kernels, tried in order, the specification last.
 *
 * An implementation is single-threaded: the runner hands chunks of samples (or ranges) to workers, gives every group of
 * chunks a partial sum of its own and combines them in index order, so no implementation ever sees a thread. */
#ifndef TWI_CPU_CPU_H
#define TWI_CPU_CPU_H

#include "backend/backend.h"
#include "base/text.h"

/* Instruction sets, each containing the ones before it. TWI_ISA_NONE: no implementation is taken, the specification
 * runs. */
typedef enum twi_isa { TWI_ISA_NONE = -1, TWI_ISA_BASELINE, TWI_ISA_AVX2, TWI_ISA_AVX512, TWI_ISA_AVX512_BF16 } twi_isa;
/* What this processor has, lowered by the environment variable
 * TALWEG_CPU=specification|baseline|avx2|avx512|avx512_bf16 (another text: ignored). */
twi_isa twi_cpu_isa(void);
const char *twi_cpu_isa_name(twi_isa isa);
/* Fills in the processor's name and the machine's memory. */
void twi_cpu_describe_machine(tw_device_info *out);

typedef struct twi_cpu_impl twi_cpu_impl;

/* One step's implementation, prepared. */
typedef struct twi_cpu_site {
    const twi_cpu_impl *impl;
    const twi_kernel *kernel;
    const char *name;   /* for dumps; NULL: impl's */
    twi_memory *memory; /* for state */
    struct twi_onednn *onednn; /* the device's, of onednn.h; NULL without oneDNN */
    twi_isa isa;
    int workers;
    void *state[2];     /* for full chunks and for the shorter last one; the implementation's own */
    size_t shared_bytes, worker_bytes, partial_bytes[TWI_MAX_OPERANDS]; /* wishes, filled by prepare */
} twi_cpu_site;

/* Memory of one execution. */
typedef struct twi_cpu_workspace {
    void *shared;  /* shared_bytes, the same for all workers, filled by begin */
    void *scratch; /* worker_bytes, this worker's */
    int worker;
    int workers;   /* that the run is shared by */
    bool tail;     /* the call is the shorter last chunk */
} twi_cpu_workspace;

struct twi_cpu_impl {
    const char *kernel; /* kernel name it implements */
    const char *name;   /* for dumps: "onednn", "lanes avx2" */
    /* NULL: takes the call; else the reason it does not (borrowed text). Shapes only. */
    const char *(*refuse)(const twi_call *call, twi_isa isa);
    /* Optional: creates state for both chunk sizes (tail may be NULL) and states the memory it wants.
     * TW_ERROR_UNSUPPORTED: the call turned out not to be for it, nothing is kept, the next family is asked. */
    tw_status (*prepare)(twi_cpu_site *site, const twi_call *main, const twi_call *tail);
    void (*release)(twi_cpu_site *site);
    /* Optional: once a run, before any chunk, on one worker: shared = f(whole operands), e.g. reordered weights. Only
     * constants may be read: parameters, and what constant steps made of them. */
    void (*begin)(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace);
    /* One chunk or range. Summed outputs: call->first says replace, else add. Nothing is read beyond an operand's end:
     * what the host lent may end with the last page that there is. */
    void (*run)(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace);
    /* For summed outputs kept in a layout of its own, f32 (partial_bytes set): the runner has added the groups' parts,
     * element by element in index order, into partial[o]; what is left is to bring that sum into call's real output. */
    void (*finish)(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                   void *const partial[TWI_MAX_OPERANDS]);
    /* Where the attributes of a call decide how fast it is: adds them to a text, by which trials are remembered. The
     * same of all implementations of a kernel. */
    void (*describe)(const twi_call *call, twi_text *text);
    /* Optional: samples a chunk should be a multiple of (1: any). */
    int64_t (*multiple)(const twi_call *call, twi_isa isa);
    /* Optional: how many samples of a batched operand it would like side by side (twi_operand.lanes); 0: it does not
     * care. */
    int (*lanes)(const twi_call *call, twi_isa isa, int operand);
    bool turned; /* its refuse knows operands whose samples lie side by side; others are not asked about such calls */
};

/* Implementations by family, each ending with a NULL kernel; src/backend/cpu/impl_table.c lists the families in order
 * of preference. */
extern const twi_cpu_impl twi_cpu_inside_impls[];   /* convolutions of images about as small as the kernel */
extern const twi_cpu_impl twi_cpu_winograd_impls[]; /* 3x3 convolutions without strides, by fewer products */
extern const twi_cpu_impl twi_cpu_pixels_impls[];   /* convolutions of few channels on few images */
extern const twi_cpu_impl twi_cpu_onednn_impls[];   /* convolutions of 16 channels and more (empty without oneDNN) */
extern const twi_cpu_impl twi_cpu_lanes_impls[];    /* convolutions of few channels, a vector of images at a time */
extern const twi_cpu_impl twi_cpu_windows_impls[];  /* the same with a pooling of 2x2 behind them */
extern const twi_cpu_impl twi_cpu_winners_impls[];  /* gradients through a max pooling, of what won alone */
extern const twi_cpu_impl twi_cpu_channelwise_impls[]; /* convolutions with one filter a channel */
extern const twi_cpu_impl twi_cpu_features_impls[]; /* dense layers by ranges of features that lie one by one */
extern const twi_cpu_impl twi_cpu_gemm_impls[];     /* dense layers */
extern const twi_cpu_impl twi_cpu_patches_impls[];  /* any convolution, by products of patches */
extern const twi_cpu_impl twi_cpu_norm_impls[];     /* batch norm pieces */
extern const twi_cpu_impl twi_cpu_point_impls[];    /* element-wise, pooling, loss, optimizers, copies */
extern const twi_cpu_impl twi_cpu_fold_impls[];     /* scalings that go into weights */

/* The first family member that takes the call, or NULL: then the specification runs. With reason != NULL: text of the
 * last refusal. */
const twi_cpu_impl *twi_cpu_find_impl(const char *kernel, const twi_call *call, twi_isa isa, const char **reason);
/* The same among the members behind `after` (NULL: all). */
const twi_cpu_impl *twi_cpu_find_impl_after(const twi_cpu_impl *after, const char *kernel, const twi_call *call, twi_isa isa,
                                            const char **reason);

#endif

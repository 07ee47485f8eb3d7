/* What passes between the passes and a back end: kernel records, operands, calls, and the planned list of steps.
 * A step is one kernel call on named buffers. A kernel record declares for every operand what is read and written, how
 * it is stored and how it relates to the batch, so that no pass and no back end ever asks which op it is looking at. */
#ifndef TWI_BACKEND_STEP_H
#define TWI_BACKEND_STEP_H

#include "base/philox.h"
#include "base/shape.h"
#include "guard.h"

/* CUDA sources are C++ and see the same structs; there a fault word is changed by the device's own atomic functions. */
#ifdef __cplusplus
#define TWI_ATOMIC(type) type
#else
#include <stdatomic.h>
#define TWI_ATOMIC(type) _Atomic type
#endif

/* The element type of the specification loops. The op files are compiled once with float (the library) and once more
 * with double (the tests, TWI_REAL_DOUBLE), where every symbol made with TWI_NAME gets a suffix. */
#ifdef TWI_REAL_DOUBLE
typedef double tw_real;
#define TWI_NAME(name) name##_f64
#else
typedef float tw_real;
#define TWI_NAME(name) name
#endif

enum { TWI_MAX_OPERANDS = 12, TWI_DTYPE_DOUBLE = 0xff };
/* Weights or sums that a core's second-level cache keeps while samples pass: larger ones come from further away every
 * time they are gone through. */
enum { TWI_CACHED_BYTES = 1 << 20 };

typedef enum twi_access { TWI_READ, TWI_WRITE, TWI_UPDATE /* read and written in place: persistent state */ } twi_access;

typedef enum twi_store_kind {
    TWI_REAL, /* the program's storage type for this value; tw_real in the specification */
    TWI_ACC,  /* never narrower than f32: statistics, sums, master weights; tw_real in the specification */
    TWI_F32,  /* f32 whatever the program computes in: what was made outside of it */
    TWI_I32,
    TWI_U8,
    TWI_BITS, /* one bit an element, in memory order within a sample, each sample starting on a byte; bit i is byte i/8,
                 1 << i%8 */
    TWI_GRADIENT /* of rules alone, a weight's gradient: as TWI_REAL where the step is the only one to add to it, else
                    as TWI_ACC. The buffer says which; what is summed on the way to it is f32 */
} twi_store_kind;

/* Which type a step has, that is, what its TWI_REAL operands are stored in: all of them alike. */
typedef enum twi_types {
    TWI_TYPES_FOLLOW, /* the program's, or that of the rule for its layer */
    TWI_TYPES_F32,    /* f32 in every program */
    TWI_TYPES_READERS /* brings an input: what those that read it want */
} twi_types;

typedef enum twi_reach {
    TWI_BATCHED, /* axis 0 is the batch: a chunk is handed its own samples only */
    TWI_WHOLE,   /* every chunk is handed all of it */
    TWI_RANGED,  /* every part of a range is handed all of it, and touches its own part alone: said of what steps of one
                    range hand each other */
    TWI_SUMMED   /* an output that sums over the chunks: a call adds its part (replaces when call->first) */
} twi_reach;

typedef enum twi_split {
    TWI_BY_SAMPLE, /* runs on any run of samples: batched operands are sliced along axis 0 */
    TWI_BY_RANGE,  /* runs on any part begin..end-1 of kernel->range(call); operands come whole */
    TWI_AT_ONCE    /* runs once, on one worker */
} twi_split;

typedef struct twi_operand_rule {
    const char *name;
    uint8_t access, store, reach;
    uint8_t over; /* 1 + index of the operand whose memory this output may take (same store and size); 0: none */
} twi_operand_rule;

typedef struct twi_operand {
    void *data;                  /* first element of the chunk; NULL while only shapes are asked about, or for an absent
                                    operand */
    twi_shape shape;             /* logical (N,C,H,W; O,I,H,W); axis 0 is the chunk's sample count for batched
                                    operands */
    int64_t stride[TW_MAX_RANK]; /* in elements, per logical axis (for TWI_BITS: of the value it masks) */
    uint8_t store;               /* twi_store_kind */
    uint8_t dtype;               /* of real operands: tw_dtype (halves where store is TWI_REAL alone), or
                                    TWI_DTYPE_DOUBLE in the double checks */
    /* 0, or how many samples lie side by side: element e of sample n is at (n / lanes * elements a sample + e) * lanes
     * + n % lanes, and the last block of samples is whole. Only an implementation that a back end said takes it is
     * handed such an operand. */
    uint8_t lanes;
} twi_operand;

/* Why a step refused: written by kernels, read by the runner after the program; persistent state commits only while
 * code is 0. */
typedef struct twi_fault {
    TWI_ATOMIC(uint32_t) lock;
    TWI_ATOMIC(int32_t) code; /* tw_status */
    int32_t node;         /* index of the graph node */
    int64_t sample;       /* position in the effective batch; the smallest one wins */
    double value;         /* what was found there, e.g. the label */
} twi_fault;

/* In place of a sample, in the order in which they yield: a fault of the run as a whole, too many updates left out, and
 * from there on places of gradients (twi_guard). A sample's own fault explains more. */
#define TWI_FAULT_RUN (INT64_MAX / 2)
#define TWI_FAULT_PATIENCE (TWI_FAULT_RUN + 1)
#define TWI_FAULT_PLACE (TWI_FAULT_RUN + 2)

/* Where the steps of gather.* take the samples of a run from: a resident data set, in device memory. */
typedef struct twi_resident_view {
    const void *images;    /* one sample after the other, C,H,W, u8 or f32 */
    const int32_t *labels; /* one a sample */
    const int32_t *order;  /* the samples of the epoch, by their numbers */
    uint64_t epoch;        /* names the draws of augmentation */
    uint64_t position;     /* in order: the first sample of this run. All that advances from run to run, by the batch */
} twi_resident_view;

/* The scalars of a run. They live in device memory. What the host knows before a run comes first and is sent with it;
 * what follows steps advance themselves, and the host learns when the run is over. */
typedef struct twi_control {
    uint64_t seed;
    uint64_t attempt;     /* the run or window under way, committed or not: data and random streams */
    uint64_t constants;   /* changes whenever parameters did, or workspace may have been overwritten; 0: no promise */
    double sample_weight; /* one over the samples of the whole accumulation window */
    uint64_t micro;       /* which batch of its window the run is, from 0 */
    int64_t window_sample; /* samples of the window before this batch */
    twi_resident_view resident; /* of programs that gather their own batches */
    uint64_t slot;        /* 0 or 1: which one of its slots a streamed input is taken from */
    int32_t bad_loss;     /* sent as 0; steps make it 1 + the node of the run's first loss that is not finite */
    uint64_t update;      /* advances only when the update is committed: schedule, Adam */
    double learning_rate; /* of the update under way */
    twi_guard guard;
    twi_fault fault;
} twi_control;

/* What a kernel says of the control block (twi_kernel.control), for a back end that orders steps by what they touch. What
 * the host sent for the run anybody reads without a word. A kernel that does not look at faults may raise some. */
typedef enum twi_control_use {
    TWI_CONTROL_READ = 1,   /* reads what steps advance: update, learning_rate, bad_loss, guard */
    TWI_CONTROL_FAULTS = 2, /* looks whether a fault was raised; raises none, unless it writes as well */
    TWI_CONTROL_WRITE = 4   /* changes what steps advance, or raises faults though it looks for them */
} twi_control_use;

#ifndef __cplusplus
/* Records a fault; of several the one with the smallest sample stays, so that the report does not depend on threads. */
void twi_fault_raise(twi_control *control, tw_status code, int32_t node, int64_t sample, double value);
static inline bool twi_fault_raised(twi_control *control) {
    return atomic_load_explicit(&control->fault.code, memory_order_acquire) != 0;
}
/* Is the run faulty, or its update left out? Then steps that change persistent state do nothing. */
static inline bool twi_run_refused(twi_control *control) {
    return twi_fault_raised(control) || control->guard.refused;
}
#endif

typedef struct twi_kernel twi_kernel;

typedef struct twi_call {
    const twi_kernel *kernel; /* what is called */
    const void *attrs;     /* the op's attribute struct */
    twi_control *control;
    uint64_t stream;       /* hash of the node's name: random stream of the node */
    int32_t node;          /* index of the graph node, for faults */
    bool first;            /* TWI_SUMMED operands: this call replaces (true) or adds (false) */
    bool tf32;             /* products may read f32 operands as TF32 */
    int64_t sample;        /* position of the chunk's first sample in the batch */
    int64_t begin, end;    /* TWI_BY_RANGE: the part to do */
    void *workspace;       /* for kernel->run: as many bytes as kernel->workspace says */
    int operand_count;
    twi_operand operand[TWI_MAX_OPERANDS];
} twi_call;

struct twi_kernel {
    const char *name; /* "conv2d.forward" */
    uint8_t operand_count;
    twi_operand_rule operand[TWI_MAX_OPERANDS];
    uint8_t split;                        /* twi_split */
    uint8_t types;                        /* twi_types */
    uint8_t control;                      /* twi_control_use bits, of whatever implements it */
    /* Flat arrays in two types: 1 + index of the f32 operand beside which this one holds the same elements in half
     * precision; 0: none. Such operands are absent where no element is kept so, and every implementation reads or
     * writes them itself. */
    uint8_t half_of[TWI_MAX_OPERANDS];
    int64_t (*range)(const twi_call *);   /* TWI_BY_RANGE: the number of parts (rows, elements, shares) */
    int64_t grain;                        /* TWI_BY_RANGE: parts worth handing out together; 0: 1 */
    double (*flops)(const twi_call *);    /* multiply-add = 2; NULL: counted as bytes only */
    void (*run)(const twi_call *);        /* the specification: readable loops in tw_real. Summed outputs: always adds;
                                             the runner clears first */
    /* Kernels of a user's op: what kernel->run wants beside the operands, and how the call is put on a device's stream
     * (unbatched outputs are cleared first). */
    const struct twi_user_op *user;
    bool nondeterministic; /* equal operands may give other bits */
    bool pure; /* what it writes depends on its operands and attributes alone: of constants it makes constants */
    /* Of a kernel that goes by sample: the name of one that takes the same operands and gives the same, up to the order
     * of sums, by range, each part with a part of the weights, or of their gradients, that are operand `range_of`.
     * NULL: there is none. */
    const char *by_range;
    uint8_t range_of;
    size_t (*workspace)(const twi_call *);
    void (*enqueue)(const twi_call *, void *workspace, void *stream);
};

/* Element access for specification loops: operand o of the call as a typed pointer, and its offset by strides. */
#define TWI_DATA(type, call, o) ((type *)(call)->operand[o].data)
static inline int64_t twi_at4(const twi_operand *o, int64_t n, int64_t c, int64_t h, int64_t w) {
    return n * o->stride[0] + c * o->stride[1] + h * o->stride[2] + w * o->stride[3];
}
/* Offset of a sample's element, counted in logical order (axes 1.., the last one fastest): for loops over any rank. */
static inline int64_t twi_offset(const twi_operand *o, int64_t sample, int64_t index) {
    int64_t offset = sample * o->stride[0];
    for (int axis = o->shape.rank - 1; axis > 0; axis--) {
        offset += index % o->shape.dim[axis] * o->stride[axis];
        index /= o->shape.dim[axis];
    }
    return offset;
}
/* The random stream of a call: its node's, and another one in every attempt. */
static inline uint64_t twi_call_stream(const twi_call *call) {
    return twi_attempt_stream(call->stream, call->control->attempt);
}
/* Position in the effective batch, the whole window, of sample n of the chunk: what random numbers and faults name. */
static inline int64_t twi_call_position(const twi_call *call, int64_t n) {
    return call->control->window_sample + call->sample + n;
}
/* The number of the resident sample that is gathered as sample n of a call. */
static inline int64_t twi_call_resident(const twi_call *call, int64_t n) {
    const twi_resident_view *resident = &call->control->resident;
    return resident->order[(int64_t)resident->position + call->sample + n];
}
/* Elements of the first operand: the range of what runs over them. */
static inline int64_t twi_call_elements(const twi_call *call) { return twi_shape_count(&call->operand[0].shape); }
/* Elements of one sample (axes 1..): the length of a flat loop over a sample. */
static inline int64_t twi_sample_count(const twi_operand *o) { return twi_shape_count_from(&o->shape, 1); }
/* Bytes of one sample's bits. */
static inline int64_t twi_bits_bytes(int64_t elements) { return (elements + 7) / 8; }
static inline bool twi_bit_get(const uint8_t *bits, int64_t i) { return bits[i >> 3] >> (i & 7) & 1; }
static inline void twi_bit_set(uint8_t *bits, int64_t i, bool value) {
    bits[i >> 3] = (uint8_t)((bits[i >> 3] & ~(1u << (i & 7))) | (unsigned)value << (i & 7));
}

/* ---- the planned program, as a back end gets it ---- */

typedef enum twi_place {
    TWI_PLACE_ARENA, /* offset in the shared arena */
    TWI_PLACE_LOCAL, /* offset in every worker's scratch: lives within one chunk */
    TWI_PLACE_FIXED  /* address of its own: parameters, state, feeds */
} twi_place;

typedef struct twi_buffer_plan {
    const char *name;
    twi_shape shape; /* whole batch */
    int64_t stride[TW_MAX_RANK];
    uint8_t store, dtype, lanes;
    bool batched;
    uint8_t place;         /* twi_place */
    size_t offset;         /* TWI_PLACE_ARENA, TWI_PLACE_LOCAL */
    void *address;         /* TWI_PLACE_FIXED */
    size_t bytes;          /* whole buffer */
    size_t sample_bytes;   /* batched: one sample */
    size_t copy_stride;    /* TWI_PLACE_ARENA: workers have copies of the same values, so far apart; 0: there is one */
    int lendable;          /* TWI_PLACE_ARENA, written by no step: 1 + index of the buffer, itself or the one it is a view
                              of, that backend->lend may have read elsewhere; 0: it stays in the arena */
} twi_buffer_plan;

/* What a back end asks for when it chooses an implementation. */
typedef struct twi_choice {
    const char *implementation; /* borrowed, for dumps */
    void *state;                /* the back end's own, released by backend->release */
    size_t shared_bytes;        /* workspace that lives through the whole run (plan.brief_shared: its segment), e.g.
                                   reordered weights */
    size_t worker_bytes;        /* scratch per worker */
    size_t partial_bytes[TWI_MAX_OPERANDS]; /* summed outputs: one group's part in the implementation's own layout */
} twi_choice;

/* How far apart the parts of neighbouring groups lie: whole cache lines, so that no two workers write to one. */
static inline size_t twi_partial_stride(size_t bytes) { return (bytes + 63) / 64 * 64; }

typedef struct twi_step_plan {
    const twi_kernel *kernel;
    const void *attrs;
    const char *label; /* node name, for messages */
    uint64_t stream;
    int32_t node;
    int buffer[TWI_MAX_OPERANDS]; /* index into buffers; -1: absent */
    bool tf32;
    int segment;
    twi_choice choice;
    size_t shared_offset;                     /* in the arena */
    size_t partial_offset[TWI_MAX_OPERANDS];  /* in the arena: groups x twi_partial_stride */
} twi_step_plan;

/* A run of steps done chunk by chunk without a barrier in between (TWI_BY_SAMPLE), or part by part of one range, or steps
 * done at once.
 * The batch is cut into chunks of `chunk` samples (the last may be shorter), the chunks into `groups` contiguous runs;
 * a group's sums add in order and groups are combined in index order, whoever runs them. */
typedef struct twi_segment {
    int first_step, step_count;
    uint8_t split; /* twi_split */
    int64_t samples, chunk;
    int groups;
} twi_segment;

/* What the runs of a step took: calls of its implementation, and nanoseconds with what is done around them for the step
 * alone. */
typedef struct twi_step_time {
    int64_t nanoseconds;
    uint64_t calls;
} twi_step_time;

typedef struct twi_plan {
    twi_buffer_plan *buffer;
    int buffer_count;
    twi_step_plan *step;
    int step_count;
    twi_segment *segment;
    int segment_count;
    int update_segment;  /* the first of the update; segment_count: none */
    int constant_segments; /* the first ones, which are run apart from the others: their results stay for later runs */
    bool brief_shared;   /* shared workspaces hold during their segment alone: they are filled anew in every run, before
                            it */
    size_t arena_bytes;  /* activations, shared workspaces, partial sums */
    size_t worker_bytes; /* local buffers (at offset 0) and scratch (from scratch_offset) of one worker */
    size_t scratch_offset;
    /* Where the times of steps are added up, a row a worker, whole cache lines apart; NULL: nobody asks. */
    twi_step_time *times;
    size_t times_row; /* entries of a row, step_count at least */
} twi_plan;

#endif

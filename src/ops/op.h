/* What an op is: its record, the nodes and values a graph is made of, and the calls by which an op turns itself into
 * steps. One file an op holds: formula, shape rule, steps of forward and backward, specification loops, cases,
 * record. */
#ifndef TWI_OPS_OP_H
#define TWI_OPS_OP_H

#include "backend/step.h"
#include <stddef.h>

typedef struct twi_op twi_op;
typedef struct twi_node twi_node;
typedef struct tw_value tw_value;

enum { TWI_MAX_INPUTS = 8, TWI_MAX_OUTPUTS = 2, TWI_MAX_SAVED = 4 };

/* Attributes: read by model files, cache keys and dumps. */
typedef enum twi_attr_type { TWI_ATTR_INT /* int32_t */, TWI_ATTR_FLOAT /* float */, TWI_ATTR_BOOL /* bool */, TWI_ATTR_INTS /* int64_t[TW_MAX_RANK] */ } twi_attr_type;
typedef struct twi_attr {
    const char *name;
    uint8_t type;
    uint16_t offset;
    double preset; /* default */
} twi_attr;

typedef enum twi_value_kind {
    TWI_VALUE_RESULT,    /* made by a node */
    TWI_VALUE_INPUT,     /* fed */
    TWI_VALUE_PARAMETER, /* learned */
    TWI_VALUE_BUFFER     /* kept, not learned: running statistics */
} twi_value_kind;

struct tw_value {
    const char *name;   /* "conv1", "conv1.weight": unique in its graph */
    int id;             /* index in the graph */
    uint8_t kind;       /* twi_value_kind */
    uint8_t store;      /* twi_store_kind */
    bool batched;       /* axis 0 is the batch (shape holds 1 there until a program is built) */
    twi_shape shape;
    twi_node *producer; /* TWI_VALUE_RESULT */
    int output;         /* which output of the producer */
    int parameter;      /* TWI_VALUE_PARAMETER, TWI_VALUE_BUFFER: index in the parameter store */
};

struct twi_node {
    const twi_op *op;
    const char *name;
    int id;
    void *attrs;
    int input_count, output_count;
    tw_value *input[TWI_MAX_INPUTS];
    tw_value *output[TWI_MAX_OUTPUTS];
};

/* ---- shape rule ---- */

typedef struct twi_infer {
    const twi_op *op;
    const char *name; /* node name, for messages */
    const void *attrs;
    int input_count;
    twi_shape input[TWI_MAX_INPUTS];
    bool batched[TWI_MAX_INPUTS];
    uint8_t input_store[TWI_MAX_INPUTS]; /* twi_store_kind */
    /* filled by the rule: output_count shapes; store and batched are preset to TWI_REAL and true */
    int output_count;
    twi_shape output[TWI_MAX_OUTPUTS];
    uint8_t output_store[TWI_MAX_OUTPUTS];
    bool output_batched[TWI_MAX_OUTPUTS];
} twi_infer;

/* ---- turning a node into steps (implemented by the lowering pass, src/program/lower.c) ----
 * Every buffer is written by exactly one step. Failures are sticky: these calls then return TWI_NO_REF or do
 * nothing. */

typedef struct twi_lower twi_lower;
typedef int twi_ref; /* a buffer of the program */
#define TWI_NO_REF (-1)

bool twi_lower_training(const twi_lower *lower);
const twi_op *twi_lower_op(const twi_lower *lower);
/* The node's attribute struct, and its shapes at the program's batch size. */
const void *twi_lower_attrs(const twi_lower *lower);
const twi_shape *twi_lower_input_shape(const twi_lower *lower, int input);
const twi_shape *twi_lower_output_shape(const twi_lower *lower, int output);
/* Buffer of an input (to read) or output (to write). Outputs are usable in backward too. */
twi_ref twi_lower_input(twi_lower *lower, int input);
twi_ref twi_lower_output(twi_lower *lower, int output);
/* A new buffer of the program. shape axis 0 is the batch if batched. */
twi_ref twi_lower_buffer(twi_lower *lower, const char *name, const twi_shape *shape, twi_store_kind store, bool batched);
/* A new buffer with the shape of another one, row-major even where that is an image. */
twi_ref twi_lower_row_major(twi_lower *lower, twi_ref like);
/* Keeps a buffer under a slot from forward for backward. */
void twi_lower_save(twi_lower *lower, int slot, twi_ref ref);
twi_ref twi_lower_saved(twi_lower *lower, int slot);
/* The buffer that will replace a TWI_VALUE_BUFFER input (running statistics) if the step commits. */
twi_ref twi_lower_shadow(twi_lower *lower, int input);
/* Backward: gradient of an output (TWI_NO_REF: nobody has one), and a fresh buffer for this node's contribution to the
 * gradient of an input (TWI_NO_REF: nobody wants it). Contributions to one value are added in a fixed order by the
 * lowering pass. */
twi_ref twi_lower_output_gradient(twi_lower *lower, int output);
twi_ref twi_lower_input_gradient(twi_lower *lower, int input);
/* Does anybody want the gradient of this input? */
bool twi_lower_wants_gradient(const twi_lower *lower, int input);
/* This node's contribution to an input's gradient is an existing buffer (e.g. the output's gradient passed through). */
void twi_lower_give_gradient(twi_lower *lower, int input, twi_ref ref);
/* Appends a step: one ref per operand of the kernel, TWI_NO_REF for an optional one. The step gets the node's
 * attributes. */
void twi_lower_step(twi_lower *lower, const twi_kernel *kernel, const twi_ref *operands);

/* ---- cases: what the generic checks run an op on ---- */

enum { TWI_CASE_NUMBERS = 12 };
typedef struct twi_case {
    const char *name;
    int64_t p[TWI_CASE_NUMBERS]; /* what op->build_case makes of them */
} twi_case;

/* Offered to build_case: makes values and nodes in a graph (implemented by the op check). Fed with values kept off
 * kinks. */
typedef struct twi_builder twi_builder;
struct twi_builder {
    void *self;
    /* A batched input (shape with batch in axis 0); its gradient is checked when real. */
    tw_value *(*input)(twi_builder *builder, const char *name, int rank, const int64_t *dims);
    /* Integer labels 0..classes-1, one a sample. */
    tw_value *(*labels)(twi_builder *builder, int64_t batch, int64_t classes);
    tw_value *(*parameter)(twi_builder *builder, const char *name, int rank, const int64_t *dims);
    /* A kept value that is not learned, filled with `value`. */
    tw_value *(*buffer)(twi_builder *builder, const char *name, int rank, const int64_t *dims, double value);
    /* A node of the op called `op` in the registry; returns output 0. */
    tw_value *(*node)(twi_builder *builder, const char *op, const char *name, int input_count, tw_value *const *inputs, const void *attrs);
};

/* ---- the record ---- */

struct twi_op {
    const char *name;          /* "conv2d" */
    const char *formula;       /* one line, for dumps and documentation */
    uint8_t inputs_min, inputs_max, outputs;
    const twi_attr *attrs;     /* table, attr_count rows */
    int attr_count;
    size_t attr_size;          /* bytes of the attribute struct */
    const twi_attr *frozen;    /* ops that train with statistics over the batch: the TWI_ATTR_BOOL by which they do not;
                                  NULL: others */
    bool completes;            /* what makes its first input is part of its layer, and the name is its own: a bias
                                  behind a product */
    tw_status (*infer)(twi_infer *infer);
    void (*forward)(twi_lower *lower);
    void (*backward)(twi_lower *lower); /* NULL: no gradient flows through */
    const twi_kernel *const *kernels; /* ends with NULL */
    const twi_case *cases;     /* ends with a NULL name */
    tw_value *(*build_case)(twi_builder *builder, const twi_case *c);
    const char *fused;         /* kernel that must appear when a case is compiled with fusion (fused ops); NULL: none */
    bool untrained;            /* it does so in programs without training, and in no other */
    bool asked;                /* it does so only where the back end has an implementation, which may be for "large"
                                  cases alone; without `fused`: a
                                  * pass takes its kernels on back ends that go chunk by chunk, and others need none */
};

/* The ops of a context: those of ops.def, in float or, for the double checks, in double; and a user's. */
typedef struct twi_registry {
    const twi_op *const *ops; /* ends with NULL */
    size_t real_size;         /* bytes of tw_real in its specification loops: 4, or 8 for the double table of the
                                 tests */
    const twi_op **grown;     /* `ops`, where something was added to it */
    struct twi_user_op *user; /* made by tw_op_register, linked */
} twi_registry;

extern const twi_registry TWI_NAME(twi_registry_builtin);

/* A context's own registry, which begins as the built-in one; its address stays. close does nothing twice. */
struct tw_context;
tw_status twi_registry_open(struct tw_context *context);
void twi_registry_close(struct tw_context *context);
/* Adds an op, which must outlive the context, to those that models of this context are made of. Errors: ARGUMENT if the
 * name of the op or of one of its kernels is taken. */
tw_status twi_registry_add(struct tw_context *context, const twi_op *op);

const twi_op *twi_registry_find(const twi_registry *registry, const char *op_name);
const twi_kernel *twi_registry_find_kernel(const twi_registry *registry, const char *kernel_name);

#endif

/* As much of oneDNN as convolutions need, the same over its versions 2.6 and 3.x. onednn.c alone knows dnnl.h; what a
 * step makes of it is in onednn_impls.c. Built without oneDNN, a device has none (NULL) and the family is empty. */
#ifndef TWI_CPU_ONEDNN_H
#define TWI_CPU_ONEDNN_H

#include "base/memory.h"

/* Does oneDNN multiply bf16 with this processor's instructions, rather than by way of others? */
bool twi_onednn_has_bf16(void);

/* The engine, and a stream for every worker. */
typedef struct twi_onednn twi_onednn;

/* Without oneDNN: *out is NULL and all is well. */
tw_status twi_onednn_open(twi_onednn **out, twi_memory *memory, int workers);
void twi_onednn_close(twi_onednn *onednn);
/* "oneDNN 2.6.3", or "no oneDNN". */
const char *twi_onednn_version(void);

/* oneDNN takes as many threads as OpenMP grants the calling thread. Around everything that creates or runs primitives,
 * since workers are threads already: enter makes that one, leave restores what the thread had. */
int twi_onednn_enter(void);
void twi_onednn_leave(int before);

/* One compiled primitive, shared by all workers. */
typedef struct twi_onednn_op twi_onednn_op;

/* The roles of a convolution's operands in all three directions; the direction says which of x, w, y is written. */
enum { TWI_ONEDNN_X, TWI_ONEDNN_W, TWI_ONEDNN_Y, TWI_ONEDNN_BIAS, TWI_ONEDNN_ROLES };
typedef enum twi_onednn_direction {
    TWI_ONEDNN_FORWARD,
    TWI_ONEDNN_BACKWARD_DATA,
    TWI_ONEDNN_BACKWARD_WEIGHTS
} twi_onednn_direction;

typedef int64_t twi_onednn_dims[12]; /* as long as oneDNN declares its own */

typedef struct twi_onednn_conv {
    twi_onednn_direction direction;
    bool bias;                                              /* forward only */
    bool bf16;                                              /* x, w, y and bias; of a gradient of w, x and y */
    twi_onednn_dims x, w, y;                                /* N,C,H,W and O,I,H,W */
    twi_onednn_dims stride, dilation, padding, padding_end; /* h, w; padding: top and left, end: bottom and right */
} twi_onednn_conv;

/* A convolution of f32 or bf16 on NHWC images; sums and a gradient of w are f32. The layout of w is oneDNN's choice, or
 * that of `like`'s (if not NULL).
 * TW_ERROR_UNSUPPORTED: oneDNN has no fast code for it. */
tw_status twi_onednn_conv_create(twi_onednn_op **out, twi_onednn *onednn, const twi_onednn_conv *conv,
                                 const twi_onednn_op *like);
/* Between w of such a convolution (op, made from conv) and plain OHWI, which is bf16 or f32: into oneDNN's layout
 * (inward) or out of it, rounding to nearest even. Data: from, to. */
tw_status twi_onednn_reorder_create(twi_onednn_op **out, const twi_onednn_op *op, const twi_onednn_conv *conv,
                                    bool inward, bool bf16);
void twi_onednn_op_destroy(twi_onednn_op *op);

/* Bytes of w in the layout the convolution wants, and of the scratch an execution needs. */
size_t twi_onednn_weight_bytes(const twi_onednn_op *conv);
size_t twi_onednn_scratch_bytes(const twi_onednn_op *op);
/* Runs on the calling worker with data by role (from, to for a reorder). False if oneDNN failed. */
bool twi_onednn_execute(twi_onednn_op *op, int worker, void *const *data, void *scratch);

#endif

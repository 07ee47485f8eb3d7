/* An op of a user's as the library keeps it: the record that all passes see, and behind it what the user gave. */
#ifndef TWI_OPS_USER_OP_H
#define TWI_OPS_USER_OP_H

#include "op.h"
#include <talweg/op.h>

typedef struct twi_user_op {
    twi_op op; /* first: a record's address is its user op's */
    tw_op_options given;
    int input_count; /* values and parameters */
    twi_kernel predict, train, backward;
    const twi_kernel *kernels[4]; /* ends with NULL */
    struct twi_user_op *next;     /* in the registry; attribute rows and texts follow in the same block */
} twi_user_op;

/* Completes an op whose `given`, attribute rows and name are there. names: of the kernels predict, train and
 * backward. */
void twi_user_op_fill(twi_user_op *user, const char *const names[3]);
/* NULL: the op is none of a user's. */
const twi_user_op *twi_user_op_of(const twi_op *op);

#endif

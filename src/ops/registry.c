/* The table of all ops, made from ops.def, and look-ups in it. */
#include "op.h"

#include <string.h>

#define TWI_OP(symbol) extern const twi_op TWI_NAME(twi_op_##symbol);
#include "ops.def"
#undef TWI_OP

#define TWI_OP(symbol) &TWI_NAME(twi_op_##symbol),
static const twi_op *const all_ops[] = {
#include "ops.def"
    NULL};
#undef TWI_OP

const twi_registry TWI_NAME(twi_registry_builtin) = {all_ops, sizeof(tw_real)};

#ifndef TWI_REAL_DOUBLE
const twi_op *twi_registry_find(const twi_registry *registry, const char *op_name) {
    for (const twi_op *const *op = registry->ops; *op; op++)
        if (strcmp((*op)->name, op_name) == 0) return *op;
    return NULL;
}

const twi_kernel *twi_registry_find_kernel(const twi_registry *registry, const char *kernel_name) {
    for (const twi_op *const *op = registry->ops; *op; op++)
        for (const twi_kernel *const *kernel = (*op)->kernels; kernel && *kernel; kernel++)
            if (strcmp((*kernel)->name, kernel_name) == 0) return *kernel;
    return NULL;
}
#endif

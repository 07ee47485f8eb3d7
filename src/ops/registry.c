/* The table of all ops, made from ops.def, look-ups in it, and a context's additions to it. */
#include "op.h"
#include "base/context.h"

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

tw_status twi_registry_add(tw_context *context, const twi_op *op) {
    if (twi_registry_find(context->registry, op->name))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "op '%s': the context has an op of that name", op->name);
    for (const twi_kernel *const *kernel = op->kernels; kernel && *kernel; kernel++)
        if (twi_registry_find_kernel(context->registry, (*kernel)->name))
            return TWI_FAIL(TW_ERROR_ARGUMENT, "op '%s': the context has a kernel '%s'", op->name, (*kernel)->name);
    size_t count = 0;
    while (context->registry->ops[count]) count++;
    twi_registry *grown; /* the table follows its head; the last entry stays NULL */
    TWI_TRY(twi_get(context->memory, &grown, 1, sizeof *grown + (count + 2) * sizeof(twi_op *), "op table"));
    const twi_op **table = (const twi_op **)(grown + 1);
    memcpy(table, context->registry->ops, count * sizeof *table);
    table[count] = op;
    grown->ops = table;
    grown->real_size = context->registry->real_size;
    twi_put(context->memory, context->own_registry);
    context->registry = context->own_registry = grown;
    return TW_OK;
}
#endif

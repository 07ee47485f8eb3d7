/* The table of all ops, made from ops.def, look-ups in it, and a context's additions to it. */
#include "base/context.h"
#include "user_op.h"

#include <string.h>

#define TWI_OP(symbol) extern const twi_op TWI_NAME(twi_op_##symbol);
#include "ops.def"
#undef TWI_OP

#define TWI_OP(symbol) &TWI_NAME(twi_op_##symbol),
static const twi_op *const all_ops[] = {
#include "ops.def"
    NULL};
#undef TWI_OP

const twi_registry TWI_NAME(twi_registry_builtin) = {.ops = all_ops, .real_size = sizeof(tw_real)};

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

tw_status twi_registry_open(tw_context *context) {
    TWI_TRY(twi_get(context->memory, &context->own_registry, 1, sizeof *context->own_registry, "op registry"));
    *context->own_registry = twi_registry_builtin;
    context->registry = context->own_registry;
    return TW_OK;
}

void twi_registry_close(tw_context *context) {
    twi_registry *registry = context->own_registry;
    if (!registry) return;
    for (twi_user_op *op = registry->user, *next; op; op = next) {
        next = op->next;
        twi_put(context->memory, op);
    }
    twi_put(context->memory, registry->grown);
    twi_put(context->memory, registry);
    context->registry = context->own_registry = NULL;
}

tw_status twi_registry_add(tw_context *context, const twi_op *op) {
    twi_registry *registry = context->own_registry;
    if (twi_registry_find(registry, op->name))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "op '%s': the context has an op of that name; give yours another", op->name);
    for (const twi_kernel *const *kernel = op->kernels; kernel && *kernel; kernel++)
        if (twi_registry_find_kernel(registry, (*kernel)->name))
            return TWI_FAIL(TW_ERROR_ARGUMENT, "op '%s': the context has a kernel '%s'", op->name, (*kernel)->name);
    size_t count = 0;
    while (registry->ops[count]) count++;
    const twi_op **table; /* the last entry stays NULL */
    TWI_TRY(twi_get(context->memory, &table, count + 2, sizeof *table, "op table"));
    memcpy(table, registry->ops, count * sizeof *table);
    table[count] = op;
    twi_put(context->memory, registry->grown);
    registry->ops = registry->grown = table;
    return TW_OK;
}
#endif

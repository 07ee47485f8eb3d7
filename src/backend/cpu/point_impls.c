/* The family of light kernels: every kernel of point.h by the loops of the processor's instruction set; which calls are
 * taken and the scratch they want. */
#include "point.h"
#include "dense.h"
#include "base/memory.h"
#include "sweep.h"

/* Images channels innermost, as the pooling loops walk them; a global pool's window is the image. */
static const char *refuse_pool(const twi_call *call, twi_isa isa) {
    (void)isa;
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand *operand = &call->operand[o];
        if (!twi_is_f32(operand)) return "an operand is not f32";
        if (operand->shape.rank != 4 || !twi_is_channels_last(operand))
            return "an operand is not dense, channels innermost";
    }
    return NULL;
}

/* Do both operands lie in the same order, with the same axes? */
static bool same_order(const twi_operand *x, const twi_operand *y) {
    return (twi_is_row_major(x) && twi_is_row_major(y)) ||
           (twi_is_channels_last(x) && twi_is_channels_last(y) && twi_shape_equal(&x->shape, &y->shape));
}

static const char *refuse_copy(const twi_call *call, twi_isa isa) {
    (void)isa;
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    if (!twi_is_f32(x) || !twi_is_f32(y)) return "an operand is not f32";
    bool transposed =
        (twi_is_channels_last(x) && twi_is_row_major(y)) || (twi_is_row_major(x) && twi_is_channels_last(y));
    return transposed || same_order(x, y) ? NULL : "neither in the same order nor channels innermost and logical order";
}

static const char *refuse_classes(const twi_call *call, twi_isa isa) {
    (void)isa;
    for (int o = 0; o < call->operand_count; o++) {
        if (!twi_is_f32(&call->operand[o])) return "an operand is not f32";
        if (!twi_is_row_major(&call->operand[o])) return "an operand is not row-major";
    }
    return NULL;
}

static tw_status prepare_classes(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const int64_t classes = main->operand[0].shape.dim[1];
    if (classes <= TWI_FEW_CLASSES) return TW_OK;
    return twi_mul_size(&site->worker_bytes, (size_t)twi_classes_padded(classes), sizeof(float),
                        "scratch of a row of classes");
}

static const char *refuse_dropout(const twi_call *call, twi_isa isa) {
    (void)isa;
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    if (!twi_is_f32(x) || !twi_is_f32(y)) return "an operand is not f32";
    return same_order(x, y) ? NULL : "input and output are not dense in the same order";
}

static tw_status prepare_dropout(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return twi_add_size(&site->worker_bytes, (size_t)twi_sample_count(&main->operand[0]), TWI_DROPOUT_SLACK,
                        "dropout mask of a sample");
}

static const char *refuse_gather(const twi_call *call, twi_isa isa) {
    (void)isa;
    const twi_operand *x = &call->operand[1];
    if (!twi_is_f32(x)) return "an operand is not f32";
    return twi_is_row_major(x) || (x->shape.rank == 4 && twi_is_channels_last(x)) ? NULL : "the images are not dense";
}

#define POINT_RUN(name, kernel, refuse, prepare)                                                                 \
    static void run_##name(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) { \
        TWI_FOR_ISA_BF16(site->isa, point)->name(call, workspace);                                                    \
    }
TWI_POINT_KERNELS(POINT_RUN)

#define POINT_IMPL(name, kernel, refuse_fn, prepare_fn) \
    {kernel, "vector", .refuse = refuse_fn, .prepare = prepare_fn, .run = run_##name},
const twi_cpu_impl twi_cpu_point_impls[] = {TWI_POINT_KERNELS(POINT_IMPL){.kernel = NULL}};

/* Weights that take a scaling in, by plain loops which compilers turn into vectors: the operands of batch_norm.fold,
 * where both weights lie filter by filter in one order. */
#include "cpu.h"
#include "dense.h"
#include "backend/attrs.h"

enum { W, B, COEF, FOLDED_W, FOLDED_B };

static const char *refuse(const twi_call *call, twi_isa isa) {
    (void)isa;
    const twi_operand *w = &call->operand[W], *folded = &call->operand[FOLDED_W];
    for (int o = 0; o < call->operand_count; o++)
        if (!twi_is_f32(&call->operand[o])) return "an operand is not f32";
    const bool rows = twi_is_row_major(w) && twi_is_row_major(folded);
    return rows || (twi_is_channels_last(w) && twi_is_channels_last(folded)) ? NULL
                                                                             : "weights do not lie filter by filter";
}

static void run(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site, (void)workspace;
    const twi_operand *w = &call->operand[W];
    const float *b = call->operand[B].data, *coef = call->operand[COEF].data;
    const int64_t channels = call->operand[COEF].shape.dim[1], weights = twi_shape_count_from(&w->shape, 1);
    const float *scale = coef + TWI_NORM_SCALE * channels, *offset = coef + TWI_NORM_OFFSET * channels;
    float *folded_b = call->operand[FOLDED_B].data;
    for (int64_t o = call->begin; o < call->end; o++) {
        const float factor = scale[o], *restrict from = (const float *)w->data + o * weights;
        float *restrict to = (float *)call->operand[FOLDED_W].data + o * weights;
        for (int64_t i = 0; i < weights; i++) to[i] = factor * from[i];
        folded_b[o] = (b ? factor * b[o] : 0) + offset[o];
    }
}

const twi_cpu_impl twi_cpu_fold_impls[] = {
    {.kernel = "batch_norm.fold", .name = "loops", .refuse = refuse, .run = run},
    {.kernel = NULL},
};

/* Where the inputs of a run come from, in a program that is streamed to: one of the input's two slots.
 *
 *   x = slot[turn]     turn: 0 or 1, in the control block
 *
 * The slots are filled beside the runs; whoever fills one waits until the run that took it last is over. A slot is laid
 * out as the input is, so that nothing but the choice is left to do, and, where the input is stored in half precision,
 * to round: values come in f32. Values (feed.values) and labels (feed.labels) differ in their store. */
#include "kernels.h"

/* ---- specification ---- */

enum { X = 2 };

#define TAKE(name, from, to)                                                                               \
    static void name(const twi_call *call) {                                                               \
        const twi_operand *slot = &call->operand[call->control->slot], *x = &call->operand[X];             \
        const int64_t elements = twi_sample_count(x);                                                      \
        for (int64_t n = 0; n < x->shape.dim[0]; n++)                                                      \
            for (int64_t i = 0; i < elements; i++)                                                         \
                ((to *)x->data)[twi_offset(x, n, i)] = ((const from *)slot->data)[twi_offset(slot, n, i)]; \
    }
TAKE(values_run, float, tw_real)
TAKE(labels_run, int32_t, int32_t)

/* ---- kernels ---- */

static const twi_kernel values = {
    .name = "feed.values",
    .operand_count = 3,
    .operand = {{"slot0", TWI_READ, TWI_F32, TWI_BATCHED, 0},
                {"slot1", TWI_READ, TWI_F32, TWI_BATCHED, 0},
                {"x", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .types = TWI_TYPES_READERS,
    .run = values_run,
};

static const twi_kernel labels = {
    .name = "feed.labels",
    .operand_count = 3,
    .operand = {{"slot0", TWI_READ, TWI_I32, TWI_BATCHED, 0},
                {"slot1", TWI_READ, TWI_I32, TWI_BATCHED, 0},
                {"x", TWI_WRITE, TWI_I32, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = labels_run,
};

/* ---- record: put before everything by the lowering pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&values, &labels, NULL};

const twi_op TWI_NAME(twi_op_feed) = {
    .name = "feed",
    .formula = "x = slot[turn]",
    .kernels = kernels,
};

/* Looks at the gradients that an update is about to take: are they finite, and what is their norm?
 *
 *   measure: of each block of gradients, the root of the mean of g^2 over a full block's elements; -1 - .. naming the
 *            last one that is not finite (src/backend/guard.h). Some gradients are measured by the step that makes them
 *            (op_dense_measure.c)
 *   decide:  norm = sqrt(sum of g^2) / loss scale; factor = (1 / loss scale) * min(1, clip / (norm + 1e-6)), which the
 *            update multiplies each gradient by. One that is not finite is a fault, or leaves the update out
 *
 * Squares are added in double, and a root mean square is not above the largest gradient: nothing finite overflows.
 * Blocks are added in their order, so the norm does not depend on who measured which.
 * Source: Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013 (clipping);
 * Micikevicius et al., "Mixed Precision Training", ICLR 2018 (loss scale). */
#include "backend/attrs.h"
#include "kernels.h"

#include <math.h>

/* ---- specification ---- */

enum { GRADIENTS, BLOCKS, GRADIENTS_HALF };

static void measure_run(const twi_call *call) {
    tw_real *blocks = TWI_DATA(tw_real, call, BLOCKS);
    for (int64_t left = call->begin; left < call->end; left++) {
        int64_t base;
        const int64_t b = twi_update_block_left(call->attrs, left);
        const twi_update_segment part = twi_update_block(call->attrs, b, &base);
        double squares = 0, mark = 0;
        for (int64_t i = part.begin; i < part.end; i++) {
            const tw_real gradient = twi_gradient_at(call, GRADIENTS, GRADIENTS_HALF, &part, i);
            squares += (double)gradient * (double)gradient;
            if (!isfinite(gradient)) mark = twi_guard_mark((double)gradient, i - base);
        }
        blocks[b] = (tw_real)(mark < 0 ? mark : sqrt(squares / TWI_UPDATE_BLOCK));
    }
}

/* The last block that holds one is named: the parameter nearest to the loss, where the backward met it first. */
static void decide_run(const twi_call *call) {
    const twi_guard_attrs *attrs = call->attrs;
    const tw_real *blocks = TWI_DATA(const tw_real, call, 0);
    twi_control *control = call->control;
    double squares = 0, value = 0;
    int64_t place = -1;
    if (twi_fault_raised(control)) return;
    for (int64_t b = 0; b < attrs->blocks; b++) {
        const double block = (double)blocks[b];
        squares += block * block;
        if (block >= 0) continue;
        place = b * TWI_UPDATE_BLOCK + twi_guard_marked(block);
        value = twi_guard_marked_value(block);
    }
    const double norm = sqrt(squares * TWI_UPDATE_BLOCK);
    if (twi_guard_decide(&control->guard, attrs, control->micro == 0, control->bad_loss, norm, place, value))
        twi_fault_raise(control, TW_ERROR_NUMERIC, -1, TWI_FAULT_PLACE + place, value);
}

static int64_t blocks_of(const twi_call *call) { return twi_update_blocks_left(call->attrs); }

/* ---- kernels ---- */

static const twi_kernel measure = {
    .name = "guard.measure",
    .operand_count = 3,
    .operand = {{"gradients", TWI_READ, TWI_ACC, TWI_WHOLE, 0},
                {"blocks", TWI_WRITE, TWI_ACC, TWI_WHOLE, 0},
                {"gradients_half", TWI_READ, TWI_REAL, TWI_WHOLE, 0}},
    .half_of = {[GRADIENTS_HALF] = 1 + GRADIENTS},
    .split = TWI_BY_RANGE,
    .range = blocks_of,
    .run = measure_run,
};

static const twi_kernel decide = {
    .name = "guard.decide",
    .operand_count = 1,
    .operand = {{"blocks", TWI_READ, TWI_ACC, TWI_WHOLE, 0}},
    .split = TWI_AT_ONCE,
    .control = TWI_CONTROL_READ | TWI_CONTROL_FAULTS | TWI_CONTROL_WRITE,
    .run = decide_run,
};

/* ---- record: put before the update by the lowering pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&measure, &decide, NULL};

const twi_op TWI_NAME(twi_op_guard) = {
    .name = "guard",
    .formula = "norm = |gradients| / scale; factor = min(1, clip / norm) / scale; not finite: no update",
    .attr_size = sizeof(twi_guard_attrs),
    .kernels = kernels,
};

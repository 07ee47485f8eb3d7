/* Checks that shape rules share. The message names op, node and input, what was found and what is expected. */
#ifndef TWI_OPS_RULES_H
#define TWI_OPS_RULES_H

#include "op.h"

/* Input `input`, called `what`, must have `rank` axes, the first of them the batch or not; whole numbers or not. */
static inline tw_status twi_rule_axes(const twi_infer *infer, int input, const char *what, int rank, bool batched,
                                      bool whole) {
    const twi_shape *shape = &infer->input[input];
    char text[TWI_SHAPE_TEXT];
    if (shape->rank != rank)
        return TWI_FAIL(TW_ERROR_SHAPE, "%s '%s': %s is %s, expected %d axes%s", infer->op->name, infer->name, what,
                        twi_shape_text(shape, text), rank, batched ? ", the batch first; reshape or flatten it" : "");
    if (infer->batched[input] != batched)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s '%s': %s %s %s; give %s there", infer->op->name, infer->name, what,
                        twi_shape_text(shape, text), batched ? "has no batch axis" : "has a batch axis",
                        batched ? "an input or the result of a layer" : "a parameter");
    if ((infer->input_store[input] == TWI_I32) != whole)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s '%s': %s %s %s; give %s there", infer->op->name, infer->name, what,
                        twi_shape_text(shape, text), whole ? "is no input of labels" : "holds class indices",
                        whole ? "what tw_input_labels returns" : "real numbers");
    return TW_OK;
}

/* The same for real numbers. */
static inline tw_status twi_rule_input(const twi_infer *infer, int input, const char *what, int rank, bool batched) {
    return twi_rule_axes(infer, input, what, rank, batched, false);
}

/* Input `input` must hold one class index for every row of the logits [N, classes], which are input 0. */
static inline tw_status twi_rule_labels(const twi_infer *infer, int input) {
    const twi_shape *logits = &infer->input[0], *labels = &infer->input[input];
    char text[2][TWI_SHAPE_TEXT];
    TWI_TRY(twi_rule_input(infer, 0, "the input of logits", 2, true));
    TWI_TRY(twi_rule_axes(infer, input, "the input of labels", 1, true, true));
    if (labels->dim[0] != logits->dim[0])
        return TWI_FAIL(TW_ERROR_SHAPE, "%s '%s': labels are %s for logits %s, expected one class index a sample",
                        infer->op->name, infer->name, twi_shape_text(labels, text[0]), twi_shape_text(logits, text[1]));
    return TW_OK;
}

/* The only output's shape: set, and its size checked. */
static inline tw_status twi_rule_output(twi_infer *infer, twi_shape shape) {
    infer->output_count = 1;
    infer->output[0] = shape;
    tw_status status = twi_shape_check(&shape, "the result");
    return status ? twi_fail_within(status, "%s '%s'", infer->op->name, infer->name) : TW_OK;
}

#endif

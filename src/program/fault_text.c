/* What a run's fault word says, in words. */
#include "program.h"

#include <math.h>
#include <stdio.h>

static void name_run(const tw_program *program, const twi_control *control, char *text, size_t size) {
    bool whole = !(program->train && program->model->window.samples);
    snprintf(text, size, whole ? "run %llu" : "run %llu, batch %llu of its window",
             (unsigned long long)control->attempt + 1, (unsigned long long)control->micro + 1);
}

/* The run changed nothing, and neither did those it counts. */
static tw_status explain_patience(const tw_program *program, const twi_control *control) {
    const twi_guard *guard = &control->guard;
    char scale[96] = "";
    if (program->guard.scales)
        snprintf(scale, sizeof scale, "; the loss scale is down to %g (least %g)", guard->scale,
                 program->guard.minimum);
    return TWI_FAIL(TW_ERROR_NUMERIC,
                    "update %llu was left out %lld times in a row, %lld in all%s: %s '%s' is not finite. Look at the "
                    "data and weights, or lower the learning rate",
                    (unsigned long long)control->update + 1, (long long)guard->in_a_row, (long long)guard->skipped,
                    scale, guard->bad_loss ? "the loss" : "the gradient of", program->model->store.culprit);
}

tw_status twi_program_explain_fault(const tw_program *program, const twi_control *control) {
    const twi_fault *fault = &control->fault;
    const twi_node *node = fault->node >= 0 ? program->model->graph.node[fault->node] : NULL;
    const char *op = node ? node->op->name : "program", *name = node ? node->name : "";
    char run[64];
    name_run(program, control, run, sizeof run);
    double value = isnan(fault->value) ? (double)NAN : fault->value; /* its sign means nothing */
    if (fault->code == TW_ERROR_LABEL)
        return TWI_FAIL(TW_ERROR_LABEL,
                        "%s '%s': label %.0f of sample %lld is outside 0 .. %lld (%lld classes); nothing was updated",
                        op, name, fault->value, (long long)fault->sample, (long long)node->input[0]->shape.dim[1] - 1,
                        (long long)node->input[0]->shape.dim[1]);
    if (fault->sample == TWI_FAULT_RUN)
        return TWI_FAIL(TW_ERROR_NUMERIC,
                        "%s '%s': the loss is %g in %s; nothing was updated. Look at the input's scale, or lower "
                        "the learning rate",
                        op, name, value, run);
    if (fault->sample == TWI_FAULT_PATIENCE) return explain_patience(program, control);
    if (fault->sample >= TWI_FAULT_PLACE)
        return TWI_FAIL(TW_ERROR_NUMERIC,
                        "the gradient of '%s' holds %g in %s; nothing was updated. Look at the input's scale, the "
                        "loss weights or the learning rate",
                        twi_guard_name(program, fault->sample - TWI_FAULT_PLACE), value, run);
    return TWI_FAIL((tw_status)fault->code, "%s '%s': refuses %g in sample %lld of %s; nothing was updated", op, name,
                    value, (long long)fault->sample, run);
}

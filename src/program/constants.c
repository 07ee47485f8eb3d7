/* Which steps depend on parameters and statistics alone. A program without training runs those first and apart, and
 * only where something has changed what they read: their results stay in the arena from run to run, and so does what
 * implementations make of them. Where workspaces are to be saved nothing stays, and they are steps like others. Knows
 * no op: kernel records say whether they are pure. When they run is decided in run.c. */
#include "program.h"

#include <stdlib.h>

static bool writes(const twi_step *step, int operand) {
    return step->operand[operand] >= 0 && step->kernel->operand[operand].access != TWI_READ;
}

static void note_change(tw_program *program, int parameter) {
    for (int i = 0; i < program->buffer_count; i++)
        if (program->buffer[i].parameter == parameter) program->buffer[i].changed = true;
}

/* Parameters and statistics that a step changes. Without training only steps of a user's do. */
static void find_changed(tw_program *program) {
    for (int i = 0; i < program->buffer_count; i++) program->buffer[i].changed = false;
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; program->step[i].kernel && o < program->step[i].kernel->operand_count; o++) {
            const int parameter =
                writes(&program->step[i], o) ? program->buffer[program->step[i].operand[o]].parameter : -1;
            if (parameter >= 0) note_change(program, parameter);
        }
}

bool twi_is_constant(const tw_program *program, int buffer) {
    const twi_buffer *root = &program->buffer[twi_program_root(program, buffer)];
    if (root->source == TWI_SOURCE_ARENA) return root->constant;
    return (root->source == TWI_SOURCE_VALUES || root->source == TWI_SOURCE_HALF_VALUES) && !root->changed;
}

static bool makes_constants(const tw_program *program, const twi_step *step) {
    if (!step->kernel->pure) return false;
    for (int o = 0; o < step->kernel->operand_count; o++) {
        const int buffer = step->operand[o];
        if (buffer < 0) continue;
        const twi_operand_rule *rule = &step->kernel->operand[o];
        const twi_buffer *written = &program->buffer[buffer];
        if (rule->access == TWI_READ ? !twi_is_constant(program, buffer)
                                     : rule->access != TWI_WRITE || rule->reach != TWI_WHOLE ||
                                           written->source != TWI_SOURCE_ARENA || written->alias >= 0)
            return false;
    }
    return true;
}

/* Steps come in the order in which values are made: once through them is enough. */
void twi_pass_constants(tw_program *program) {
    if (!program->train) find_changed(program);
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        step->order = i;
        step->constant = step->kernel && !program->train && makes_constants(program, step);
        for (int o = 0; step->constant && o < step->kernel->operand_count; o++)
            if (writes(step, o)) program->buffer[step->operand[o]].constant = true;
    }
}

static int by_order(const void *a, const void *b) {
    const twi_step *x = a, *y = b;
    return x->order < y->order ? -1 : x->order > y->order;
}

static int constants_first(const void *a, const void *b) {
    const twi_step *x = a, *y = b;
    return x->constant != y->constant ? y->constant - x->constant : by_order(a, b);
}

void twi_constants_order(tw_program *program) {
    const bool first = !twi_program_saves_workspace(program);
    if (!program->train && program->step_count)
        qsort(program->step, (size_t)program->step_count, sizeof *program->step, first ? constants_first : by_order);
}

/* Which steps depend on parameters and statistics alone. A program without training runs those first and apart, and
 * only where something has changed what they read: their results stay in the arena from run to run, and so does what
 * implementations make of them. Where workspaces are to be saved nothing stays, and they are steps like others. Knows
 * no op: kernel records say whether they are pure. When they run is decided in run.c. */
#include "program.h"

static bool writes(const twi_step *step, int operand) {
    return step->operand[operand] >= 0 && step->kernel->operand[operand].access != TWI_READ;
}

/* Does a step of the program change the parameter? */
static bool is_changed(const tw_program *program, int parameter) {
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; program->step[i].kernel && o < program->step[i].kernel->operand_count; o++)
            if (writes(&program->step[i], o) && program->buffer[program->step[i].operand[o]].parameter == parameter)
                return true;
    return false;
}

bool twi_is_constant(const tw_program *program, int buffer) {
    const twi_buffer *root = &program->buffer[twi_program_root(program, buffer)];
    if (root->source == TWI_SOURCE_ARENA) return root->constant;
    return (root->source == TWI_SOURCE_VALUES || root->source == TWI_SOURCE_HALF_VALUES) &&
           !is_changed(program, root->parameter);
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
    for (int i = 0; i < program->step_count; i++) {
        twi_step *step = &program->step[i];
        step->order = i;
        step->constant = step->kernel && !program->train && makes_constants(program, step);
        for (int o = 0; step->constant && o < step->kernel->operand_count; o++)
            if (writes(step, o)) program->buffer[step->operand[o]].constant = true;
    }
}

void twi_constants_order(tw_program *program) {
    const bool first = !twi_program_saves_workspace(program);
    for (int i = 1; i < program->step_count && !program->train;
         i++) { /* by insertion: they are in order but for a few */
        const twi_step step = program->step[i];
        int at = i;
        while (at > 0) {
            const twi_step *before = &program->step[at - 1];
            const bool behind = first && before->constant != step.constant ? step.constant : step.order < before->order;
            if (!behind) break;
            program->step[at] = *before;
            at--;
        }
        program->step[at] = step;
    }
}

/* What a pass made, as text for people: a line a step with its operands, bytes and FLOPs. */
#include "program.h"
#include "base/text.h"

static void add_operand(const tw_program *program, const twi_step *step, int o, tw_pass pass, twi_text *text) {
    static const char *const arrows[] = {"", "->", "<->"};
    const twi_operand_rule *rule = &step->kernel->operand[o];
    if (step->operand[o] < 0) return;
    const twi_buffer *buffer = &program->buffer[step->operand[o]];
    char shape[TWI_SHAPE_TEXT];
    twi_text_add(text, " %s%s=%s%s", arrows[rule->access], rule->name, buffer->name,
                 twi_shape_text(&buffer->shape, shape));
    if (buffer->store == TWI_REAL && twi_is_half(buffer->dtype))
        twi_text_add(text, ":%s", tw_dtype_name((tw_dtype)buffer->dtype));
    if (pass >= TW_PASS_CHOOSE && buffer->lanes) twi_text_add(text, "x%d", buffer->lanes);
    if (pass >= TW_PASS_CHOOSE && buffer->by_features) twi_text_add(text, "^T");
    if (pass < TW_PASS_MEMORY) return;
    const twi_buffer *root = &program->buffer[twi_program_root(program, step->operand[o])];
    if (root->source == TWI_SOURCE_ARENA) twi_text_add(text, "%s%zu", root->local ? "@local+" : "@", root->offset);
    if (root->copied) twi_text_add(text, " (%d copies)", twi_program_copies(program));
}

static void add_step(const tw_program *program, int index, tw_pass pass, twi_text *text) {
    static const char *const parts[] = {"forward", "backward", "commit", "update", "again", "constant"};
    const twi_step *step = &program->step[index];
    char bytes[TWI_QUANTITY_TEXT], flops[TWI_QUANTITY_TEXT] = "-";
    twi_call call;
    twi_program_call(program, step, 0, &call);
    if (step->kernel->flops) twi_quantity(step->kernel->flops(&call), "FLOP", flops);
    twi_text_add(text, "%4d %-8s %-34s %-24s %10s %11s", index,
                 parts[step->again      ? 4
                       : step->constant ? 5
                                        : step->part],
                 step->kernel->name, step->label, twi_quantity(twi_program_step_bytes(program, step), "B", bytes),
                 flops);
    if (pass >= TW_PASS_CHOOSE) twi_text_add(text, "  %-18s", step->choice.implementation);
    if (step->tf32) twi_text_add(text, " tf32");
    for (int o = 0; o < step->kernel->operand_count; o++) add_operand(program, step, o, pass, text);
    twi_text_add(text, "\n");
}

static void add_segment(const twi_segment *segment, int index, twi_text *text) {
    static const char *const splits[] = {"by sample", "by range", "at once"};
    twi_text_add(text, "segment %d: %s", index, splits[segment->split]);
    if (segment->split == TWI_BY_SAMPLE)
        twi_text_add(text, ", %lld sample%s in chunks of %lld, %d group%s", (long long)segment->samples,
                     twi_plural(segment->samples), (long long)segment->chunk, segment->groups,
                     twi_plural(segment->groups));
    twi_text_add(text, "\n");
}

static tw_status write_dump(tw_program *program, tw_pass pass) {
    static const char *const names[] = {"lower", "layout", "fuse", "schedule", "choose", "memory"};
    twi_text text;
    char *taken, arena[TWI_QUANTITY_TEXT], worker[TWI_QUANTITY_TEXT];
    twi_text_init(&text, twi_program_context(program)->memory);
    if (pass == TW_PASS_MEMORY)
        twi_text_add(&text, "plan %016llx\n", (unsigned long long)tw_program_get_plan_hash(program));
    twi_text_add(&text, "pass %s: batch %lld, %s, ", names[pass], (long long)program->batch,
                 program->train ? "train" : "infer");
    if (program->precision != TW_PRECISION_F32) twi_text_add(&text, "%s, ", tw_precision_name(program->precision));
    twi_text_add(&text, "%d step%s\n", program->step_count, twi_plural(program->step_count));
    if (pass == TW_PASS_FUSE)
        twi_text_add(&text, "fusion saves %s a run\n", twi_quantity(program->fused_bytes, "B", arena));
    if (pass == TW_PASS_MEMORY)
        twi_text_add(&text, "arena %s, scratch %s a worker\n", twi_quantity((double)program->arena_bytes, "B", arena),
                     twi_quantity((double)program->worker_bytes, "B", worker));
    for (int i = 0; i < program->step_count; i++) {
        if (pass >= TW_PASS_SCHEDULE && (i == 0 || program->step[i].segment != program->step[i - 1].segment))
            add_segment(&program->segment[program->step[i].segment], program->step[i].segment, &text);
        add_step(program, i, pass, &text);
    }
    TWI_TRY(twi_text_take(&text, &taken));
    twi_put(twi_program_context(program)->memory, program->dump[pass]);
    program->dump[pass] = taken;
    return TW_OK;
}

tw_status twi_program_record(tw_program *program, tw_pass pass) {
    return program->record ? write_dump(program, pass) : TW_OK;
}

const char *tw_program_dump(tw_program *program, tw_pass pass) {
    if (!program || (int)pass < 0 || (int)pass >= TWI_PASSES) return NULL;
    if (!program->dump[pass] && (pass != TW_PASS_MEMORY || write_dump(program, pass))) return NULL;
    return program->dump[pass];
}

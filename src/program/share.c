/* The arena and the scratch that a model's programs share: grown to the largest need of any, given back where nobody
 * needs as much.
 * What a program needs is planned before (memory_plan.c) and counted in need.c. */
#include "program.h"

/* A piece of memory that a model's programs share. */
typedef struct shared {
    void **memory;
    size_t *held, wanted;
    const char *name;
} shared;
enum { PARTS = 2 };

static void list_parts(tw_model *model, const tw_program *also, shared part[PARTS]) {
    size_t arena, scratch;
    twi_model_shared_need(model, also, &arena, &scratch);
    part[0] = (shared){&model->arena, &model->arena_bytes, arena, "activation arena"};
    part[1] = (shared){&model->scratch, &model->scratch_bytes, scratch, "worker scratch"};
}

static bool grows(const shared *s) { return !*s->memory || s->wanted > *s->held; }

static bool is_larger(const shared *s) { return *s->memory && *s->held > s->wanted; }

static bool has_room(const tw_program *program) {
    const tw_model *model = program->model;
    return program->arena_bytes <= model->arena_bytes && twi_program_scratch_bytes(program) <= model->scratch_bytes;
}

/* What programs held there is gone. */
static void unbind_all(tw_model *model) {
    model->arena_user = NULL;
    for (tw_program *other = model->programs; other; other = other->next) twi_program_unprepare(other);
}

static void give_back(const tw_model *model, shared *part) {
    model->context->backend->put(model->context, *part->memory);
    *part->memory = NULL;
    *part->held = 0;
}

/* A program that is being made is not among its model's yet. */
static bool is_listed(const tw_program *program) {
    const tw_program *other = program->model->programs;
    while (other && other != program) other = other->next;
    return other;
}

/* Would old and new memory side by side be more than the limit that the program was planned for? */
static bool too_much_beside(const tw_program *program, const shared *part) {
    size_t bytes = twi_model_bytes(program->model);
    bytes += is_listed(program) ? program->aside : program->placed + twi_program_input_bytes(program);
    for (int i = 0; i < PARTS; i++) bytes += grows(&part[i]) ? part[i].wanted : 0;
    return program->memory_limit && bytes > program->memory_limit;
}

void twi_program_make_room(const tw_program *program) {
    tw_model *model = program->model;
    shared part[PARTS];
    size_t excess = 0;
    list_parts(model, program, part);
    for (int i = 0; i < PARTS; i++) excess += is_larger(&part[i]) ? *part[i].held - part[i].wanted : 0;
    if (!program->memory_limit || !excess ||
        twi_program_bytes(program) + program->aside + excess <= program->memory_limit)
        return;
    unbind_all(model);
    for (int i = 0; i < PARTS; i++)
        if (is_larger(&part[i])) give_back(model, &part[i]);
}

/* Then every program is bound anew. Where that fails, the others are bound when they are fed or run next. */
tw_status twi_program_share_arena(tw_program *program) {
    tw_model *model = program->model;
    tw_context *context = model->context;
    shared part[PARTS];
    size_t checked;
    TWI_TRY(
        twi_mul_size(&checked, program->worker_bytes, (size_t)context->backend->workers(context), "worker scratch"));
    list_parts(model, program, part);
    void *larger[PARTS] = {NULL};
    tw_status status = TW_OK;
    if (too_much_beside(program, part)) {
        unbind_all(model);
        for (int i = 0; i < PARTS; i++)
            if (grows(&part[i])) give_back(model, &part[i]);
    }
    for (int i = 0; i < PARTS && status == TW_OK; i++)
        if (grows(&part[i]))
            status = context->backend->get(context, &larger[i], part[i].wanted ? part[i].wanted : 1, part[i].name);
    if (status) { /* others keep what they have, unless it went first */
        context->backend->put(context, larger[0]);
        return status;
    }
    const bool moved = larger[0] || larger[1];
    if (moved) unbind_all(model);
    for (int i = 0; i < PARTS; i++) {
        if (!larger[i]) continue;
        context->backend->put(context, *part[i].memory);
        *part[i].memory = larger[i];
        *part[i].held = part[i].wanted ? part[i].wanted : 1;
    }
    for (tw_program *other = model->programs; moved && other; other = other->next)
        if (!other->plan_only && has_room(other)) TWI_TRY(twi_pass_prepare(other));
    return twi_pass_prepare(program);
}

void twi_model_trim(tw_model *model) {
    shared part[PARTS];
    bool smaller = false;
    list_parts(model, NULL, part);
    for (int i = 0; i < PARTS; i++) smaller = smaller || is_larger(&part[i]);
    if (!smaller) return;
    unbind_all(model);
    for (int i = 0; i < PARTS; i++) give_back(model, &part[i]);
}

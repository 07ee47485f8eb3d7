/* What a fit holds of the device at its peak, by what it is for: a table of the names that memory is asked for by, and
 * the parts of the arena. */
#include "plan.h"
#include "backend/planning.h"
#include "program/model.h"

#include <string.h>

#define PART(field) offsetof(tw_plan_memory, field)
#define ARENA "activation arena"

/* Whatever is not named here counts as other_bytes. */
static const struct {
    const char *what;
    size_t part;
} parts[] = {
    {"parameters", PART(parameter_bytes)},
    {"running statistics", PART(parameter_bytes)},
    {"shadows of running statistics", PART(parameter_bytes)},
    {"parameters in half precision", PART(copy_bytes)},
    {"gradients", PART(gradient_bytes)},
    {"gradients in half precision", PART(gradient_bytes)},
    {"gradient sums", PART(gradient_bytes)},
    {"optimizer state", PART(optimizer_bytes)},
    {"snapshot", PART(optimizer_bytes)},
    {"worker scratch", PART(workspace_bytes)},
    {"resident samples", PART(data_bytes)},
    {"resident labels", PART(data_bytes)},
    {"order of a resident set", PART(data_bytes)},
    {"slots of inputs", PART(data_bytes)},
};
enum { PARTS = sizeof parts / sizeof *parts };

static size_t *part_of(tw_plan_memory *held, const char *what) {
    for (int i = 0; i < PARTS; i++)
        if (strcmp(parts[i].what, what) == 0) return (size_t *)(void *)((char *)held + parts[i].part);
    return &held->other_bytes;
}

/* The program whose arena that is; where two need as much, the one that trains. */
static const tw_program *owner_of_arena(const tw_plan *plan, size_t bytes) {
    const tw_program *candidates[] = {plan->train.full, plan->train.short_last, plan->test.full, plan->test.short_last};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
        if (candidates[i] && candidates[i]->arena_bytes == bytes) return candidates[i];
    return plan->program;
}

/* `all` bytes of arenas, the largest of `largest`: while one is replaced by a larger one there are two. */
static void split_arena(tw_plan *plan, size_t all, size_t largest) {
    tw_plan_memory *held = &plan->held;
    twi_account account;
    if (!largest) return;
    twi_program_account(owner_of_arena(plan, largest), &account, NULL, NULL);
    held->activation_bytes += account.bytes[TWI_SHARE_ACTIVATION];
    held->activation_gradient_bytes += account.bytes[TWI_SHARE_GRADIENT];
    held->workspace_bytes += account.bytes[TWI_SHARE_WORKSPACE];
    held->data_bytes += account.bytes[TWI_SHARE_INPUT];
    size_t known = 0;
    for (int i = 0; i < TWI_SHARES; i++) known += account.bytes[i];
    held->unused_bytes += all - known;
}

static bool is_enough(const tw_plan_memory *held, const tw_card *card) {
    const size_t room = twi_planned_room(card->memory_bytes);
    return !card->memory_bytes || (held->peak_bytes <= room && held->overhead_bytes <= room - held->peak_bytes);
}

void twi_plan_account(tw_plan *plan) {
    const tw_context *context = plan->model->context;
    tw_plan_memory *held = &plan->held;
    size_t arenas = 0, largest = 0;
    int count;
    const twi_planned_block *block = twi_planning_peak(context, &count);
    *held = (tw_plan_memory)TW_PLAN_MEMORY_INIT;
    for (int i = 0; i < count; i++) {
        const size_t bytes = block[i].bytes;
        held->peak_bytes += bytes;
        if (strcmp(block[i].what, ARENA) != 0) {
            *part_of(held, block[i].what) += bytes;
            continue;
        }
        arenas += bytes;
        if (bytes > largest) largest = bytes;
    }
    split_arena(plan, arenas, largest);
    held->overhead_bytes = plan->card.capability ? TWI_PLANNED_OVERHEAD : 0;
    held->workspace_estimated = twi_planning_is_estimated(context);
    held->streamed = !plan->train.resident;
    held->fits = is_enough(held, &plan->card);
}

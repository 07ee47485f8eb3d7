/* The inside of a plan: plan.c makes it, plan_memory.c says what is held at the peak, plan_work.c what an update does
 * and how long a card takes for that, card_file.c reads cards. */
#ifndef TWI_PLAN_PLAN_H
#define TWI_PLAN_PLAN_H

#include "data/dataset.h"
#include "program/account.h"
#include "trainer/trainer.h"
#include <talweg/plan.h>

/* What a step multiplies. */
typedef enum twi_rate { TWI_RATE_F32, TWI_RATE_TF32, TWI_RATE_BF16, TWI_RATE_F16, TWI_RATES } twi_rate;

/* A step of an update. */
typedef struct twi_planned_step {
    int kind, layer; /* in the plan's lists; layer -1: it belongs to none */
    bool updates;    /* done once an update, not once a batch */
    twi_rate rate;
    double bytes, flops;
} twi_planned_step;

/* An entry of a list, and what it is called by. */
typedef struct twi_planned_work {
    char name[128];
    tw_plan_work sum;
} twi_planned_work;

struct tw_plan {
    tw_model *model;
    twi_memory *memory;
    tw_trainer *trainer;
    tw_dataset train_set, test_set; /* of that shape, without samples */
    twi_feed train, test;
    tw_program *program; /* of a full batch of training */
    int64_t samples;     /* 0: unknown */
    tw_card card;
    tw_plan_memory held;
    twi_planned_step *step;
    twi_planned_work *kind, *layer;
    int step_count, kind_count, layer_count;
};

/* plan_memory.c: fills held. */
void twi_plan_account(tw_plan *plan);
/* plan_work.c: fills the lists. */
tw_status twi_plan_list(tw_plan *plan);

#endif

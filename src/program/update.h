/* Optimizer options as the update part of a program reads them. */
#ifndef TWI_PROGRAM_UPDATE_H
#define TWI_PROGRAM_UPDATE_H

#include "base/status.h"
#include "backend/attrs.h"
#include "store.h"
#include <talweg/optim.h>

/* Errors name the field, its value and its range. */
tw_status twi_optimizer_check(const tw_optimizer_options *options);
/* Moments the optimizer keeps of every learned parameter: its part of the store's. */
twi_moments twi_optimizer_moments(const tw_optimizer_options *options);
/* Options, defaults filled in, as the schedule kernel reads them. */
void twi_schedule_fill(twi_schedule_attrs *attrs, const tw_optimizer_options *options);

#endif

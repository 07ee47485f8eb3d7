/* Trials of implementations: which of those that take a call is the fastest on this machine. */
#ifndef TWI_CPU_TRIAL_H
#define TWI_CPU_TRIAL_H

#include "cpu.h"

typedef struct twi_choices twi_choices;

/* The implementation that a step should take: the remembered one, or the fastest in a trial on memory borrowed for the
 * purpose; *out NULL: there is nothing to choose, or no memory to try it in. `site` is as for prepare, and stays as it
 * was. Attributes, shapes, strides and types of the call decide alone, not the values. Errors: OUT_OF_MEMORY where
 * choices cannot be kept. */
tw_status twi_cpu_tune(tw_context *context, twi_choices *choices, const twi_cpu_site *site, const twi_call *main,
                       const twi_call *tail, const twi_cpu_impl **out);

#endif

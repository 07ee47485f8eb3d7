/* Cards that a context can be opened on without having one, to plan: "plan:h200". The public part is <talweg/plan.h>. */
#ifndef TWI_BACKEND_CARDS_H
#define TWI_BACKEND_CARDS_H

#include <talweg/plan.h>

/* Fills in what is known of a card by the name that its driver tells, and the memory, both of which stay; false: nothing is. */
bool twi_card_recognise(tw_card *card);

#endif

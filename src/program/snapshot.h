/* A copy of all that training changes in a model, in device memory, to go back to: see snapshot.c. */
#ifndef TWI_PROGRAM_SNAPSHOT_H
#define TWI_PROGRAM_SNAPSHOT_H

#include "store.h"

/* Says whether there will be a copy, of the moments named too, for those who plan. */
void twi_snapshot_want(twi_store *store, bool wanted, twi_moments moments);
/* Bytes of the device that the copy takes: what is there, and, if asked for, what is wanted. */
size_t twi_snapshot_bytes(const twi_store *store, bool wanted);
/* Room for the copy, of the moments named too, taken once. */
tw_status twi_snapshot_open(twi_store *store, twi_moments moments);
/* Copies what is there now. In the order of the runs; nobody waits. None may be in flight, since the counters are the
 * host's. */
tw_status twi_snapshot_take(twi_store *store, twi_moments moments);
/* Goes back to it. Attempts go on, so that random numbers and data do. */
tw_status twi_snapshot_return(twi_store *store, twi_moments moments);

#endif

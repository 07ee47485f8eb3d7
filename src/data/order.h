/* In which order an epoch takes the samples of a data set. */
#ifndef TWI_DATA_ORDER_H
#define TWI_DATA_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* order[0 .. count-1] becomes 0 .. count-1, shuffled by (seed, epoch) alone if so wanted. */
void twi_epoch_order(int32_t *order, int64_t count, bool shuffled, uint64_t seed, uint64_t epoch);

#endif

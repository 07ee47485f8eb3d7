/* The order of an epoch. Who goes through it is left to loader.c and to the trainer's feed. */
#include "order.h"
#include "base/philox.h"

/* Fisher-Yates; the draw for each place depends on seed, epoch and place alone. */
void twi_epoch_order(int32_t *order, int64_t count, bool shuffled, uint64_t seed, uint64_t epoch) {
    for (int64_t i = 0; i < count; i++) order[i] = (int32_t)i;
    for (int64_t i = count - 1; shuffled && i > 0; i--) {
        uint32_t words[4];
        twi_draw(seed, TWI_PURPOSE_SHUFFLE, epoch, (uint64_t)i, words);
        uint32_t j = twi_below(words[0], (uint32_t)(i + 1));
        int32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

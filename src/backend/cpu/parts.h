/* The small arithmetic of loops that are cut into parts. */
#ifndef TWI_CPU_PARTS_H
#define TWI_CPU_PARTS_H

#include <stdint.h>

static inline int64_t twi_smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t twi_larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Parts of at most `most`, as even as can be: five are 3 + 2, not 3 + 1 + 1. Part p of them begins at
 * twi_part_begin. */
static inline int64_t twi_part_count(int64_t total, int64_t most) { return (total + most - 1) / most; }
static inline int64_t twi_part_begin(int64_t total, int64_t parts, int64_t p) {
    return total / parts * p + twi_smaller(p, total % parts);
}

#endif

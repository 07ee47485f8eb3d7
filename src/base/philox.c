/* What is made of draws on the host alone: normal deviates, and stream numbers from names. The draws are in
 * philox.h. */
#include "philox.h"

#include <math.h>

void twi_normal2(uint32_t a, uint32_t b, float out[2]) {
    /* (0, 1], so that the logarithm is finite. */
    double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32));
    double angle = 6.283185307179586 * ((double)b * 0x1p-32);
    out[0] = (float)(radius * cos(angle));
    out[1] = (float)(radius * sin(angle));
}

uint64_t twi_hash_text(const char *text) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    return hash;
}

/* f16 (IEEE binary16) and bf16 conversion: round to nearest even, denormals and infinities kept, NaN stays NaN
 * (quiet). */
#ifndef TWI_BASE_HALF_H
#define TWI_BASE_HALF_H

#include <talweg/base.h>

uint16_t twi_f16_from_f32(float value);
float twi_f16_to_f32(uint16_t bits);
uint16_t twi_bf16_from_f32(float value);
float twi_bf16_to_f32(uint16_t bits);

/* The same for the one of the two that `half` names. */
uint16_t twi_half_from_f32(tw_dtype half, float value);
float twi_half_to_f32(tw_dtype half, uint16_t bits);

/* Converts `count` elements between any two of the public element types (rules of tw_tensor_cast). */
void twi_convert(void *destination, tw_dtype to, const void *source, tw_dtype from, int64_t count);

#endif
